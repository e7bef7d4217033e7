// SPDX-License-Identifier: Apache-2.0
// What of a process that writes, spills and reads its children get, and what they do not: mappings, descriptors, rings.
#include "tests/support/child.h"
#include "tests/support/descriptors.h"
#include "tests/support/rows.h"
#include "tests/support/spilled_rows.h"

#include <algorithm>
#include <cinttypes>
#include <fcntl.h>
#include <fstream>
#include <sys/mman.h>
#include <thread>

namespace {

std::string check_rows(cache *handle, int64_t from, int64_t to) {
    for (int64_t id = from; id < to; id++)
        if (std::string wrong = rows::check(handle, id); !wrong.empty()) return wrong;
    return "";
}

std::string put_and_check(cache *handle, int64_t from, int64_t to) {
    for (int64_t id = from; id < to; id++)
        if (const int code = rows::put(handle, id))
            return "put of row " + std::to_string(id) + ": " + std::to_string(code) + " " + cache_last_error();
    return check_rows(handle, from, to);
}

// Rows 0 to 20 are in memory, ten in the file, and this thread has read those: all that a process can have.
struct BusySession : SpillSession {
    std::vector<int64_t> spilled;
    BusySession() {
        RIGHT(put_and_check(rows, 0, 20));
        spilled = spill_rows(*this, 1'000'000);
        RIGHT(read_batch(rows, spilled));
    }
};

struct Range {
    uintptr_t first, end;
    unsigned long inode; // 0: of no file
};

// Of this process's memory what its smaps tell with a line that holds `mark`.
std::vector<Range> mappings(const std::string &mark) {
    std::vector<Range> found;
    Range at{};
    std::ifstream smaps("/proc/self/smaps");
    for (std::string line; std::getline(smaps, line);) {
        Range next{};
        if (sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %lu", &next.first, &next.end, &next.inode) == 3)
            at = next;
        if ((line + " ").find(mark) != std::string::npos) found.push_back(at);
    }
    return found;
}

bool is_mapped(const Range &range) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    unsigned char resident;
    for (uintptr_t at = range.first; at < range.end; at += page)
        if (mincore(reinterpret_cast<void *>(at), page, &resident) == 0) return true;
    return false;
}

// The first of `ours` that is open here and should not be.
std::string still_open(const std::map<int, std::string> &ours) {
    for (const auto &[fd, what] : open_in("self")) {
        const auto parents = ours.find(fd);
        if (parents == ours.end() || parents->second != what) continue;
        if (what.starts_with("socket:") || what.find("[io_uring]") != std::string::npos) return what;
        if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY) return what + " for writing";
    }
    return "";
}

// A child that puts rows and waits until `go` is closed is one more writer meanwhile.
void has_a_slot_of_its_own(const BusySession &s, pid_t (*make)(const std::function<std::string()> &)) {
    int said[2], go[2];
    cr_assert(pipe(said) == 0 && pipe(go) == 0);
    const int64_t before = s.stat().writers;
    const pid_t child = make([&] {
        close(go[1]);
        std::string wrong = check_rows(s.rows, 0, 20);
        if (wrong.empty()) wrong = read_batch(s.rows, s.spilled);
        if (wrong.empty()) wrong = put_and_check(s.rows, 2000, 2100);
        char byte = 0;
        (void)!write(said[1], &byte, 1);
        (void)!read(go[0], &byte, 1);
        return wrong.empty() ? put_and_check(s.rows, 2100, 2200) : wrong;
    });
    close(said[1]);
    close(go[0]);
    char byte = 0;
    const bool lives = read(said[0], &byte, 1) == 1;
    const int64_t meanwhile = s.stat().writers;
    RIGHT(put_and_check(s.rows, 3000, 3100));
    close(go[1]);
    close(said[0]);
    join(child);
    cr_assert(lives);
    cr_assert_eq(meanwhile, before + 1, "%ld writers, %ld before", long(meanwhile), long(before));
    RIGHT(check_rows(s.rows, 2000, 2200));
}

} // namespace

Test(inherited, a_child_that_stores_into_its_parents_reservation_faults) {
    NEEDS_MADVISE("MADV_DONTFORK");
    SpillSession s;
    Bytes bytes(nullptr, 1000);
    cache_reservation *reservation = nullptr;
    OK(cache_reserve(s.rows, 1, &bytes.column, 1, &reservation));
    for (auto *const make : {spawn, spawn_raw}) {
        const pid_t child = make([&] {
            signal(SIGSEGV, SIG_DFL); // a sanitizer's own
            memset(bytes.column.data, 7, 1000);
            return std::string("the store was done");
        });
        int status = 0;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "a child ended with wait status %d", status);
    }
    OK(cache_abort(reservation));
}

// What the kernel writes from and the rings it is told of: a child's copy would cost memory for each, and stores into
// an inherited ring would be its parent's.
Test(inherited, staging_memory_and_rings_are_not_mapped_in_a_child) {
    NEEDS_MADVISE("MADV_DONTFORK");
    BusySession s;
    const std::vector<Range> kept = mappings(" dc "); // VmFlags: not to be copied by fork
    const std::vector<Range> rings = mappings("[io_uring]");
    uint64_t largest = 0;
    for (const Range &range : kept)
        if (range.inode == 0) largest = std::max<uint64_t>(largest, range.end - range.first);
    cr_assert_geq(largest, 4u << 20, "no staging memory that a child does not get");
    join(spawn([&] {
        for (const auto *ranges : {&kept, &rings})
            for (const Range &range : *ranges)
                if (is_mapped(range)) return "mapped: " + std::to_string(range.first);
        return std::string();
    }));
}

Test(inherited, a_child_of_fork_has_neither_its_parents_socket_nor_its_rings_nor_its_file_for_writing) {
    const std::map<int, std::string> before = open_in("self");
    BusySession s;
    const std::map<int, std::string> ours = without(open_in("self"), before);
    cr_assert(contains(ours, "socket:"), "this test looks for sockets in vain");
    cr_assert(contains(ours, s.folder.path()), "this test looks for the spill file in vain");
    join(spawn([&] {
        std::string wrong = still_open(ours);
        if (wrong.empty()) wrong = read_batch(s.rows, s.spilled);
        if (wrong.empty()) wrong = put_and_check(s.rows, 2000, 2050);
        return wrong.empty() ? still_open(ours) : wrong;
    }));
    RIGHT(read_batch(s.rows, s.spilled));
    RIGHT(put_and_check(s.rows, 2050, 2100));
}

// What children close is noted in a table of 128 places.
Test(inherited, what_was_closed_long_ago_leaves_room_for_what_is_open_at_the_fork) {
    const std::map<int, std::string> before = open_in("self");
    BusySession s;
    const std::string alias = std::string(test_server_dir(s.server)) + "/./cache_server." + // a connection of its own
                              std::to_string(test_server_port(s.server));
    std::string wrong;
    const auto use = [&](int64_t id, bool forks) {
        cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
        options.socket_path = alias.c_str();
        cache_client *client = nullptr;
        cache *handle = nullptr;
        if (cache_connect(&options, &client) || cache_open(client, s.id, 1, nullptr, &handle) ||
            rows::put(handle, id, kSpilledLargest))
            wrong = cache_last_error();
        if (wrong.empty()) wrong = read_batch(handle, s.spilled);
        if (const auto ours = without(open_in("self"), before); forks && wrong.empty())
            wrong = outcome(spawn([&] { return still_open(ours); }));
        if (wrong.empty() && (cache_close(handle) || cache_disconnect(client))) wrong = cache_last_error();
    };
    for (int64_t id = 5000; id < 5140; id++)
        std::thread(use, id, false).join(); // a ring for reading goes with its thread
    std::thread(use, 5140, true).join();
    RIGHT(wrong);
}

// Else a destroyed cache's file would take up the disk as long as the child lives.
Test(inherited, a_child_that_closes_its_handle_holds_nothing_of_the_spill_file) {
    BusySession s;
    join(spawn([&] {
        if (cache_close(s.rows) != 0) return std::string(cache_last_error());
        return contains(open_in("self"), s.folder.path()) ? std::string("the spill file is open") : std::string();
    }));
    join(spawn([&] {
        const std::string wrong = put_and_check(s.rows, 2000, 2050);
        if (!wrong.empty() || cache_close(s.rows) != 0) return wrong + cache_last_error();
        return contains(open_in("self"), s.folder.path()) ? std::string("the spill file is open") : std::string();
    }));
    RIGHT(read_batch(s.rows, s.spilled));
}

Test(inherited, a_child_made_by_clone_reads_and_writes_by_itself) {
    NEEDS_MADVISE("MADV_WIPEONFORK");
    BusySession s;
    has_a_slot_of_its_own(s, spawn_raw);
}

// As before Linux 4.14: the advice that the page be wiped in children is taken back.
Test(inherited, where_the_kernel_wipes_no_page_a_child_of_fork_reads_and_writes_by_itself) {
    NEEDS_MADVISE("MADV_WIPEONFORK");
    BusySession s;
    const std::vector<Range> wiped = mappings(" wf ");
    cr_assert(!wiped.empty(), "no page is wiped in children");
    for (const Range &range : wiped)
        cr_assert_eq(madvise(reinterpret_cast<void *>(range.first), range.end - range.first, MADV_KEEPONFORK), 0);
    has_a_slot_of_its_own(s, spawn);
}

// As daemons do. What it opens later has the numbers of what was ours, and must not be closed or written to. Only rows
// of a file that it has closed are lost to it.
Test(inherited, a_child_that_has_closed_all_descriptors_reads_and_writes_and_keeps_those_of_its_own) {
    BusySession s;
    const auto replace_all = [](int by) { // more than there were
        for (int fd = STDERR_FILENO + 1; fd < 1024; fd++)
            close(fd);
        for (int i = 0; i < by; i++)
            if (open("/proc/self/exe", O_RDONLY) < 0) return false;
        return true;
    };
    const auto lost_of = [](const std::map<int, std::string> &own) {
        const auto lost = without(own, open_in("self"));
        return lost.empty() ? "" : "descriptor " + std::to_string(lost.begin()->first) + " is not what it was";
    };
    join(spawn([&]() -> std::string {
        if (!replace_all(50)) return "descriptors cannot be replaced";
        std::map<int, std::string> own = open_in("self");
        if (own.size() < 50) return "few descriptors were replaced";
        if (std::string wrong = check_rows(s.rows, 0, 20); !wrong.empty()) return wrong;
        for (int64_t id = 2000; id < 2050; id++)
            if (rows::put(s.rows, id) != 0) return cache_last_error();
        if (cache_flush(s.rows) != 0) return cache_last_error();
        cache_view view;
        if (const int code = cache_get(s.rows, s.spilled[0], &view); code != CACHE_EIO)
            return "a row of a file that was closed: " + std::to_string(code);
        if (std::string(cache_last_error()).find("has closed the spill file") == std::string::npos)
            return cache_last_error();
        cache *again = nullptr;
        if (cache_open(s.client, s.id, 1, nullptr, &again) != 0) return cache_last_error();
        if (std::string wrong = read_batch(again, s.spilled); !wrong.empty()) return "opened again: " + wrong;
        cache_close(again);
        if (std::string lost = lost_of(own); !lost.empty()) return lost;
        if (!replace_all(100))
            return "descriptors cannot be replaced"; // also what the child's own children would close
        own = open_in("self");
        return outcome(spawn([&] { return lost_of(own); }));
    }));
    join(spawn([&]() -> std::string { // the end of a handle closes nothing of others either
        if (!replace_all(50)) return "descriptors cannot be replaced";
        const std::map<int, std::string> own = open_in("self");
        cache_close(s.rows);
        return lost_of(own);
    }));
    RIGHT(check_rows(s.rows, 2000, 2050));
    RIGHT(read_batch(s.rows, s.spilled));
    RIGHT(put_and_check(s.rows, 2050, 2100));
}

// No program is executed by a server today; one that will be inherits nothing.
Test(inherited, all_that_a_server_opens_closes_on_exec) {
    for (const char *backing : {"memfd", "auto"}) {
        const std::map<int, std::string> before = open_in("self"); // what it got from here
        SpillSession s(4 << 20, {"--backing", backing});
        (void)spill_rows(s, 0);
        cache_server_stats info{};
        info.size = sizeof info;
        OK(cache_server_info(s.client, &info));
        for (const int64_t pid : {int64_t(info.keeper_pid), int64_t(info.broker_pid)}) {
            const std::string process = std::to_string(pid);
            const std::map<int, std::string> opened = without(open_in(process), before);
            cr_assert(contains(opened, "socket:"), "process %ld has no socket", long(pid));
            for (const auto &[fd, what] : opened) {
                if (what.starts_with(test_server_dir(s.server))) continue; // log and output: spdlog's, and the test's
                std::ifstream file("/proc/" + process + "/fdinfo/" + std::to_string(fd));
                unsigned flags = 0;
                for (std::string word; file >> word && word != "flags:";) {
                }
                file >> std::oct >> flags;
                if (file) cr_assert(flags & O_CLOEXEC, "%s, %d of process %ld", what.c_str(), fd, long(pid));
            }
        }
    }
}
