// SPDX-License-Identifier: Apache-2.0
// Streams: one builder at a time appends rows, everybody reads them meanwhile (PROTOCOL "Append"). The broker says who
// builds; ids are given by the builder itself, see Writer::append.
#include "core/client/cache.h"

#include "core/common/error.h"
#include "core/common/futex.h"
#include "core/control/socket.h"

#include <algorithm>

namespace libcache {
namespace {

constexpr int64_t kLookAtServerEveryNs = 1'000'000'000;

bool built(const cache &handle) {
    // acq [built] pairs with the broker's store: every row of the build is found from here on
    return handle.header()->built.load(std::memory_order_acquire) != 0;
}

// What this process writes with, if it is the builder.
int builder_of(cache &handle, WriterUse **use) {
    if (!handle.live()) return handle.gone();
    *use = handle.writer_if_any();
    if (*use != nullptr && (*use)->build_term.load(std::memory_order_relaxed) != 0) return 0;
    return fail(CACHE_EINVAL, "this process does not build cache %u of session %u: cache_build_begin comes first",
                handle.open->id.cache_id, handle.open->id.session_id);
}

// BuildDone or BuildLeave: this process is not the builder after it.
int tell_builder(cache &handle, WriterUse &use, wire::Type type) {
    wire::Message message{};
    message.u.build.term = use.build_term.load(std::memory_order_relaxed);
    use.writer->end_appends(message.u.build.term);
    const int rc = use.request(type, handle.config.timeout_ns, message);
    if (rc == 0) use.build_term.store(0, std::memory_order_relaxed);
    return rc;
}

} // namespace

int begin_build(cache &handle, int64_t *resume_at) {
    if (!handle.live()) return handle.gone();
    if ((handle.flags & CACHE_READ_ONLY) != 0)
        return fail(CACHE_EPERM, "cache %u of session %u was opened read-only", handle.open->id.cache_id,
                    handle.open->id.session_id);
    WriterUse *use = nullptr;
    if (int rc = handle.writer(&use); rc != 0) return rc;
    wire::Message message{};
    if (int rc = use->request(wire::Type::BuildBegin, handle.config.timeout_ns, message); rc != 0) return rc;
    const bool done = message.u.build.built != 0;
    if (!done && use->spiller) use->spiller->begin_stream();
    const int64_t next = done ? static_cast<int64_t>(handle.header()->next.load(std::memory_order_acquire)) // [append]
                              : use->writer->resume();
    if (next < 0) // what was appended cannot be told, and no caller can skip so many
        return fail(
            CACHE_ECORRUPT,
            "cache %u of session %u says that %lld rows were appended: its region is damaged; destroy the cache "
            "and build it anew",
            handle.open->id.cache_id, handle.open->id.session_id, static_cast<long long>(next));
    *resume_at = next;
    if (!done) use->build_term.store(message.u.build.term, std::memory_order_relaxed);
    return done ? 1 : 0;
}

int end_build(cache &handle) {
    WriterUse *use = nullptr;
    if (int rc = builder_of(handle, &use); rc != 0) return rc;
    if (use->spiller) // a build is not done while rows of it are lost, whoever has been told before
        if (int rc = use->spiller->flush_stream(); rc != 0) return rc;
    return tell_builder(handle, *use, wire::Type::BuildDone);
}

int leave_build(cache &handle) {
    WriterUse *use = nullptr;
    if (int rc = builder_of(handle, &use); rc != 0) return rc;
    // Rows that are being written to disk have ids already: they come before those of the next builder, or never.
    const int flushed = use->spiller ? use->spiller->flush_stream() : 0;
    const int left = tell_builder(handle, *use, wire::Type::BuildLeave);
    return left != 0 ? left : flushed;
}

int wait_build(cache &handle, int64_t timeout_ms) {
    const RegionHeader &header = *handle.header();
    const int64_t deadline =
        timeout_ms < 0 ? INT64_MAX : now_ns() + std::min<int64_t>(timeout_ms, 1LL << 40) * 1'000'000;
    std::shared_ptr<Connection> connection;
    if (int rc = handle.here(&connection); rc != 0) return rc;
    for (;;) {
        if (!handle.live()) return handle.gone();
        const uint32_t seen = header.build_futex.load(std::memory_order_acquire); // before looking: no lost wake-up
        if (built(handle)) return 0;
        if (header.builder.load(std::memory_order_acquire) == 0)
            return fail(CACHE_EBUILDING,
                        "cache %u of session %u is not complete and nobody builds it: take over with cache_build_begin",
                        handle.open->id.cache_id, handle.open->id.session_id);
        const int64_t left = deadline - now_ns();
        if (left <= 0)
            return fail(CACHE_ETIMEOUT, "cache %u of session %u is still being built after %lld ms",
                        handle.open->id.cache_id, handle.open->id.session_id, static_cast<long long>(timeout_ms));
        // A server that is gone cannot tell that the builder has ended.
        if (!connection->alive())
            return fail(CACHE_ESERVER, "the server has ended while cache %u of session %u was being built",
                        handle.open->id.cache_id, handle.open->id.session_id);
        futex_wait(&header.build_futex, seen, std::min(left, kLookAtServerEveryNs));
    }
}

} // namespace libcache
