// SPDX-License-Identifier: Apache-2.0
// Deaths ordered of a running server's brokers: a file with the order, which server and test both map.
#pragma once

#include "core/common/pause.h"
#include "tests/crash/crash.h"

#include <cstdlib>
#include <fcntl.h>
#include <new>
#include <string>
#include <sys/mman.h>

namespace crash {

struct Orders {
    libcache::PauseOrder *page;

    Orders() : path_(std::string(getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp") + "/lcp-XXXXXX") {
        const int fd = mkstemp(path_.data());
        if (fd < 0 || ftruncate(fd, sizeof *page) != 0) test_die("making %s failed", path_.c_str());
        void *at = mmap(nullptr, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (at == MAP_FAILED) test_die("mapping %s failed", path_.c_str());
        page = new (at) libcache::PauseOrder;
    }
    Orders(const Orders &) = delete;
    Orders &operator=(const Orders &) = delete;
    ~Orders() {
        munmap(page, sizeof *page);
        unlink(path_.c_str());
    }

    // Servers started between the two obey. Not we and not the clients: they have points too.
    void begin() const {
        setenv("LIBCACHE_PAUSE_FILE", path_.c_str(), 1);
        setenv("LIBCACHE_TEST_SERVER", "tests/support/pause_server", 1);
    }
    void end() const { unsetenv("LIBCACHE_PAUSE_FILE"); }

    // `again` not 0: when it is obeyed, it is given once more, for that passage of those who come after the dead.
    void give(const std::string &point, uint64_t passage, uint64_t again = 0) const {
        take_back();
        page->again.store(again, std::memory_order_relaxed);
        snprintf(page->name, sizeof page->name, "%s", point.c_str());
        page->left.store(passage, std::memory_order_release); // with the name
    }
    void take_back() const {
        page->again.store(0, std::memory_order_relaxed);
        page->left.store(0, std::memory_order_relaxed);
    }
    uint64_t obeyed() const { return page->signals.load(std::memory_order_relaxed); }

  private:
    std::string path_;
};

} // namespace crash
