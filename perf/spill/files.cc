// SPDX-License-Identifier: Apache-2.0
#include "perf/spill/bench.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <stdexcept>
#include <unistd.h>

namespace bench {
namespace {

[[noreturn]] void failed(const std::string &what, int error) {
    throw std::runtime_error(what + ": " + strerror(error));
}

} // namespace

SpillFile::SpillFile(size_t bytes) : fd_(open(spill_folder().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)) {
    if (fd_ < 0) failed("making a file without a name in " + spill_folder(), errno);
    if (const int error = posix_fallocate(fd_, 0, static_cast<off_t>(bytes)); error != 0) {
        close(fd_);
        failed("reserving " + std::to_string(bytes) + " bytes in " + spill_folder(), error);
    }
}

SpillFile::~SpillFile() {
    close(fd_);
}

PlainRing::PlainRing(unsigned depth) : depth_(depth) {
    if (const int rc = io_uring_queue_init(depth, &ring_, 0); rc != 0) failed("io_uring_queue_init", -rc);
}

PlainRing::~PlainRing() {
    io_uring_queue_exit(&ring_);
}

void PlainRing::run(bool write, int fd, char *memory, size_t n, size_t bytes,
                    const std::function<size_t(size_t)> &offset_of) {
    size_t started = 0;
    const auto start = [&](size_t place) {
        io_uring_sqe *const entry = io_uring_get_sqe(&ring_);
        const size_t offset = offset_of(started++);
        const auto length = static_cast<unsigned>(bytes);
        write ? io_uring_prep_write(entry, fd, memory + place * bytes, length, offset)
              : io_uring_prep_read(entry, fd, memory + place * bytes, length, offset);
        io_uring_sqe_set_data64(entry, place);
    };
    for (size_t place = 0; place < depth_ && started < n; ++place)
        start(place);
    for (size_t done = 0; done < n; ++done) {
        io_uring_cqe *entry = nullptr;
        if (const int rc = io_uring_submit_and_wait(&ring_, 1); rc < 0) failed("io_uring_submit_and_wait", -rc);
        if (const int rc = io_uring_wait_cqe(&ring_, &entry); rc < 0) failed("io_uring_wait_cqe", -rc);
        if (entry->res != static_cast<int>(bytes))
            failed("a transfer of " + std::to_string(bytes) + " bytes", entry->res < 0 ? -entry->res : EIO);
        const size_t place = io_uring_cqe_get_data64(entry);
        io_uring_cqe_seen(&ring_, entry);
        if (started < n) start(place);
    }
}

} // namespace bench
