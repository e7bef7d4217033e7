// SPDX-License-Identifier: Apache-2.0
#include "capi/admin/process.h"

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace admin {
namespace {

std::vector<char *> argument_pointers(const std::vector<std::string> &words) {
    std::vector<char *> pointers;
    for (const auto &word : words)
        pointers.push_back(const_cast<char *>(word.c_str()));
    pointers.push_back(nullptr);
    return pointers;
}

std::string own_folder() {
    char path[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    const std::string program(path, length > 0 ? static_cast<size_t>(length) : 0);
    return program.substr(0, program.rfind('/') + 1);
}

} // namespace

CannotRun::CannotRun(const std::string &program, int exec_error)
    : Failure("'" + program + "' cannot be run: " + strerror(exec_error) + "."), error(exec_error) {}

// The child tells through a pipe that closes on exec why the program did not run; silence means that it does.
pid_t start_process(const std::vector<std::string> &words, const std::function<void()> &prepare) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw Failure(std::string("pipe2: ") + strerror(errno));
    const auto pointers = argument_pointers(words);
    const pid_t pid = fork();
    if (pid == 0) {
        if (prepare) prepare();
        execvp(pointers[0], pointers.data());
        const int error = errno;
        if (write(ends[1], &error, sizeof error) < 0) _exit(126);
        _exit(127);
    }
    int error = pid < 0 ? errno : 0;
    close(ends[1]);
    ssize_t got;
    do
        got = pid < 0 ? 0 : read(ends[0], &error, sizeof error);
    while (got < 0 && errno == EINTR);
    close(ends[0]);
    if (error == 0) return pid;
    if (pid > 0) wait_process(pid);
    throw CannotRun(words[0], error);
}

// A kernel before 5.11 refuses; then it inherits them, as any program does. No function of glibc's before 2.34.
void leave_descriptors_behind() {
    (void)syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
}

int wait_process(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) throw Failure(std::string("waitpid: ") + strerror(errno));
    return status;
}

int shell_status(int wait_status) {
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

Capture::Capture() : fd_(memfd_create("cache_admin output", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    if (fd_ < 0) throw Failure(std::string("memfd_create: ") + strerror(errno));
}

Capture::~Capture() {
    close(fd_);
}

void Capture::redirect(int fd) const {
    dup2(fd_, fd);
}

std::string Capture::text() const {
    std::string text;
    char part[4096];
    ssize_t got;
    while ((got = pread(fd_, part, sizeof part, static_cast<off_t>(text.size()))) > 0)
        text.append(part, static_cast<size_t>(got));
    while (!text.empty() && text.back() == '\n')
        text.pop_back();
    return text;
}

// Writing to it fails then, so that a child that never stops talking does not fill the memory.
void Capture::end() const {
    fcntl(fd_, F_ADD_SEALS, F_SEAL_WRITE);
}

std::string server_program() {
    const std::string beside = own_folder() + "cache_server";
    if (access(beside.c_str(), X_OK) == 0) return beside;
    const char *named = std::getenv("LIBCACHE_SERVER");
    return named && *named ? named : "cache_server";
}

} // namespace admin
