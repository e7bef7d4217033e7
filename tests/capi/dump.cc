// SPDX-License-Identifier: Apache-2.0
// A trainer that crashes does not write the data set into its core.
#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

// The reason why this machine writes no core into the working folder; "" if it does.
std::string no_core() {
    std::ifstream file("/proc/sys/kernel/core_pattern");
    std::string pattern;
    std::getline(file, pattern);
    if (pattern.empty() || pattern[0] == '|') return "core dumps: core_pattern hands them to a program: " + pattern;
    if (pattern.find('/') != std::string::npos) return "core dumps: core_pattern writes them elsewhere: " + pattern;
    rlimit limit{};
    getrlimit(RLIMIT_CORE, &limit);
    if (limit.rlim_max < 64 << 20) return "core dumps: the hard limit of RLIMIT_CORE is below 64 MiB";
    return "";
}

// Fills a cache of 256 MiB, maps it for reading and writing, aborts.
[[noreturn]] void crash(const Session &s, const std::string &folder) {
    cache_client *client;
    cache *handle;
    const std::vector<char> data(1 << 20, 'x');
    const Bytes column(data.data(), data.size());
    if (chdir(folder.c_str()) || cache_connect(nullptr, &client) || cache_open(client, s.id, 1, nullptr, &handle))
        _exit(1);
    for (int64_t id = 0; id < 200; id++) {
        cache_view view;
        cache_column got;
        if (cache_put(handle, id, &column.column, 1) || cache_get(handle, id, &view) ||
            cache_view_column(&view, 0, &got) || memcmp(got.data, data.data(), data.size()) != 0)
            _exit(2);
    }
    rlimit limit{};
    getrlimit(RLIMIT_CORE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_CORE, &limit);
    signal(SIGABRT, SIG_DFL);
    abort();
}

} // namespace

Test(dump, a_client_that_aborts_with_a_cache_of_256_MiB_leaves_a_small_core) {
    NEEDS_MADVISE("MADV_DONTDUMP");
    if (kSanitized) SKIP("core dumps: a sanitizer's own memory is in them");
    if (const std::string reason = no_core(); !reason.empty()) SKIP(reason.c_str());
    Session s(256 << 20);
    const std::string folder = std::string(test_server_dir(s.server)) + "/core";
    std::filesystem::create_directory(folder);
    const pid_t pid = fork();
    if (pid == 0) crash(s, folder);
    int status = 0;
    waitpid(pid, &status, 0);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "wait status %d", status);
    if (!WCOREDUMP(status)) SKIP("core dumps: the kernel wrote none");
    uint64_t bytes = 0;
    for (const auto &file : std::filesystem::directory_iterator(folder))
        bytes += file.file_size();
    cr_assert_gt(bytes, 4096, "a core of %lu bytes is none", bytes);
    cr_assert_lt(bytes, 64 << 20, "the core has %lu bytes: the cache is in it", bytes);
}
