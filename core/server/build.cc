// SPDX-License-Identifier: Apache-2.0
// Who builds a stream (PROTOCOL section 2, Append): the broker alone writes RegionHeader::builder and built.
#include "core/server/cache_region.h"

#include "core/common/error.h"
#include "core/common/futex.h"
#include "core/common/pause.h"

namespace libcache {

void CacheRegion::set_builder(uint64_t builder) {
    header()->builder.store(builder, std::memory_order_release); // who builds next comes after what was done before
    LIBCACHE_PAUSE("broker.build.1");
    AtomicU32 &futex = header()->build_futex;
    futex.fetch_add(1, std::memory_order_release); // pairs with the waiters' acquire: builder and built before
    futex_wake_all(&futex);
}

// The slot's process has ended, or closed the cache: another may go on where it stopped.
void CacheRegion::end_building(uint32_t slot) {
    const uint64_t builder = header()->builder.load(std::memory_order_relaxed); // only we write it
    if (builder != 0 && Builder::unpack(builder).slot == slot) set_builder(0);
}

int CacheRegion::begin_build(uint64_t conn_id, Build *build) {
    const auto at = slot_of(conn_id);
    if (at == clients_.end()) return fail(CACHE_EINVAL, "a builder attaches to the cache first");
    if ((header()->flags & kRegionBuild) == 0)
        return fail(CACHE_EINVAL, "cache %u of session %u was not opened for a build phase (CACHE_BUILD)",
                    names_.cache_id, names_.session_id);
    *build = {0, header()->built.load(std::memory_order_relaxed) != 0}; // only we write it
    if (build->built) return 0;
    const uint64_t builder = header()->builder.load(std::memory_order_relaxed); // only we write it
    const Builder now = Builder::unpack(builder);
    if (builder != 0 && now.slot != at->first) {
        const Client *other = client_of(now.slot);
        return fail(CACHE_EBUILDING, "process %d builds cache %u of session %u", other ? other->person.pid : 0,
                    names_.cache_id, names_.session_id);
    }
    // Terms grow, also past a broker's death: each generation begins far above the last.
    build->term = builder != 0 ? now.term : (shop_.generation << 32) + ++builders_;
    if (builder == 0) set_builder(Builder{at->first, build->term}.pack());
    return 0;
}

int CacheRegion::end_build(uint64_t conn_id, uint64_t term) {
    if (header()->built.load(std::memory_order_relaxed) != 0) return 0; // done already, by whomever
    const auto at = slot_of(conn_id);
    const Builder now = Builder::unpack(header()->builder.load(std::memory_order_relaxed)); // only we write it
    if (at == clients_.end() || now.slot != at->first || now.term != term || term == 0)
        return fail(CACHE_EINVAL, "this process does not build cache %u of session %u any more", names_.cache_id,
                    names_.session_id);
    header()->built.store(1, std::memory_order_release); // [built] pairs with the waiters' acquire: every row
    LIBCACHE_PAUSE("broker.build.2");
    set_builder(0);
    return 0;
}

void CacheRegion::leave_build(uint64_t conn_id, uint64_t term) {
    const auto at = slot_of(conn_id);
    const Builder now = Builder::unpack(header()->builder.load(std::memory_order_relaxed)); // only we write it
    if (at != clients_.end() && term != 0 && now.term == term) end_building(at->first);
}

} // namespace libcache
