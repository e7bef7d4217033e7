// SPDX-License-Identifier: Apache-2.0
// all_dead: keeper and broker are killed while a put waits for memory, another for file space, and somebody for the end
// of a build: each ends in CACHE_ESERVER, reads go on, and when the last cache is closed nobody has its memory. Then
// server, writers, readers and their fork children are killed together: nothing of them is held by anybody, or has a
// name. Both times another server starts at once in the same place.
#include "tests/crash/doomed.h"
#include "tests/crash/spilling.h"

#include <string>

namespace {

constexpr uint32_t kPlain = 1, kSpilling = 2, kStream = 3;
constexpr int64_t kRows = 300;
constexpr size_t kFiles = 5; // the server's tables, three regions, a spill file

// No deadline of a call ends before the test's.
cache_client *connect_patiently() {
    cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
    options.timeout_ms = 3'600'000;
    cache_client *client = nullptr;
    crash::must(cache_connect(&options, &client), "cache_connect");
    return client;
}

cache *open_any(cache_client *client, uint32_t session, uint32_t cache_id) {
    if (cache_id == kPlain) return crash::open_cache(client, session, cache_id);
    if (cache_id == kSpilling) return crash::open_spilling(client, session, cache_id);
    cache_options options = CACHE_OPTIONS_INIT;
    options.memory_limit_bytes = 8 << 20;
    options.flags = CACHE_BUILD;
    cache *handle = nullptr;
    crash::must(cache_open(client, session, cache_id, &options, &handle), "cache_open of a stream");
    return handle;
}

void check_rows(cache *handle) {
    for (int64_t id = 0; id < kRows; id++)
        if (const std::string wrong = rows::check(handle, id, crash::kSpillLargest); !wrong.empty())
            test_die("process %d: %s", getpid(), wrong.c_str());
}

// Rows [0, kRows) are there, maybe by somebody else.
cache *fill(cache_client *client, uint32_t session, uint32_t cache_id) {
    cache *handle = open_any(client, session, cache_id);
    for (int64_t id = 0; id < kRows; id++)
        if (const int result = rows::put(handle, id, crash::kSpillLargest); result < 0) crash::must(result, "a put");
    if (cache_id == kSpilling) crash::must(cache_flush(handle), "cache_flush");
    return handle;
}

// Puts until one fails; every row that was there before can be read then.
void put_until_the_end(cache *handle) {
    int result = 0;
    for (int64_t id = kRows; result >= 0; id++)
        result = rows::put(handle, id, crash::kSpillLargest);
    if (result != CACHE_ESERVER) test_die("a put without a server ended in %d: %s", result, cache_last_error());
    check_rows(handle);
}

void wait_for_the_build(cache *handle) {
    if (const int result = cache_build_wait(handle, -1); result != CACHE_ESERVER)
        test_die("waiting for a build without a server ended in %d: %s", result, cache_last_error());
}

// For memory, or an index level.
bool somebody_waits(cache *handle) {
    const libcache::RegionMap &map = libcache::region_of(handle);
    for (uint32_t i = 0; i < map.header()->slots_top.load(std::memory_order_acquire); i++)
        if (map.slot(i)->want.load(std::memory_order_acquire) != 0) return true;
    return false;
}

void nobody_holds(const std::set<crash::FileId> &files, const char *when) {
    pid_t holder = 0;
    crash::until([&] { return (holder = crash::holder_of(files)) == 0; },
                 (std::string("nobody holds memory or file space ") + when).c_str());
}

// Of what began with nothing, and has begun again.
void start_again(crash::Arena &arena, const crash::SpillFolder &folder, int64_t memory) {
    if (!folder.empty()) test_die("a dead server has left something in %s", folder.path.c_str());
    if (arena.client != nullptr) cache_disconnect(arena.client);
    test_server_start_again(arena.server, folder.arguments);
    arena.client = connect_patiently();
    const cache_server_stats info = crash::server_info(arena.client);
    if (info.sessions != 0 || info.caches != 0 || info.memory_used_bytes != memory)
        test_die("a new server has %ld sessions and %ld caches, and is charged %ld bytes instead of %ld",
                 long(info.sessions), long(info.caches), long(info.memory_used_bytes), long(memory));
    crash::must(cache_session_create(arena.client, &arena.session_id), "cache_session_create");
}

std::set<crash::FileId> files_of(const crash::Arena &arena) {
    const std::set<crash::FileId> files = crash::unnamed_files(test_server_pid(arena.server));
    if (files.size() != kFiles)
        test_die("the keeper holds %zu files without a name instead of %zu", files.size(), kFiles);
    return files;
}

void kill_server(const crash::Arena &arena, pid_t broker) {
    kill(test_server_pid(arena.server), SIGKILL); // first: it would start another broker
    kill(broker, SIGKILL);
    crash::wait_for(test_server_pid(arena.server));
}

void keeper_and_broker_die(crash::Arena &arena, const crash::SpillFolder &folder, int64_t memory) {
    const uint32_t session = arena.session_id;
    cache *mine = open_any(arena.client, session, kPlain), *stream = open_any(arena.client, session, kStream);
    int64_t next = 0;
    crash::must(cache_build_begin(stream, &next), "cache_build_begin");
    cache *theirs = nullptr;
    crash::Helper in_memory([&] { theirs = fill(connect_patiently(), session, kPlain); },
                            [&] { put_until_the_end(theirs); });
    crash::Helper on_disk([&] { theirs = fill(connect_patiently(), session, kSpilling); },
                          [&] { put_until_the_end(theirs); });
    crash::Helper follower([&] { theirs = open_any(connect_patiently(), session, kStream); },
                           [&] { wait_for_the_build(theirs); });
    for (crash::Helper *helper : {&in_memory, &on_disk, &follower})
        helper->wait_ready();
    const std::set<crash::FileId> files = files_of(arena);
    const pid_t broker = crash::broker_of(arena.server);
    kill(broker, SIGSTOP); // answers nobody any more
    for (crash::Helper *helper : {&in_memory, &on_disk, &follower})
        helper->go_on();
    crash::until([&] { return somebody_waits(mine); }, "a put waits for memory");
    kill_server(arena, broker);
    for (crash::Helper *helper : {&in_memory, &on_disk, &follower})
        if (const int status = helper->ended()) test_die("who waited for a dead server ended with status %d", status);
    start_again(arena, folder, memory); // beside caches of the dead one that are open still
    check_rows(mine);
    if (crash::holder_of(files) != getpid()) test_die("the cache of a dead server is not in the hands of its reader");
    cache_close(mine), cache_close(stream);
    nobody_holds(files, "when the last cache of a dead server is closed");
}

void everybody_dies(crash::Arena &arena, const crash::SpillFolder &folder, int64_t memory) {
    const uint32_t session = arena.session_id;
    cache *theirs = nullptr;
    cache_view view{};
    const auto put_on = [&](uint32_t cache_id) {
        return [&, cache_id] { theirs = fill(connect_patiently(), session, cache_id); };
    };
    const auto forever = [&] {
        for (int64_t id = kRows;; id++)
            (void)rows::put(theirs, id, crash::kSpillLargest);
    };
    crash::Helper writer(put_on(kPlain), forever), spiller(put_on(kSpilling), forever);
    crash::Helper reader(
        [&] {
            theirs = fill(connect_patiently(), session, kPlain);
            crash::must(cache_get(theirs, 7, &view), "cache_get");
            if (fork() == 0) pause(); // with a view
        },
        [] { pause(); });
    crash::Helper builder([&] { theirs = open_any(connect_patiently(), session, kStream); }, [] { pause(); });
    for (crash::Helper *helper : {&writer, &spiller, &reader, &builder})
        helper->wait_ready();
    const std::set<crash::FileId> files = files_of(arena);
    pid_t child = 0;
    const std::string number = std::to_string(reader.pid);
    std::ifstream("/proc/" + number + "/task/" + number + "/children") >> child;
    if (child == 0) test_die("the reader has no child");
    writer.go_on(), spiller.go_on();
    cache_disconnect(std::exchange(arena.client, nullptr));
    kill_server(arena, crash::broker_of(arena.server));
    for (crash::Helper *helper : {&writer, &spiller, &reader, &builder})
        helper->end(true);
    kill(child, SIGKILL);
    nobody_holds(files, "when everybody is dead");
    start_again(arena, folder, memory);
}

} // namespace

int main() {
    test_watchdog(100);
    const crash::SpillFolder folder;
    crash::Arena arena(folder.arguments);
    // As start_again() leaves it: the session of this one ends with it.
    const int64_t memory = crash::server_info(arena.client).memory_used_bytes;
    keeper_and_broker_die(arena, folder, memory);
    everybody_dies(arena, folder, memory);
    printf("of two dead servers nothing is left\n");
    return 0;
}
