// SPDX-License-Identifier: Apache-2.0
#include "core/common/in_child.h"

#include <atomic>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

namespace libcache {
namespace {

struct Inherited { // with the file that tells whether the number still means it: a program may have closed it itself
    std::atomic<int> fd{-1};
    std::atomic<uint64_t> device{0}, inode{0};
};
Inherited inherited[128]; // no list with a mutex: another thread may be changing it when this one forks
uint64_t forks = 0;

void in_child() {
    forks++;
    for (Inherited &place : inherited) {
        const int fd = place.fd.load(std::memory_order_relaxed);
        if (fd < 0) continue;
        place.fd.store(-1, std::memory_order_relaxed);
        struct stat st {};
        if (fstat(fd, &st) == 0 && st.st_dev == place.device.load(std::memory_order_relaxed) &&
            st.st_ino == place.inode.load(std::memory_order_relaxed))
            close(fd);
    }
}

// When the library is loaded: no thread can be in the middle of it while another one forks.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, in_child);

} // namespace

void close_in_child(int fd) {
    struct stat st {};
    if (fstat(fd, &st) != 0) return;
    for (Inherited &place : inherited) {
        int none = -1;
        if (place.fd.compare_exchange_strong(none, fd, std::memory_order_relaxed)) {
            place.device.store(st.st_dev, std::memory_order_relaxed);
            place.inode.store(st.st_ino, std::memory_order_relaxed);
            return;
        }
    }
}

void forget_in_child(int fd) {
    for (Inherited &place : inherited) {
        int same = fd;
        place.fd.compare_exchange_strong(same, -1, std::memory_order_relaxed);
    }
}

uint64_t forks_so_far() {
    return forks;
}

} // namespace libcache
