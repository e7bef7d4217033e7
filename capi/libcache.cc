// SPDX-License-Identifier: Apache-2.0
// The C ABI over core/client: checks pointers and structure sizes, and stops exceptions. What each call does stands in
// libcache.h.
#include "capi/libcache.h"

#include "core/client/read_usual.h"
#include "core/common/error.h"
#include "core/control/paths.h"
#include "core/store/stats.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sys/syscall.h>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <unistd.h>
#include <utility>

#define LIBCACHE_EXPORT extern "C" __attribute__((visibility("default")))

using namespace libcache;

static_assert(sizeof(cache_column) == 64 && std::is_trivially_copyable_v<cache_column>);
static_assert(sizeof(cache_view) == 64 && std::is_trivially_copyable_v<cache_view>);

namespace {

// Runs a call; what it throws becomes a code.
template <typename Call> auto guarded(Call call) noexcept -> decltype(call()) {
    try {
        return call();
    } catch (const std::bad_alloc &) {
        return fail(CACHE_ENOMEM, "this process is out of memory");
    } catch (const std::exception &e) {
        return fail(CACHE_EIO, "%s", e.what());
    }
}

int null_argument(const char *name) {
    return fail(CACHE_EINVAL, "%s is NULL", name);
}

// Copies what the caller's structure has of ours; 0, or CACHE_EINVAL if it asks for what this library does not know.
template <typename Options> int copy_options(const Options *given, Options *options, const char *name) {
    *options = {};
    options->size = sizeof *options;
    if (given == nullptr) return 0;
    if (given->size < sizeof(uint32_t) || given->size > 65536)
        return fail(CACHE_EINVAL, "%s.size is %u; set it to sizeof(%s)", name, given->size, name);
    memcpy(options, given, std::min<size_t>(given->size, sizeof *options));
    const char *const bytes = reinterpret_cast<const char *>(given);
    for (size_t i = sizeof *options; i < given->size; i++)
        if (bytes[i] != 0)
            return fail(CACHE_ENOTSUP, "%s has a field at byte %zu that libcache %s does not know", name, i,
                        cache_version());
    options->size = sizeof *options;
    return 0;
}

// Writes as much of `from` as the caller's structure has room for.
template <typename Stats> int copy_stats(const Stats &from, Stats *to, const char *name) {
    const uint32_t size = to->size;
    if (size < sizeof(uint32_t)) return fail(CACHE_EINVAL, "%s.size is %u; set it to sizeof(%s)", name, size, name);
    memcpy(to, &from, std::min<size_t>(size, sizeof from));
    if (size > sizeof from)
        memset(reinterpret_cast<char *>(to) + sizeof from, 0, size - sizeof from); // of a newer header
    to->size = size;
    return 0;
}

int parse_port(const char *text, const char *name, unsigned *port) {
    const char *const end = text + strlen(text);
    const auto [stop, error] = std::from_chars(text, end, *port);
    if (error != std::errc() || stop != end || *port < 1025 || *port > 65535)
        return fail(CACHE_EINVAL, "%s is '%s': a port is a number from 1025 to 65535", name, text);
    return 0;
}

int choose_port(const cache_client_options &options, unsigned *port) {
    *port = options.port;
    if (*port != 0) {
        if (*port >= 1025 && *port <= 65535) return 0;
        return fail(CACHE_EINVAL, "port %u is not within the required interval of [1025, 65535]", *port);
    }
    for (const char *name : {"LIBCACHE_PORT", "MS_CACHE_PORT"})
        if (const char *text = getenv(name); text != nullptr && *text != 0) return parse_port(text, name, port);
    *port = CACHE_DEFAULT_PORT;
    return 0;
}

int make_config(const cache_client_options *given, ClientConfig *config) {
    cache_client_options options;
    if (int rc = copy_options(given, &options, "cache_client_options"); rc != 0) return rc;
    if (options.hostname != nullptr && strcmp(options.hostname, "127.0.0.1") != 0)
        return fail(CACHE_EINVAL,
                    "hostname is '%s': now cache client has to be on the same host with cache server, "
                    "127.0.0.1",
                    options.hostname);
    if (options.timeout_ms < 0)
        return fail(CACHE_EINVAL, "timeout_ms is %lld; it is a positive number, or 0 for 60000",
                    static_cast<long long>(options.timeout_ms));
    const int64_t timeout_ms = options.timeout_ms == 0 ? 60'000 : std::min<int64_t>(options.timeout_ms, 1LL << 40);
    config->timeout_ns = timeout_ms * 1'000'000;
    if (int rc = choose_port(options, &config->port); rc != 0) return rc;
    const char *chosen = getenv("LIBCACHE_DIR"); // a folder that was named may be another user's
    config->own_folder = options.socket_path == nullptr && (chosen == nullptr || *chosen == 0);
    config->socket_path = absolute_socket_path(
        options.socket_path != nullptr ? options.socket_path : socket_path(server_folder(geteuid()), config->port));
    return 0;
}

// Names and labels are shown to people and written into JSON.
bool is_utf8(const char *text) {
    const auto *at = reinterpret_cast<const unsigned char *>(text);
    while (*at != 0) {
        const unsigned lead = *at++;
        const int follow = lead < 0x80                   ? 0
                           : lead >= 0xc2 && lead < 0xe0 ? 1
                           : lead >= 0xe0 && lead < 0xf0 ? 2
                           : lead >= 0xf0 && lead < 0xf5 ? 3
                                                         : -1;
        if (follow < 0) return false;
        if (follow >= 2) { // no overlong forms, no surrogates, nothing above U+10FFFF
            const unsigned next = *at;
            if ((lead == 0xe0 && next < 0xa0) || (lead == 0xed && next > 0x9f) || (lead == 0xf0 && next < 0x90) ||
                (lead == 0xf4 && next > 0x8f))
                return false;
        }
        for (int i = 0; i < follow; i++)
            if ((*at++ & 0xc0) != 0x80) return false;
    }
    return true;
}

template <size_t N, size_t M> void copy_string(char (&to)[N], const char (&from)[M]) {
    const size_t length = strnlen(from, std::min(N, M) - 1);
    memcpy(to, from, length);
    to[length] = 0;
}

void stats_of(const wire::Entry &e, cache_stats *s) {
    *s = {};
    s->size = sizeof *s;
    s->session_id = e.session_id;
    s->cache_id = e.cache_id;
    s->huge_pages = e.huge_pages;
    s->rows_in_memory = e.rows;
    s->rows_spilled = e.rows_spilled;
    s->row_bytes = e.row_bytes;
    s->limit_bytes = e.limit_bytes;
    s->charged_bytes = e.charged_bytes;
    s->granted_bytes = e.granted_bytes;
    s->used_bytes = e.used_bytes;
    s->dead_bytes = e.dead_bytes;
    s->index_bytes = e.index_bytes;
    s->free_bytes = e.free_bytes;
    s->largest_free_bytes = e.largest_free_bytes;
    s->index_levels = e.index_levels;
    s->layouts = e.layouts;
    s->writers = e.writers;
    s->generation = e.generation;
    s->readers = e.readers;
    s->populated_bytes = e.populated_bytes;
    s->huge_page_bytes = e.huge_page_bytes;
    s->spilled_bytes = e.spilled_bytes;
    s->spill_file_bytes = e.spill_file_bytes;
    s->page_table_bytes = -1; // of a process's own mapping
    s->idle_ms = e.idle_ms;
    s->state = e.state;
    s->kept = e.kept;
    copy_string(s->tag, e.tag);
    copy_string(s->label, e.label);
}

int check_session_name(const char *name) {
    const size_t length = strlen(name);
    if (length == 0 || length > CACHE_MAX_NAME_BYTES)
        return fail(CACHE_EINVAL, "a session's name has 1 to %u bytes, not %zu", CACHE_MAX_NAME_BYTES, length);
    for (size_t i = 0; i < length; i++)
        if (static_cast<unsigned char>(name[i]) < 32 || name[i] == 127)
            return fail(CACHE_EINVAL, "a session's name has no control characters; byte %zu is %d", i, name[i]);
    return is_utf8(name) ? 0 : fail(CACHE_EINVAL, "the session's name is not UTF-8");
}

// `name` NULL: a new session without one.
int make_session(cache_client &client, const char *name, uint32_t flags, uint32_t *session_id) {
    wire::Message message{};
    message.u.session.flags = flags;
    if (name != nullptr) {
        if (int rc = check_session_name(name); rc != 0) return rc;
        memcpy(message.u.session.name, name, strlen(name));
    }
    const int rc = client.request(name ? wire::Type::SessionOpen : wire::Type::SessionCreate, message);
    if (rc == 0) *session_id = message.u.session.session_id;
    return rc;
}

constexpr uint32_t kMostDestroyed = 1 << 16; // more than a server can have

// What is live comes first, in order, then what was destroyed and is still mapped. Whatever the server answers, it
// ends.
int list_all(cache_client &client, cache_list_callback callback, void *argument) {
    wire::List last{};
    for (int calls = 0;;) {
        wire::Message message{};
        message.u.list = last;
        const int rc = client.request(wire::Type::List, message);
        if (rc == CACHE_ENOTFOUND && last.started == wire::kListDestroyed) return calls;
        if (rc == CACHE_ENOTFOUND) {
            last = {0, 0, wire::kListDestroyed, 0};
            continue;
        }
        if (rc != 0) return rc;
        const wire::Entry &entry = message.u.entry;
        if (last.started == 1 && std::tie(entry.session_id, entry.cache_id) <= std::tie(last.session_id, last.cache_id))
            return fail(CACHE_EVERSION,
                        "the server's listing does not go on after cache %u of session %u: use server and library of "
                        "one build",
                        last.cache_id, last.session_id);
        // A server that knows no listing of destroyed caches answers with live ones.
        if (last.started == wire::kListDestroyed && (entry.state != 2 || last.reserved == kMostDestroyed)) return calls;
        cache_stats stats;
        char name[sizeof entry.name];
        stats_of(entry, &stats);
        copy_string(name, entry.name);
        const cache_list_entry line{sizeof line,
                                    entry.session_id,
                                    name,
                                    entry.has_cache != 0 ? &stats : nullptr,
                                    entry.pids,
                                    std::min<uint32_t>(entry.n_pids, std::size(entry.pids)),
                                    entry.kept != 0 ? uint32_t{CACHE_SESSION_KEEP} : 0};
        calls++;
        if (const int stop = callback(&line, argument); stop != 0) return stop;
        if (last.started == wire::kListDestroyed)
            last.reserved++;
        else
            last = {entry.session_id, entry.cache_id, 1, entry.has_cache};
    }
}

void info_of(const cache_client &client, const wire::Info &i, cache_server_stats *s) {
    *s = {};
    s->port = i.port;
    s->tcp_port = i.tcp_port;
    s->workers = i.workers;
    s->log_level = i.log_level;
    s->supervised = i.supervised;
    s->keeper_pid = i.keeper_pid;
    s->broker_pid = i.broker_pid;
    s->version_major = i.version_major;
    s->version_minor = i.version_minor;
    s->version_patch = i.version_patch;
    s->huge_pages = i.huge_pages;
    s->generation = i.generation;
    s->memory_limit_bytes = i.memory_limit_bytes;
    s->memory_used_bytes = i.memory_used_bytes;
    s->sessions = i.sessions;
    s->caches = i.caches;
    s->clients = i.clients;
    s->messages = i.messages;
    s->headroom_bytes = i.headroom_bytes;
    s->available_bytes = i.available_bytes;
    s->spill_limit_bytes = i.spill_limit_bytes;
    s->spill_used_bytes = i.spill_used_bytes;
    copy_string(s->hostname, i.hostname);
    copy_string(s->spill_dir, i.spill_dir);
    copy_string(s->backing_reason, i.backing_reason);
    copy_string(s->log_path, i.log_path);
    copy_string(s->server_path, i.program);
    snprintf(s->socket_path, sizeof s->socket_path, "%s", client.config.socket_path.c_str());
}

// The connection closes when nothing is served any more; the process itself ends a moment later.
int stop_server(cache_client &client) {
    wire::Message message{};
    if (int rc = client.request(wire::Type::ServerInfo, message); rc != 0) return rc;
    // -1 where the server is in a pid namespace that is not ours: then the connection has to do
    const Fd keeper(static_cast<int>(syscall(SYS_pidfd_open, message.u.info.keeper_pid, 0)));
    std::shared_ptr<Connection> connection;
    {
        std::lock_guard lock(this_process().mutex);
        if (int rc = client.here(&connection); rc != 0) return rc;
    }
    message = {};
    message.header.type = static_cast<uint32_t>(wire::Type::Stop);
    const int64_t timeout_ns = client.config.timeout_ns;
    if (int rc = connection->request(message, timeout_ns); rc != 0) return rc;
    if (int rc = connection->wait_closed(timeout_ns); rc != 0) return rc;
    if (keeper && wait_readable(keeper.get(), now_ns() + timeout_ns) == 0)
        return fail(CACHE_ETIMEOUT, "the server on port %u serves no more, but its process has not ended",
                    client.config.port);
    return 0;
}

// What is not the usual read; of its own so that cache_get needs no frame for it.
[[gnu::noinline]] int get_any_row(cache *handle, int64_t row_id, cache_view *view) noexcept {
    if (view == nullptr) return null_argument("view");
    view->cache = nullptr;
    if (handle == nullptr) return null_argument("handle");
    return guarded([&] { return get_row(*handle, row_id, view); });
}

[[gnu::noinline]] int any_column(const cache_view *view, uint32_t i, cache_column *column) noexcept {
    if (view == nullptr) return null_argument("view");
    if (column == nullptr) return null_argument("column");
    if (view->cache == nullptr) return fail(CACHE_EINVAL, "the view holds no row: a miss, or it was released");
    return view_column(*view, i, column);
}

} // namespace

LIBCACHE_EXPORT int cache_connect(const cache_client_options *options, cache_client **client) noexcept {
    if (client == nullptr) return null_argument("client");
    *client = nullptr;
    return guarded([&] {
        auto made = std::make_unique<cache_client>();
        if (int rc = make_config(options, &made->config); rc != 0) return rc;
        std::lock_guard lock(this_process().mutex);
        if (int rc = Connection::to(made->config, &made->connection); rc != 0) return rc;
        *client = made.release();
        return 0;
    });
}

LIBCACHE_EXPORT int cache_disconnect(cache_client *client) noexcept {
    // In a forked child the connection is the parent's, whose threads may have been changing it at the fork.
    if (client != nullptr && !client->connection->of_this_process())
        return guarded([&] { return client->forget(), 0; });
    delete client;
    return 0;
}

LIBCACHE_EXPORT int cache_session_create(cache_client *client, uint32_t *session_id) noexcept {
    if (client == nullptr) return null_argument("client");
    if (session_id == nullptr) return null_argument("session_id");
    return guarded([&] { return make_session(*client, nullptr, 0, session_id); });
}

LIBCACHE_EXPORT int cache_session_create_with(cache_client *client, const cache_session_options *options,
                                              uint32_t *session_id) noexcept {
    if (client == nullptr) return null_argument("client");
    if (session_id == nullptr) return null_argument("session_id");
    return guarded([&] {
        cache_session_options read;
        if (int rc = copy_options(options, &read, "cache_session_options"); rc != 0) return rc;
        if ((read.flags & ~uint32_t{CACHE_SESSION_KEEP}) != 0)
            return fail(CACHE_EINVAL, "cache_session_options.flags 0x%x has bits that mean nothing", read.flags);
        return make_session(*client, read.name, read.flags, session_id);
    });
}

LIBCACHE_EXPORT int cache_session_open(cache_client *client, const char *name, uint32_t *session_id) noexcept {
    if (client == nullptr) return null_argument("client");
    if (name == nullptr) return null_argument("name");
    if (session_id == nullptr) return null_argument("session_id");
    return guarded([&] { return make_session(*client, name, 0, session_id); });
}

LIBCACHE_EXPORT int cache_session_destroy(cache_client *client, uint32_t session_id) noexcept {
    if (client == nullptr) return null_argument("client");
    return guarded([&] {
        wire::Message message{};
        message.u.session.session_id = session_id;
        return client->request(wire::Type::SessionDestroy, message);
    });
}

LIBCACHE_EXPORT int cache_list(cache_client *client, cache_list_callback callback, void *argument) noexcept {
    if (client == nullptr) return null_argument("client");
    if (callback == nullptr) return null_argument("callback");
    return guarded([&] { return list_all(*client, callback, argument); });
}

LIBCACHE_EXPORT int cache_server_info(cache_client *client, cache_server_stats *stats) noexcept {
    if (client == nullptr) return null_argument("client");
    if (stats == nullptr) return null_argument("stats");
    return guarded([&] {
        wire::Message message{};
        if (int rc = client->request(wire::Type::ServerInfo, message); rc != 0) return rc;
        cache_server_stats all;
        info_of(*client, message.u.info, &all);
        return copy_stats(all, stats, "cache_server_stats");
    });
}

LIBCACHE_EXPORT int cache_server_stop(cache_client *client) noexcept {
    if (client == nullptr) return null_argument("client");
    return guarded([&] { return stop_server(*client); });
}

LIBCACHE_EXPORT int cache_open(cache_client *client, uint32_t session_id, uint32_t cache_id, const cache_options *given,
                               cache **handle) noexcept {
    if (handle == nullptr) return null_argument("handle");
    *handle = nullptr;
    if (client == nullptr) return null_argument("client");
    return guarded([&] {
        cache_options options;
        if (int rc = copy_options(given, &options, "cache_options"); rc != 0) return rc;
        if (options.label != nullptr && !is_utf8(options.label))
            return fail(CACHE_EINVAL, "cache_options.label is not UTF-8");
        return open_cache(*client, session_id, cache_id, &options, handle);
    });
}

LIBCACHE_EXPORT int cache_close(cache *handle) noexcept {
    if (handle == nullptr) return 0;
    return guarded([&] { return close_cache(handle); });
}

LIBCACHE_EXPORT int cache_destroy(cache_client *client, uint32_t session_id, uint32_t cache_id) noexcept {
    if (client == nullptr) return null_argument("client");
    return guarded([&] {
        wire::Message message{};
        message.u.region = {0, session_id, cache_id};
        return client->request(wire::Type::Destroy, message);
    });
}

LIBCACHE_EXPORT int cache_stat(cache *handle, cache_stats *stats) noexcept {
    if (handle == nullptr) return null_argument("handle");
    if (stats == nullptr) return null_argument("stats");
    cache_stats all{};
    return guarded([&] {
        region_statistics(handle->region->map, &all);
        if (stats->size > offsetof(cache_stats, page_table_bytes)) // reading it costs: only for those who get it
            all.page_table_bytes = handle->region->page_tables.of(handle->region->map.base());
        return copy_stats(all, stats, "cache_stats");
    });
}

LIBCACHE_EXPORT int64_t cache_check(cache *handle, uint32_t flags, cache_check_callback report,
                                    void *argument) noexcept {
    if (handle == nullptr) return null_argument("handle");
    return guarded([&] { return check_cache(*handle, flags, report, argument); });
}

LIBCACHE_EXPORT int cache_put(cache *handle, int64_t row_id, const cache_column *columns, uint32_t n_columns) noexcept {
    if (handle == nullptr) return null_argument("handle");
    return guarded([&] { return put_row(*handle, row_id, columns, n_columns); });
}

LIBCACHE_EXPORT int cache_reserve(cache *handle, int64_t row_id, cache_column *columns, uint32_t n_columns,
                                  cache_reservation **reservation) noexcept {
    if (reservation == nullptr) return null_argument("reservation");
    *reservation = nullptr;
    if (handle == nullptr) return null_argument("handle");
    return guarded([&] { return reserve_row(*handle, row_id, columns, n_columns, reservation); });
}

LIBCACHE_EXPORT int cache_commit(cache_reservation *reservation) noexcept {
    if (reservation == nullptr) return null_argument("reservation");
    return guarded([&] { return end_reservation(reservation, true); });
}

LIBCACHE_EXPORT int cache_abort(cache_reservation *reservation) noexcept {
    if (reservation == nullptr) return 0;
    return guarded([&] { return end_reservation(reservation, false); });
}

LIBCACHE_EXPORT int cache_flush(cache *handle) noexcept {
    if (handle == nullptr) return null_argument("handle");
    return guarded([&] { return flush_rows(*handle); });
}

LIBCACHE_EXPORT int cache_get(cache *handle, int64_t row_id, cache_view *view) noexcept {
    if (handle != nullptr && view != nullptr && get_usual_row(*handle, row_id, view)) [[likely]]
        return 0;
    return get_any_row(handle, row_id, view);
}

LIBCACHE_EXPORT int64_t cache_get_batch(cache *handle, const int64_t *row_ids, size_t n, cache_view *views) noexcept {
    if (handle == nullptr) return null_argument("handle");
    if (n != 0 && row_ids == nullptr) return null_argument("row_ids");
    if (n != 0 && views == nullptr) return null_argument("views");
    return guarded([&] { return get_rows(*handle, row_ids, n, views); });
}

LIBCACHE_EXPORT int64_t cache_gather(cache *handle, const int64_t *row_ids, size_t n, uint32_t column, void *dst,
                                     size_t stride, uint8_t *found) noexcept {
    if (handle == nullptr) return null_argument("handle");
    if (n != 0 && row_ids == nullptr) return null_argument("row_ids");
    if (n != 0 && dst == nullptr) return null_argument("dst");
    if (size_t bytes = 0; __builtin_mul_overflow(n, stride, &bytes))
        return fail(CACHE_EINVAL, "%zu rows of %zu bytes are more than an address can tell", n, stride);
    return guarded([&] { return gather_rows(*handle, row_ids, n, column, static_cast<char *>(dst), stride, found); });
}

LIBCACHE_EXPORT int64_t cache_contains(cache *handle, const int64_t *row_ids, size_t n, uint8_t *found) noexcept {
    if (handle == nullptr) return null_argument("handle");
    if (n != 0 && row_ids == nullptr) return null_argument("row_ids");
    if (n != 0 && found == nullptr) return null_argument("found");
    return guarded([&] { return contains_rows(*handle, row_ids, n, found); });
}

LIBCACHE_EXPORT int64_t cache_scan(cache *handle, uint64_t *cursor, int64_t *ids, size_t n) noexcept {
    if (handle == nullptr) return null_argument("handle");
    if (cursor == nullptr) return null_argument("cursor");
    if (n != 0 && ids == nullptr) return null_argument("ids");
    return guarded([&] { return scan_rows(*handle, cursor, ids, n); });
}

LIBCACHE_EXPORT int cache_view_release(cache_view *view) noexcept {
    if (view == nullptr || view->cache == nullptr) return 0;
    const bool has_image = view->reserved[5] != 0;
    cache *const handle = const_cast<cache *>(std::exchange(view->cache, nullptr));
    return has_image ? release_image(*handle, *view) : 0; // the last call: the usual release needs no frame
}

LIBCACHE_EXPORT int cache_view_columns(const cache_view *view) noexcept {
    if (view == nullptr) return null_argument("view");
    if (view->cache == nullptr) return fail(CACHE_EINVAL, "the view holds no row: a miss, or it was released");
    return static_cast<int>(view_columns(*view));
}

LIBCACHE_EXPORT int cache_view_column(const cache_view *view, uint32_t i, cache_column *column) noexcept {
    if (view != nullptr && column != nullptr && view->cache != nullptr && usual_column(*view, i, column)) [[likely]]
        return 0;
    return any_column(view, i, column);
}

LIBCACHE_EXPORT int cache_schema_set(cache *handle, const char *const *names, uint32_t n_names) noexcept {
    if (handle == nullptr) return null_argument("handle");
    if (names == nullptr) return null_argument("names");
    return guarded([&] { return set_schema(*handle, names, n_names); });
}

LIBCACHE_EXPORT int cache_schema_get(cache *handle, char *buffer, size_t *bytes) noexcept {
    if (handle == nullptr) return null_argument("handle");
    if (bytes == nullptr) return null_argument("bytes");
    return guarded([&] { return get_schema(*handle, buffer, bytes); });
}

LIBCACHE_EXPORT int cache_build_begin(cache *handle, int64_t *resume_at) noexcept {
    if (handle == nullptr) return null_argument("handle");
    if (resume_at == nullptr) return null_argument("resume_at");
    return guarded([&] { return begin_build(*handle, resume_at); });
}

LIBCACHE_EXPORT int cache_append(cache *handle, const cache_column *columns, uint32_t n_columns,
                                 int64_t *row_id) noexcept {
    if (handle == nullptr) return null_argument("handle");
    int64_t unwanted = 0;
    return guarded([&] { return append_row(*handle, columns, n_columns, row_id != nullptr ? row_id : &unwanted); });
}

LIBCACHE_EXPORT int cache_build_done(cache *handle) noexcept {
    if (handle == nullptr) return null_argument("handle");
    return guarded([&] { return end_build(*handle); });
}

LIBCACHE_EXPORT int cache_build_leave(cache *handle) noexcept {
    if (handle == nullptr) return null_argument("handle");
    return guarded([&] { return leave_build(*handle); });
}

LIBCACHE_EXPORT int cache_build_wait(cache *handle, int64_t timeout_ms) noexcept {
    if (handle == nullptr) return null_argument("handle");
    return guarded([&] { return wait_build(*handle, timeout_ms); });
}

LIBCACHE_EXPORT const char *cache_strerror(int code) noexcept {
    return code_text(code);
}
LIBCACHE_EXPORT const char *cache_last_error(void) noexcept {
    return last_error();
}
LIBCACHE_EXPORT uint32_t cache_full_cause(void) noexcept {
    return full_cause();
}
LIBCACHE_EXPORT const char *cache_version(void) noexcept {
    return "1.0.0";
}
LIBCACHE_EXPORT size_t cache_dtype_bytes(uint32_t dtype) noexcept {
    return dtype_bytes(dtype);
}
