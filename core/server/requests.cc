// SPDX-License-Identifier: Apache-2.0
// What clients ask of the broker. Each request may come twice (a new broker) and then does no harm.
#include "core/common/error.h"
#include "core/common/log.h"
#include "core/server/broker.h"
#include "core/server/spill_folder.h"
#include "core/store/stats.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace libcache {
namespace {

unsigned long long big(uint64_t n) {
    return n;
}

template <size_t N> bool ended(const char (&text)[N]) {
    return memchr(text, 0, N) != nullptr;
}

template <size_t N> void copy_text(char (&to)[N], const char *from) {
    snprintf(to, N, "%.*s", static_cast<int>(N) - 1, from);
}

constexpr uint64_t kNewCacheBytes = 4 << 20;

// The ids are the client's word for what it had open.
int gone(uint32_t session_id, uint32_t cache_id) {
    return fail(CACHE_EGONE,
                "cache %u of session %u was destroyed: close the handle and open the cache again, it will be empty",
                cache_id, session_id);
}

int check_session_name(const wire::Session &session) {
    if (!ended(session.name) || session.name[0] == 0)
        return fail(CACHE_EINVAL, "a session name has 1 to %u bytes", CACHE_MAX_NAME_BYTES);
    for (const char *c = session.name; *c; ++c)
        if (static_cast<unsigned char>(*c) < 0x20 || *c == 0x7f)
            return fail(CACHE_EINVAL, "a session name has no control characters; this one has 0x%02x",
                        static_cast<unsigned char>(*c));
    return 0;
}

// A client of a later minor version asks for what this one does not have, and can do without.
int unknown(int pid, uint32_t type) {
    log_line(LogLevel::Debug, "process %d sent a request of unknown type %u", pid, type);
    return fail(CACHE_ENOTSUP,
                "the server, of version %d.%d.%d, knows no request of type %u: the library of process %d is newer; "
                "start a server as new as that, or do without",
                CACHE_VERSION_MAJOR, CACHE_VERSION_MINOR, CACHE_VERSION_PATCH, type, pid);
}

} // namespace

// False: hang up.
bool Broker::handle_request(Connection &connection, const wire::Message &asked) {
    wire::Message answer{}, request = asked;
    int status = check_member(connection, &request);
    if (status != 0) return reply(connection, request, &answer, status);
    switch (wire::Type(request.header.type)) {
    case wire::Type::SessionCreate:
    case wire::Type::SessionOpen:
    case wire::Type::SessionDestroy: status = session_request(connection, request, &answer); break;
    case wire::Type::Open: return open(connection, request);
    case wire::Type::Attach: return attach(connection, request);
    case wire::Type::SpillGrant: return lend_spill(connection, request);
    case wire::Type::Stock: return stock(connection, request), true;
    case wire::Type::Close: status = close(connection, request); break;
    case wire::Type::Destroy: status = destroy(connection, request); break;
    case wire::Type::List: status = list(request, &answer); break;
    case wire::Type::BuildBegin:
    case wire::Type::BuildDone:
    case wire::Type::BuildLeave: status = build(connection, request, &answer); break;
    case wire::Type::ServerInfo: server_info(&answer.u.info); break;
    case wire::Type::Stop: // answered when the name and the port are gone
        log_line(LogLevel::Info, "process %d asks the server to end", connection.pid);
        stop_request_.emplace(connection.id, request);
        ending_ = true;
        return true;
    default:
        if (request.header.number == 0) return true; // a hint: nobody waits for an answer
        status = unknown(connection.pid, request.header.type);
    }
    return reply(connection, request, &answer, status);
}

// ---- sessions

int Broker::session_request(const Connection &connection, const wire::Message &request, wire::Message *answer) {
    const Asker asker{connection.id, request.header.number};
    const wire::Session &asked = request.u.session;
    if (wire::Type(request.header.type) != wire::Type::SessionDestroy &&
        (asked.flags & ~uint32_t{CACHE_SESSION_KEEP}) != 0)
        return fail(CACHE_EINVAL, "unknown flags 0x%x for making a session", asked.flags);
    uint32_t id = asked.session_id;
    int rc = 0;
    switch (wire::Type(request.header.type)) {
    case wire::Type::SessionCreate: rc = caches_->create_session(asker, asked.flags, &id); break;
    case wire::Type::SessionOpen:
        rc = check_session_name(asked);
        if (rc == 0) rc = caches_->open_session(asker, asked.name, asked.flags, &id);
        break;
    default:
        rc = caches_->destroy_session(id);
        if (rc == CACHE_ENOSESSION && request.header.repeated) rc = 0; // done by the broker that was asked first
    }
    if (rc != 0) return rc;
    answer->u.session.session_id = id;
    copy_text(answer->u.session.name, caches_->session_name(id));
    return 0;
}

// ---- opening

int Broker::check_open(const wire::Message &request) const {
    const wire::Open &o = request.u.open;
    if (!ended(o.tag) || !ended(o.label) || strlen(o.tag) > CACHE_MAX_TAG_BYTES)
        return fail(CACHE_EINVAL, "a tag has at most %u bytes, a label at most %u", CACHE_MAX_TAG_BYTES,
                    CACHE_MAX_LABEL_BYTES);
    if ((o.flags & ~uint32_t{CACHE_READ_ONLY | CACHE_NO_CREATE | CACHE_BUILD}) != 0)
        return fail(CACHE_EINVAL, "unknown flags 0x%x for opening a cache", o.flags);
    if (int rc = caches_->require_session(o.session_id); rc != 0) return rc;
    if (o.spill != 0 && server_.config().spill_dir[0] == 0)
        return fail(CACHE_ENOTSUP,
                    "Server is not set up with spill support: start it with --spilldir, or open the cache without "
                    "spilling");
    return 0;
}

int Broker::join(const wire::Message &request, const CacheRegion &region) const {
    const wire::Open &o = request.u.open;
    if (!o.has_tag || region.tag()[0] == 0 || strcmp(o.tag, region.tag()) == 0) return 0;
    return fail(CACHE_ECONFLICT,
                "cache %u of session %u holds '%.80s' (tag %.20s), not '%.80s' (tag %.20s): use another cache id",
                o.cache_id, o.session_id, region.label(), region.tag(), o.has_label ? o.label : "", o.tag);
}

// Begins a cache as it was asked for.
int Broker::open_new(Connection &connection, const wire::Message &request, CacheRegion **region) {
    const wire::Open &o = request.u.open;
    if ((o.flags & CACHE_NO_CREATE) != 0)
        return fail(CACHE_ENOTFOUND, "session %u has no cache %u, and none was to be made", o.session_id, o.cache_id);
    if (o.limit_bytes != 0 && o.limit_bytes < kMinLimitBytes)
        return fail(CACHE_EINVAL, "a limit of %llu bytes is too small for a cache: the smallest is %llu",
                    big(o.limit_bytes), big(kMinLimitBytes));
    if (o.limit_bytes > ledger_->limit())
        return full_of(CACHE_FULL_SERVER,
                       fail(CACHE_EFULL,
                            "a limit of %llu bytes is more than the %llu bytes that the server may use: ask for less, "
                            "or for 0, which takes what there is",
                            big(o.limit_bytes), big(ledger_->limit())));
    // What others hold is theirs, but for old caches, which will make room.
    const uint64_t open_ended = std::min(ledger_->left() + caches_->droppable_bytes(), ledger_->limit());
    const uint64_t limit = o.limit_bytes != 0 ? o.limit_bytes : round_down(open_ended, kChunkBytes);
    if (limit < kMinLimitBytes)
        return full_of(ledger_->shortage_cause(),
                       fail(CACHE_EFULL, "the server has no memory for a new cache: %s", ledger_->shortage().c_str()));
    // Its tables are made at once, and what is dropped now is free at once; the index waits by itself.
    if (ledger_->room() < kNewCacheBytes && caches_->drop_idle(kNewCacheBytes, "a new cache needs its memory"))
        caches_->tick();
    const CacheWish wish{limit,
                         o.expected_rows,
                         backing_.huge(),
                         (o.flags & CACHE_BUILD) != 0,
                         o.spill != 0 ? spill_segments_of(server_.config().spill_dir) : 0,
                         o.has_tag ? o.tag : "",
                         o.has_label ? o.label : ""};
    return caches_->create({connection.id, request.header.number}, {o.session_id, o.cache_id}, wish, region);
}

bool Broker::open(Connection &connection, const wire::Message &request) {
    const wire::Open &o = request.u.open;
    wire::Message answer{};
    int rc = check_open(request);
    CacheRegion *region = nullptr;
    if (rc == 0) {
        region = caches_->find(Caches::Name{o.session_id, o.cache_id});
        rc = region ? join(request, *region) : open_new(connection, request, &region);
    }
    if (rc != 0) return reply(connection, request, &answer, rc);
    if (region->state() == CacheRegion::State::Live) return reply_opened(connection, request, *region);
    wait(waiting_opens_, {connection.id, region->names().region_id, request});
    return true;
}

// In place of what the same client waited for and has given up: it has one request under way, and a queue that grows
// with every message would be memory that a client has of ours as long as a disk is slow.
void Broker::wait(std::vector<Waiting> &queue, const Waiting &fresh) {
    std::erase_if(queue, [&](const Waiting &w) { return w.conn_id == fresh.conn_id; });
    queue.push_back(fresh);
}

bool Broker::reply_opened(Connection &connection, const wire::Message &request, CacheRegion &region) {
    wire::Message answer{};
    const Fd file = open_again(region.file(), O_RDONLY);
    const Fd spill_file = region.spills() ? open_again(region.spill_file(), O_RDONLY) : Fd();
    if (!file || (region.spills() && !spill_file))
        return reply(connection, request, &answer,
                     fail(CACHE_EIO, "the server cannot open the region again: %s", strerror(errno)));
    caches_->note_open(connection.id, region.names().region_id);
    wire::Opened &opened = answer.u.opened;
    opened.region_id = region.names().region_id;
    opened.region_bytes = region.map().geometry().region_bytes;
    opened.limit_bytes = region.limit_bytes();
    opened.created = caches_->was_created_by(region, {connection.id, request.header.number});
    opened.spill = region.spills();
    // Joining ignores nothing silently.
    const wire::Open &asked = request.u.open;
    if (asked.limit_bytes != 0 && asked.limit_bytes != region.limit_bytes()) opened.differs |= wire::kDiffersLimit;
    if (asked.spill != 0 && !region.spills()) opened.differs |= wire::kDiffersSpill;
    return reply(connection, request, &answer, 0, file.get(), spill_file.get());
}

// A cache that was being made stands, or has failed to: everybody who waits for it hears.
void Broker::cache_made(CacheRegion &region, int result) {
    const std::string text = last_error();
    const uint32_t cause = full_cause();
    std::vector<Waiting> waiting;
    for (const Waiting &w : waiting_opens_)
        if (w.region_id == region.names().region_id) waiting.push_back(w);
    std::erase_if(waiting_opens_, [&](const Waiting &w) { return w.region_id == region.names().region_id; });
    for (const Waiting &w : waiting) {
        const auto at = connections_.find(w.conn_id);
        if (at == connections_.end() || !at->second.socket) continue;
        wire::Message answer{};
        const bool sent = result == 0
                              ? reply_opened(at->second, w.request, region)
                              : reply(at->second, w.request, &answer, full_of(cause, fail(result, "%s", text.c_str())));
        if (!sent) deaf_.push_back(w.conn_id);
    }
}

// ---- writers

bool Broker::attach(Connection &connection, const wire::Message &request) {
    wire::Message answer{};
    CacheRegion *region = caches_->find(request.u.region.region_id);
    int rc = 0;
    Fd file, spill_file;
    const auto opened = [&] {
        file = open_again(region->file(), O_RDWR);
        if (region->spills()) spill_file = open_again(region->spill_file(), O_RDWR);
        return file && (spill_file || !region->spills());
    };
    if (!region || region->state() != CacheRegion::State::Live)
        rc = gone(request.u.region.session_id, request.u.region.cache_id);
    else if (!opened())
        rc = fail(CACHE_EIO, "the server cannot open the region again: %s", strerror(errno));
    if (rc == 0) {
        wire::Attached &attached = answer.u.attached;
        attached.region_id = region->names().region_id;
        rc = region->attach({connection.id, connection.pid, connection.start_time}, &attached.slot, &attached.epoch);
    }
    if (rc != 0) return reply(connection, request, &answer, rc);
    return reply(connection, request, &answer, 0, file.get(), spill_file.get());
}

bool Broker::lend_spill(Connection &connection, const wire::Message &request) {
    const wire::Spill &wish = request.u.spill;
    wire::Message answer{};
    CacheRegion *region = caches_->find(wish.region_id);
    SpillRun run{};
    const int rc =
        !region || region->state() != CacheRegion::State::Live
            ? fail(CACHE_EGONE, "the cache (region %llu) was destroyed: close the handle and open the cache again",
                   big(wish.region_id))
            : region->lend_spill(connection.id, wish, &run);
    if (rc == kSpillWait) return wait(waiting_spills_, {connection.id, wish.region_id, request}), true;
    answer.u.spill = wish;
    answer.u.spill.segment = run.segment;
    answer.u.spill.len = run.len;
    answer.u.spill.seq = run.seq;
    return reply(connection, request, &answer, rc);
}

// A job on this cache's file has come back: who waited for space asks again.
void Broker::lend_spill_again(uint64_t region_id) {
    std::vector<Waiting> waiting;
    for (const Waiting &w : waiting_spills_)
        if (w.region_id == region_id) waiting.push_back(w);
    std::erase_if(waiting_spills_, [&](const Waiting &w) { return w.region_id == region_id; });
    for (const Waiting &w : waiting) {
        const auto at = connections_.find(w.conn_id);
        if (at == connections_.end() || !at->second.socket) continue;
        if (!lend_spill(at->second, w.request)) deaf_.push_back(w.conn_id);
    }
}

void Broker::stock(Connection &connection, const wire::Message &request) {
    const wire::Want &w = request.u.want;
    ++messages_;
    if (CacheRegion *region = caches_->find(w.region_id))
        region->message(connection.id, w.slot, w.epoch, Want::unpack(w.want), w.row_id);
}

int Broker::close(Connection &connection, const wire::Message &request) {
    if (CacheRegion *region = caches_->find(request.u.region.region_id)) region->close(connection.id);
    caches_->note_closed(connection.id, request.u.region.region_id);
    return 0; // nothing to do is done
}

int Broker::build(const Connection &connection, const wire::Message &request, wire::Message *answer) {
    const wire::Build &asked = request.u.build;
    CacheRegion *region = caches_->find(asked.region_id);
    if (!region || region->state() != CacheRegion::State::Live) return gone(asked.session_id, asked.cache_id);
    answer->u.build = asked;
    if (wire::Type(request.header.type) == wire::Type::BuildDone) return region->end_build(connection.id, asked.term);
    if (wire::Type(request.header.type) == wire::Type::BuildLeave)
        return region->leave_build(connection.id, asked.term), 0;
    CacheRegion::Build begun{};
    if (int rc = region->begin_build(connection.id, &begun); rc != 0) return rc;
    answer->u.build.term = begun.term;
    answer->u.build.built = begun.built;
    return 0;
}

int Broker::destroy(const Connection &connection, const wire::Message &request) {
    const wire::Region &r = request.u.region;
    const Asker asker{connection.id, request.header.number};
    // Done already. There may be a cache of that name again, made after it was done: that one stays.
    if (request.header.repeated && caches_->has_destroyed(asker)) return 0;
    if (int rc = caches_->require_session(r.session_id); rc != 0) return rc;
    CacheRegion *region = caches_->find(Caches::Name{r.session_id, r.cache_id});
    if (!region) return fail(CACHE_ENOTFOUND, "session %u has no cache %u", r.session_id, r.cache_id);
    return caches_->destroy(*region, asker);
}

// ---- what there is

void Broker::fill_entry(const Caches::Listed &listed, wire::Entry *entry) const {
    entry->session_id = listed.session_id;
    copy_text(entry->name, caches_->session_name(listed.session_id));
    entry->kept = (caches_->session_flags(listed.session_id) & CACHE_SESSION_KEEP) != 0;
    if (!listed.region) return;
    cache_stats s{};
    s.size = sizeof s;
    region_statistics(listed.region->map(), &s);
    const CacheNames &names = listed.region->names();
    entry->cache_id = names.cache_id;
    entry->has_cache = 1;
    entry->rows = s.rows_in_memory;
    entry->rows_spilled = s.rows_spilled;
    entry->row_bytes = s.row_bytes;
    entry->limit_bytes = static_cast<int64_t>(listed.region->limit_bytes());
    entry->charged_bytes = static_cast<int64_t>(listed.region->charged());
    entry->granted_bytes = s.granted_bytes;
    entry->used_bytes = s.used_bytes;
    entry->dead_bytes = s.dead_bytes;
    entry->index_bytes = s.index_bytes;
    entry->free_bytes = s.free_bytes;
    entry->largest_free_bytes = s.largest_free_bytes;
    entry->index_levels = s.index_levels;
    entry->layouts = s.layouts;
    entry->writers = s.writers;
    entry->generation = s.generation;
    entry->readers = caches_->readers(names.region_id);
    entry->huge_pages = s.huge_pages;
    entry->populated_bytes = s.populated_bytes;
    entry->huge_page_bytes = s.huge_page_bytes;
    entry->spilled_bytes = s.spilled_bytes;
    entry->spill_file_bytes = s.spill_file_bytes;
    entry->attached = caches_->attached(*listed.region);
    entry->idle_ms = caches_->idle_ns(*listed.region) / 1'000'000;
    entry->state = 1;
    fill_openers(*listed.region, entry);
    copy_text(entry->tag, listed.region->tag());
    copy_text(entry->label, listed.region->label());
}

int Broker::list(const wire::Message &request, wire::Message *answer) {
    const wire::List &l = request.u.list;
    if (l.started == wire::kListDestroyed)
        return fill_destroyed(l.reserved, &answer->u.entry) ? 0 : fail(CACHE_ENOTFOUND, "the listing ends here");
    const Caches::Name last{l.session_id, l.cache_id};
    Caches::Listed listed{};
    if (!caches_->next(l.started ? &last : nullptr, &listed)) return fail(CACHE_ENOTFOUND, "the listing ends here");
    fill_entry(listed, &answer->u.entry);
    return 0;
}

int64_t Broker::clients() const {
    int64_t count = 0;
    for (const auto &[id, connection] : connections_)
        count += connection.stage == Stage::Up;
    return count;
}

void Broker::server_info(wire::Info *info) const {
    const ServerConfig &config = server_.config();
    info->port = config.port;
    info->tcp_port = config.tcp_port;
    info->workers = config.workers;
    info->log_level = config.log_level;
    info->supervised = keeper_.alive();
    info->huge_pages = config.huge_pages;
    info->keeper_pid = keeper_.alive() ? config.keeper_pid : 0;
    info->broker_pid = getpid();
    info->version_major = CACHE_VERSION_MAJOR;
    info->version_minor = CACHE_VERSION_MINOR;
    info->version_patch = CACHE_VERSION_PATCH;
    info->generation = static_cast<int64_t>(generation_);
    info->memory_limit_bytes = static_cast<int64_t>(ledger_->limit());
    info->memory_used_bytes = static_cast<int64_t>(ledger_->charged());
    info->headroom_bytes = static_cast<int64_t>(ledger_->headroom());
    info->available_bytes = static_cast<int64_t>(ledger_->available());
    info->spill_limit_bytes = static_cast<int64_t>(spill_.limit);
    info->spill_used_bytes = static_cast<int64_t>(spill_.used);
    info->sessions = static_cast<int64_t>(caches_->session_count());
    info->caches = static_cast<int64_t>(caches_->cache_count());
    info->clients = clients();
    info->messages = messages_;
    copy_text(info->hostname, config.hostname);
    copy_text(info->spill_dir, config.spill_dir);
    copy_text(info->backing_reason, config.backing_reason);
    copy_text(info->log_path, config.log_path);
    copy_text(info->program, config.program);
}

} // namespace libcache
