// SPDX-License-Identifier: Apache-2.0
// Opening, attaching and closing. Reading is in read.cc, writing in write.cc.
#include "core/client/cache.h"

#include "core/common/error.h"
#include "core/common/in_child.h"

#include <cstdio>
#include <cstring>
#include <sys/stat.h>
#include <unistd.h>

namespace libcache {
namespace {

constexpr uint64_t kKnownFlags = CACHE_READ_ONLY | CACHE_NO_CREATE | CACHE_BUILD;

// A parent's object in a forked child: its parts belong to the parent, and its destructor would act on them.
template <typename T> void leak(std::shared_ptr<T> &pointer) {
    if (pointer) keep_for_ever(std::move(pointer));
    pointer.reset();
}

int copy_text(const char *text, char *to, size_t room, const char *what, uint32_t *present) {
    *present = text != nullptr;
    if (text == nullptr) return 0;
    const size_t length = strlen(text);
    if (length >= room) return fail(CACHE_EINVAL, "%s has %zu bytes, at most %zu are allowed", what, length, room - 1);
    memcpy(to, text, length + 1);
    return 0;
}

int open_message(uint32_t session_id, uint32_t cache_id, const cache_options *options, wire::Message &message) {
    message.header.type = static_cast<uint32_t>(wire::Type::Open);
    wire::Open &open = message.u.open;
    open.session_id = session_id;
    open.cache_id = cache_id;
    if (options == nullptr) return 0;
    if ((options->flags & ~kKnownFlags) != 0)
        return fail(CACHE_EINVAL, "cache_options.flags 0x%x has bits that mean nothing", options->flags);
    open.flags = options->flags;
    open.spill = options->spill;
    open.limit_bytes = options->memory_limit_bytes;
    // Row ids end there; beyond lie negative numbers that were cast. What is only more than fits is the server's to
    // cut.
    if (options->expected_rows > uint64_t{1} << 63)
        return fail(CACHE_EINVAL,
                    "cache_options.expected_rows %llu is more than the row ids 0..2^63-1 that there are; 0 means that "
                    "it is not known",
                    static_cast<unsigned long long>(options->expected_rows));
    open.expected_rows = options->expected_rows;
    if (int rc = copy_text(options->tag, open.tag, CACHE_MAX_TAG_BYTES + 1, "cache_options.tag", &open.has_tag);
        rc != 0)
        return rc;
    return copy_text(options->label, open.label, CACHE_MAX_LABEL_BYTES + 1, "cache_options.label", &open.has_label);
}

// A cache that is there already is not as it was asked for: opened all the same, and said. Returns 1.
int say_differences(uint32_t session_id, uint32_t cache_id, const cache_options *options, const wire::Opened &opened) {
    char limits[96] = "";
    if ((opened.differs & wire::kDiffersLimit) != 0)
        snprintf(limits, sizeof limits, " with a limit of %llu bytes, not %llu",
                 static_cast<unsigned long long>(opened.limit_bytes),
                 static_cast<unsigned long long>(options->memory_limit_bytes));
    return fail(1, "cache %u of session %u was made%s%s: it is opened as it is", cache_id, session_id, limits,
                (opened.differs & wire::kDiffersSpill) != 0 ? " without spilling, which was asked for" : "");
}

// The reading side of the region that `fd` is, attached and checked.
int map_region(int fd, std::shared_ptr<Region> *made) {
    auto region = std::make_shared<Region>();
    if (int rc = region->map.open(fd, RegionAccess::Read); rc != 0) return rc;
    const Geometry &g = region->map.geometry();
    region->index.attach(region->map.base(), region->map.base(), g.data_offset, g.region_bytes);
    region->layouts.attach(region->map.base(), g.data_offset, g.region_bytes);
    *made = std::move(region);
    return 0;
}

} // namespace

Region::~Region() {
    if (still_has_spill_file()) close(spill_file());
}

void Region::set_spill_file(Fd file) {
    struct stat st {};
    if (still_has_spill_file() || fstat(file.get(), &st) != 0) return;
    // Later it is the same file, and others may be reading.
    if (spill_file() < 0) device_ = st.st_dev, inode_ = st.st_ino;
    // rel: with the two
    spill_file_.store(file.release(), std::memory_order_release);
}

bool Region::still_has_spill_file() const {
    struct stat st {};
    const int fd = spill_file();
    return fd >= 0 && fstat(fd, &st) == 0 && st.st_dev == device_ && st.st_ino == inode_;
}

OpenUse::~OpenUse() {
    if (!connection->of_this_process() || !connection->alive()) return;
    connection->uses.erase(id.region_id);
    wire::Message message{};
    message.header.type = static_cast<uint32_t>(wire::Type::Close);
    message.u.region = id;
    const KeepError keep; // of the call that this ends
    (void)connection->request(
        message, connection->config().timeout_ns); // a server that ended meanwhile takes the slot back by itself
}

WriterUse::~WriterUse() {
    spiller.reset(); // waits for what is being written
    if (writer) writer->seal_all();
    if (spill_file_) forget_in_child(spill_file_.get());
}

int WriterUse::grant(uint64_t bytes, int refusal, int64_t timeout_ns, Run *run) {
    wire::Message message{};
    message.header.type = static_cast<uint32_t>(wire::Type::SpillGrant);
    wire::Spill &spill = message.u.spill;
    spill.region_id = open_->id.region_id;
    spill.epoch = attached_.epoch;
    spill.slot = attached_.slot;
    spill.bytes = bytes;
    spill.len = static_cast<uint64_t>(refusal);
    if (int rc = open_->connection->request(message, timeout_ns); rc != 0) return rc;
    *run = {spill.segment, spill.len, spill.seq};
    return 0;
}

int WriterUse::attach(int64_t timeout_ns) {
    wire::Message message{};
    message.header.type = static_cast<uint32_t>(wire::Type::Attach);
    message.u.region = open_->id;
    Fd fds[2];
    Connection &connection = *open_->connection;
    if (int rc = connection.request(message, timeout_ns, fds); rc != 0) return rc;
    if (!fds[0])
        return fail(CACHE_EIO, "the server sent no descriptor for writing; is this process out of descriptors?");
    if (int rc = map_.open(fds[0].get(), RegionAccess::Write); rc != 0) return rc;
    const RegionHeader &mine = *open_->region->map.header(), &theirs = *map_.header();
    const wire::Attached attached = attached_ = message.u.attached;
    if (mine.region_id != theirs.region_id || mine.created_ns != theirs.created_ns ||
        !(map_.geometry() == open_->region->map.geometry()))
        return fail(CACHE_EGONE, "cache %u of session %u was destroyed and made anew: open it again", mine.cache_id,
                    mine.session_id);
    if (attached.slot >= map_.geometry().slots)
        return fail(CACHE_ECORRUPT, "the server gave out slot %u of %llu", attached.slot,
                    static_cast<unsigned long long>(map_.geometry().slots));
    writer.emplace(map_, open_->region->map, attached.slot, attached.epoch, connection, open_->region->layouts);
    spill_file_ = std::move(fds[1]);
    if (spill_file_) close_in_child(spill_file_.get());
    if (spill_file_ && map_.geometry().spill_segments != 0)
        spiller.emplace(map_, attached.slot, spill_file_.get(), *writer, *this);
    return 0;
}

int WriterUse::request(wire::Type type, int64_t timeout_ns, wire::Message &message) {
    message.header.type = static_cast<uint32_t>(type);
    message.u.build.region_id = open_->id.region_id;
    message.u.build.session_id = open_->id.session_id;
    message.u.build.cache_id = open_->id.cache_id;
    return open_->connection->request(message, timeout_ns);
}

int open_cache(cache_client &client, uint32_t session_id, uint32_t cache_id, const cache_options *options,
               cache **handle) {
    wire::Message message{};
    if (int rc = open_message(session_id, cache_id, options, message); rc != 0) return rc;
    const uint32_t flags = message.u.open.flags;
    std::lock_guard lock(this_process().mutex);
    std::shared_ptr<Connection> connection;
    if (int rc = client.here(&connection); rc != 0) return rc;
    Fd fds[2];
    if (int rc = connection->request(message, client.config.timeout_ns, fds); rc != 0) return rc;
    const wire::Opened opened = message.u.opened;
    const uint64_t region_id = opened.region_id;
    std::shared_ptr<OpenUse> open = connection->uses[region_id].lock();
    if (!open) {
        open = std::make_shared<OpenUse>(connection, wire::Region{region_id, session_id, cache_id});
        connection->uses[region_id] = open;
        if (!fds[0]) return fail(CACHE_EIO, "the server sent no descriptor; is this process out of descriptors?");
        if (int rc = map_region(fds[0].get(), &open->region); rc != 0) return rc;
    }
    if (fds[1]) open->region->set_spill_file(std::move(fds[1]));
    auto made = std::make_unique<cache>();
    made->config = client.config;
    made->region = open->region;
    made->open = std::move(open);
    made->flags = flags;
    *handle = made.release();
    return opened.differs == 0 ? 0 : say_differences(session_id, cache_id, options, opened);
}

int close_cache(cache *handle) {
    if (WriterUse *const use = handle->writer_if_any()) {
        const auto mine = [&]() -> cache_reservation * {
            std::lock_guard lock(use->reservations_mutex);
            for (cache_reservation *r = use->reservations; r != nullptr; r = r->next)
                if (r->handle == handle) return r;
            return nullptr;
        };
        for (cache_reservation *open = mine(); open != nullptr; open = mine())
            (void)end_reservation(open, false);
        if (use->spiller) use->spiller->drain();
    }
    std::lock_guard lock(this_process().mutex);
    delete handle;
    return 0;
}

} // namespace libcache

using libcache::leak;

int cache_client::here(std::shared_ptr<libcache::Connection> *found) {
    if (connection->of_this_process()) return *found = connection, 0;
    if (int rc = libcache::Connection::to(config, found); rc != 0) return rc;
    leak(connection); // the parent's
    connection = *found;
    return 0;
}

void cache_client::forget() {
    leak(connection);
    delete this;
}

int cache_client::request(libcache::wire::Type type, libcache::wire::Message &message) {
    std::shared_ptr<libcache::Connection> found;
    {
        std::lock_guard lock(libcache::this_process().mutex);
        if (int rc = here(&found); rc != 0) return rc;
    }
    message.header.type = static_cast<uint32_t>(type);
    return found->request(message, config.timeout_ns);
}

libcache::SpilledImages &cache::images() {
    using namespace libcache;
    // acq pairs with the CAS below: the list was made before its pointer
    ViewImages *known = images_.load(std::memory_order_acquire);
    while (known == nullptr || known->process != &this_process()) {
        auto fresh = std::make_unique<ViewImages>();
        fresh->process = &this_process();
        if (images_.compare_exchange_strong(known, fresh.get(), std::memory_order_acq_rel, std::memory_order_acquire))
            known = fresh.release(); // the parent's, if there was one, stays: its views may be looked at
    }
    return known->images;
}

int cache::gone() const {
    return libcache::fail(CACHE_EGONE,
                          "cache %u of session %u was destroyed: close the handle and open the cache again, it will "
                          "be empty",
                          open->id.cache_id, open->id.session_id);
}

int cache::here(std::shared_ptr<libcache::Connection> *found) {
    if (open->connection->of_this_process()) return *found = open->connection, 0;
    std::lock_guard lock(libcache::this_process().mutex);
    return libcache::Connection::to(config, found);
}

// The first write of a process through this handle.
int cache::attach(libcache::WriterUse **found) {
    using namespace libcache;
    std::lock_guard lock(this_process().mutex);
    if (writer_owner_ && writer_owner_->process == &this_process()) return *found = writer_owner_.get(), 0;
    std::shared_ptr<OpenUse> here = open;
    if (!open->connection->of_this_process()) { // a forked child: a connection and a slot of its own
        std::shared_ptr<Connection> connection;
        if (int rc = Connection::to(config, &connection); rc != 0) return rc;
        here = connection->uses[open->id.region_id].lock();
        if (!here) {
            here = std::make_shared<OpenUse>(connection, open->id);
            here->region = region;
            connection->uses[open->id.region_id] = here;
        }
    }
    std::shared_ptr<WriterUse> use = here->writer.lock();
    if (!use) {
        use = std::make_shared<WriterUse>(here);
        if (int rc = use->attach(config.timeout_ns); rc != 0) return rc;
        here->writer = use;
    }
    leak(writer_owner_); // the parent's, if there is one
    writer_owner_ = std::move(use);
    *found = writer_owner_.get();
    writer_.store(*found, std::memory_order_release); // pairs with writer()
    return 0;
}

cache::~cache() {
    using namespace libcache;
    if (ViewImages *const known = images_.load(std::memory_order_acquire);
        known != nullptr && known->process == &this_process())
        delete known;
    if (writer_owner_ && writer_owner_->process != &this_process()) leak(writer_owner_);
    if (!open->connection->of_this_process()) {
        open->region.reset(); // the mapping goes with the last handle, which holds it itself
        leak(open);
    }
}
