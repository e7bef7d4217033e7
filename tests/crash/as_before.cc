// SPDX-License-Identifier: Apache-2.0
// as_before: a broker dies, and all that the next one tells of sessions, caches, rows, openers, budgets and settings is
// what the dead one told, but for its own number and process. Of a named session that is kept, a tagged cache with
// rows and a reader, one that spills and a stream half built.
#include "tests/crash/spilling.h"

#include <string>

namespace {

void print(std::string *to, const char *name, int64_t value) {
    *to += std::string(" ") + name + "=" + std::to_string(value);
}

int note(const cache_list_entry *entry, void *argument) {
    auto &text = *static_cast<std::string *>(argument);
    text += "session " + std::to_string(entry->session_id) + " '" + entry->session_name + "'";
    print(&text, "flags", entry->session_flags);
    for (uint32_t i = 0; i < entry->n_pids; i++)
        print(&text, "pid", entry->pids[i]);
    if (const cache_stats *s = entry->stats) {
        print(&text, "cache", s->cache_id);
        print(&text, "limit", s->limit_bytes);
        print(&text, "rows", s->rows_in_memory);
        print(&text, "spilled", s->rows_spilled);
        print(&text, "spilled_bytes", s->spilled_bytes);
        print(&text, "writers", s->writers);
        print(&text, "readers", s->readers);
        print(&text, "layouts", s->layouts);
        print(&text, "levels", s->index_levels);
        print(&text, "kept", s->kept);
        print(&text, "state", s->state);
        text += std::string(" tag '") + s->tag + "' label '" + s->label + "'";
    }
    text += "\n";
    return 0;
}

// But what a broker lends ahead and takes back when it is idle: charged_as_stated has that.
std::string told(cache_client *client) {
    std::string text;
    if (const int64_t n = cache_list(client, note, &text); n < 0) crash::must(int(n), "cache_list");
    const cache_server_stats info = crash::server_info(client);
    print(&text, "port", info.port);
    print(&text, "keeper", info.keeper_pid);
    print(&text, "supervised", info.supervised);
    print(&text, "limit", info.memory_limit_bytes);
    print(&text, "headroom", info.headroom_bytes);
    print(&text, "spill_limit", info.spill_limit_bytes);
    print(&text, "sessions", info.sessions);
    print(&text, "caches", info.caches);
    print(&text, "clients", info.clients);
    print(&text, "huge", info.huge_pages);
    return text + " " + info.spill_dir + " " + info.backing_reason + " " + info.log_path + "\n";
}

// What is charged to the server is what the caches are charged, in memory and on disk.
void charged_as_stated(cache_client *client, int64_t of_itself) {
    struct Sums {
        int64_t memory, file, spilled;
    } sums{};
    const auto add = [](const cache_list_entry *entry, void *argument) {
        auto &s = *static_cast<Sums *>(argument);
        if (!entry->stats) return 0;
        s.memory += entry->stats->charged_bytes;
        s.file += entry->stats->spill_file_bytes;
        s.spilled += entry->stats->spilled_bytes;
        return 0;
    };
    cache_server_stats info{};
    const auto equal = [&] {
        sums = {};
        if (const int64_t n = cache_list(client, add, &sums); n < 0) crash::must(int(n), "cache_list");
        info = crash::server_info(client);
        return info.memory_used_bytes == of_itself + sums.memory && info.spill_used_bytes == sums.file;
    };
    crash::until(equal, "what the server is charged is what its caches are");
    if (sums.file < sums.spilled || sums.spilled == 0 || sums.memory == 0)
        test_die("%ld bytes are charged, %ld of file space for %ld spilled bytes", long(sums.memory), long(sums.file),
                 long(sums.spilled));
}

void put_all(cache *handle, int64_t n, uint64_t largest) {
    for (int64_t id = 0; id < n; id++)
        if (const int result = rows::put(handle, id, largest); result < 0) crash::must(result, "a put");
}

// Whoever had to wait goes on where the dead one stopped, from a slot of its own: the dead one's is another.
void follow_a_dead_builder(crash::Arena &arena, uint32_t session) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.memory_limit_bytes = 8 << 20;
    options.flags = CACHE_BUILD;
    cache *stream = nullptr;
    int64_t next = 0;
    int line[2];
    if (pipe(line) != 0) test_die("pipe failed");
    const pid_t builder = crash::spawn([&] {
        cache_client *client = nullptr;
        crash::must(cache_connect(nullptr, &client), "cache_connect");
        crash::must(cache_open(client, session, 4, &options, &stream), "cache_open of a stream");
        crash::must(cache_build_begin(stream, &next), "cache_build_begin");
        const rows::Row row(0, crash::kLargest);
        crash::must(cache_append(stream, row.columns(), row.n(), &next), "cache_append");
        if (write(line[1], "", 1) != 1) test_die("write failed");
        return pause();
    });
    char byte;
    if (read(line[0], &byte, 1) != 1) test_die("the first builder did not begin");
    close(line[0]), close(line[1]);
    crash::must(cache_open(arena.client, session, 4, &options, &stream), "cache_open of a stream");
    if (const int result = cache_build_begin(stream, &next); result != CACHE_EBUILDING)
        test_die("beside a builder: %d instead of CACHE_EBUILDING", result);
    kill(builder, SIGKILL);
    crash::wait_for(builder);
    crash::until([&] { return cache_build_begin(stream, &next) == 0; }, "the build of a dead process goes on");
    if (next != 1) test_die("after one row the build goes on at %ld", long(next));
    cache_close(stream);
    crash::must(cache_destroy(arena.client, session, 4), "cache_destroy");
}

} // namespace

int main() {
    test_watchdog(200);
    const crash::SpillFolder folder;
    const char *const arguments[] = {"--spilldir", folder.path.c_str(), "--spill_limit", "256", nullptr};
    crash::Arena arena(arguments);
    const int64_t memory = crash::server_info(arena.client).memory_used_bytes;
    cache_session_options named = CACHE_SESSION_OPTIONS_INIT;
    named.name = "kept";
    named.flags = CACHE_SESSION_KEEP;
    uint32_t session = 0;
    crash::must(cache_session_create_with(arena.client, &named, &session), "cache_session_create_with");
    cache_options options = CACHE_OPTIONS_INIT;
    options.memory_limit_bytes = 16 << 20;
    options.tag = "0123abcd";
    options.label = "a data set";
    cache *tagged = nullptr, *stream = nullptr;
    crash::must(cache_open(arena.client, session, 1, &options, &tagged), "cache_open");
    put_all(tagged, 500, crash::kLargest);
    cache *spilling = crash::open_spilling(arena.client, session, 2);
    put_all(spilling, crash::kSpillIds, crash::kSpillLargest);
    crash::must(cache_flush(spilling), "cache_flush");
    options = CACHE_OPTIONS_INIT;
    options.memory_limit_bytes = 8 << 20;
    options.flags = CACHE_BUILD;
    crash::must(cache_open(arena.client, session, 3, &options, &stream), "cache_open of a stream");
    int64_t next = 0, id = 0;
    crash::must(cache_build_begin(stream, &next), "cache_build_begin");
    const auto append = [&] {
        const rows::Row row(next, crash::kLargest);
        crash::must(cache_append(stream, row.columns(), row.n(), &id), "cache_append");
        if (id != next++) test_die("row %ld was appended as %ld", long(next - 1), long(id));
    };
    for (int i = 0; i < 20; i++)
        append();
    follow_a_dead_builder(arena, session);
    std::string before; // when the dead builder is gone altogether
    crash::until([&] { return before = told(arena.client), before.find("clients=1 ") != std::string::npos; },
                 "this process is the only client");
    const int64_t generation = crash::server_info(arena.client).generation;
    for (int deaths = 1; deaths <= 3; deaths++) {
        crash::until([&] { return crash::broker_of(arena.server) != 0; }, "a broker");
        kill(crash::broker_of(arena.server), SIGKILL);
        crash::until([&] { return crash::server_info(arena.client).generation == generation + deaths; },
                     "the next broker serves");
        if (const std::string after = told(arena.client); after != before)
            test_die("before the broker's death %d:\n%s\nafter it:\n%s", deaths, before.c_str(), after.c_str());
    }
    charged_as_stated(arena.client, memory);
    append(); // this process builds still
    const pid_t reader = crash::spawn([&] {
        cache_client *client = nullptr;
        cache *handle = nullptr;
        crash::must(cache_connect(nullptr, &client), "cache_connect");
        crash::must(cache_open(client, session, 1, nullptr, &handle), "cache_open of a reader");
        return pause();
    });
    crash::until([&] { return told(arena.client).find("pid=" + std::to_string(reader)) != std::string::npos; },
                 "a reader is told of");
    kill(reader, SIGKILL);
    crash::wait_for(reader);
    crash::until([&] { return told(arena.client).find("readers=2") == std::string::npos; },
                 "a dead reader is none any more");
    for (int64_t row = 0; row < 500; row++)
        if (const std::string wrong = rows::check(tagged, row, crash::kLargest); !wrong.empty())
            test_die("%s", wrong.c_str());
    crash::judge_spilled_rows(spilling, false, "after three brokers");
    cache *other = nullptr;
    options = CACHE_OPTIONS_INIT;
    options.tag = "4567ffff";
    if (const int result = cache_open(arena.client, session, 1, &options, &other); result != CACHE_ECONFLICT)
        test_die("another tag: %d instead of CACHE_ECONFLICT", result);
    cache_close(tagged), cache_close(spilling), cache_close(stream);
    crash::must(cache_session_destroy(arena.client, session), "cache_session_destroy");
    crash::until(
        [&] {
            const cache_server_stats info = crash::server_info(arena.client);
            return info.caches == 0 && info.spill_used_bytes == 0;
        },
        "memory and file space are free");
    printf("three brokers told the same\n%s", before.c_str());
    return 0;
}
