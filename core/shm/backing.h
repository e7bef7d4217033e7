// SPDX-License-Identifier: Apache-2.0
// Where the pages of cache regions come from: anonymous files, on huge pages where the kernel lets us, else sealed
// memfds. Used by the server alone, from one thread at a time.
#pragma once

#include "core/control/socket.h"

#include <cstdint>
#include <string>

namespace libcache {

enum class BackingWish { Auto, Huge, Memfd };

class Backing {
  public:
    // Tries what is wished, best first. 0, or CACHE_ENOTSUP when only huge pages were allowed and there are none.
    [[nodiscard]] int choose(BackingWish wish);

    // A backing that an earlier process chose: its mount (none: memfd) and its sentence.
    void adopt(Fd mount, std::string reason) { mount_ = std::move(mount), reason_ = std::move(reason); }

    bool huge() const { return static_cast<bool>(mount_); }
    Fd release_mount() { return std::move(mount_); }
    const std::string &reason() const { return reason_; } // why this one: a sentence

    // A fresh anonymous file of so many bytes, without pages. *file is its only open description, made by open(), so
    // that a write lease on it tells whether anybody else has one. 0 or CACHE_EIO.
    [[nodiscard]] int make_region(uint64_t bytes, Fd *file) const;

  private:
    Fd mount_; // the detached tmpfs
    std::string reason_;
};

// How much of the mapping that `address` lies in is mapped by huge pages: smaps, some 50 us. 0 where the kernel does
// not say.
uint64_t bytes_on_huge_pages(const void *address);

// Another open description of the same file, made by open(). Invalid, with errno, on failure.
Fd open_again(int fd, int open_flags);

// A sealed memfd of so many bytes (F_SEAL_SHRINK), reopened at birth. 0 or CACHE_EIO.
[[nodiscard]] int make_memfd(const char *name, uint64_t bytes, Fd *file);

} // namespace libcache
