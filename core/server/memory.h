// SPDX-License-Identifier: Apache-2.0
// How much memory this server may use: the machine's, and that of every cgroup on the way up (v1 and v2). Pages beyond
// a cgroup's limit are not an error but a kill, so the room is looked at before pages are made. Used by the broker's
// two threads; each has an object of its own.
#pragma once

#include "core/control/socket.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace libcache {

class Memory {
  public:
    // `root` stands before every path read: "" for the machine, a folder in tests.
    explicit Memory(std::string root = "");

    // The smaller of physical memory and every cgroup's limit.
    uint64_t total_bytes() const;

    // The smallest of what the machine and all cgroups have left just now.
    uint64_t available_bytes() const { return smallest(false); }
    // What may be made just now without coming near a limit: the same, each less a margin.
    uint64_t room_bytes() const { return smallest(true); }

  private:
    struct Group {
        std::string folder;
        bool v2;
    };
    std::string root_;
    std::vector<Group> groups_; // of this process, innermost first

    void find_groups();
    void add_groups(const std::string &mount_point, const std::string &mount_root, std::string path, bool v2);
    uint64_t limit_of(const Group &group) const;
    uint64_t smallest(bool less_margin) const;
    uint64_t room_of(const Group &group, bool less_margin) const;
    uint64_t meminfo(const char *field) const;
};

// What to leave to others of a server that may use `limit` bytes, unless told: 10 %, at least 2 GiB or a quarter of a
// smaller limit.
constexpr uint64_t default_headroom(uint64_t limit) {
    return std::max(limit / 10, std::min(uint64_t{2} << 30, limit / 4));
}

// "12.5 MiB", for sentences.
std::string mebibytes(uint64_t bytes);

// What Memory says, read at most every few milliseconds: a reading costs as much as making some hundred pages. Belongs
// to one thread.
class MemoryGauge {
  public:
    enum class Reading { Available, Room };
    explicit MemoryGauge(Reading what) : what_(what) {}

    uint64_t bytes() {
        const int64_t now = now_ns();
        if (read_at_ns_ == 0 || now - read_at_ns_ > kFreshNs || made_ > reading_ / 8) {
            reading_ = what_ == Reading::Room ? memory_.room_bytes() : memory_.available_bytes();
            read_at_ns_ = now;
            made_ = 0;
        }
        return reading_ - std::min(reading_, made_);
    }
    void made(uint64_t bytes) { made_ += bytes; } // pages that the last reading cannot have counted

  private:
    static constexpr int64_t kFreshNs = 10'000'000; // others take far less than the margin in that time
    const Memory memory_;
    const Reading what_;
    uint64_t reading_ = 0, made_ = 0;
    int64_t read_at_ns_ = 0;
};

} // namespace libcache
