// SPDX-License-Identifier: Apache-2.0
#include "core/server/daemon.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace libcache {
namespace {

void print(char kind, const std::string &text) {
    FILE *const stream = kind == '+' ? stdout : stderr;
    fwrite(text.data(), 1, text.size(), stream);
    fputc('\n', stream);
    fflush(stream);
}

void leave_terminal() {
    setsid();
    const Fd null(open("/dev/null", O_RDWR | O_CLOEXEC));
    for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        dup2(null.get(), stream);
}

std::string read_all(int fd) {
    std::string text;
    char part[4096];
    for (;;) {
        const ssize_t got = read(fd, part, sizeof part);
        if (got > 0) text.append(part, static_cast<size_t>(got));
        if (got == 0 || (got < 0 && errno != EINTR)) return text;
    }
}

// The daemon ended without a word.
int explain_death(pid_t daemon) {
    int status = 0;
    while (waitpid(daemon, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(status))
        fprintf(stderr, "The cache server was killed by signal %d (%s) while it started.\n", WTERMSIG(status),
                strsignal(WTERMSIG(status)));
    else
        fprintf(stderr, "The cache server ended with status %d while it started.\n", WEXITSTATUS(status));
    return 1;
}

} // namespace

void StartReport::say(char kind, const std::string &text) {
    if (!pipe_) return print(kind, text);
    const std::string line = kind + text;
    (void)!write(pipe_.get(), line.data(), line.size()); // nobody waits any more: nobody misses it
    pipe_.reset();
}

int run_as_daemon(const std::function<int(StartReport report)> &serve) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return perror("cache_server: pipe"), 1;
    Fd reading(ends[0]), writing(ends[1]);
    const pid_t daemon = fork();
    if (daemon < 0) return perror("cache_server: fork"), 1;
    if (daemon == 0) {
        reading.reset();
        leave_terminal();
        _exit(serve(StartReport(std::move(writing))));
    }
    writing.reset();
    const std::string report = read_all(reading.get());
    if (report.empty()) return explain_death(daemon);
    print(report[0], report.substr(1));
    return report[0] == '+' ? 0 : 1;
}

} // namespace libcache
