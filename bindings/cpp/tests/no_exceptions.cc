// SPDX-License-Identifier: Apache-2.0
// The binding in a program without exceptions: a row goes in and comes out; value() of an error ends the program with
// the library's sentence.
#include "bindings/cpp/libcache.hpp"
#include "tests/support/server.h"

#include <csignal>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

namespace {

int rows_come_back() {
    test_server *const server = test_server_start(nullptr);
    {
        const libcache::Client client = libcache::Client::connect().value();
        libcache::Cache rows = client.create_session()->open(1).value();
        const int32_t value = 7;
        if (!rows.put(1, {libcache::scalar(value)})) return 1;
        if (rows.get(1)->column(0)->scalar<int32_t>().value() != 7) return 2;
    }
    test_server_stop(server);
    return 0;
}

// What a child says that asks for the value of an error.
std::string last_words() {
    int ends[2];
    if (pipe(ends) != 0) return "";
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        libcache::Client::connect({.socket_path = "/nowhere/at/all"}).value();
        _exit(0);
    }
    close(ends[1]);
    std::string said(4096, 0);
    const ssize_t n = read(ends[0], said.data(), said.size());
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    const bool aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
    return aborted && n > 0 ? said.substr(0, static_cast<size_t>(n)) : "";
}

} // namespace

int main() {
    test_watchdog(120);
    if (const int status = rows_come_back(); status != 0) return status;
    const std::string said = last_words();
    if (!said.starts_with("libcache: ") || said.find("/nowhere/at/all") == std::string::npos) {
        fprintf(stderr, "value() of an error said: '%s'\n", said.c_str());
        return 3;
    }
    return 0;
}
