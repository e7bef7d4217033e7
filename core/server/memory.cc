// SPDX-License-Identifier: Apache-2.0
#include "core/server/memory.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <unistd.h>

namespace libcache {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kMiB = 1 << 20;

// A file holding one number; `otherwise` if it is missing or says "max".
uint64_t read_number(const std::string &path, uint64_t otherwise) {
    std::ifstream file(path);
    uint64_t number = 0;
    return file >> number ? number : otherwise;
}

// The sum of the named fields of a file of "name number" lines.
uint64_t sum_fields(const std::string &path, std::initializer_list<std::string_view> names) {
    std::ifstream file(path);
    std::string name;
    uint64_t number, sum = 0;
    while (file >> name >> number)
        if (std::find(names.begin(), names.end(), name) != names.end()) sum += number;
    return sum;
}

// What stays untouched below a limit, for all that others do between our look and our pages.
uint64_t margin_of(uint64_t limit) {
    return std::clamp(limit / 32, 8 * kMiB, 256 * kMiB);
}

bool has_word(const std::string &list, const std::string &word) {
    std::istringstream words(list);
    for (std::string one; std::getline(words, one, ',');)
        if (one == word) return true;
    return false;
}

} // namespace

Memory::Memory(std::string root) : root_(std::move(root)) {
    find_groups();
}

// /proc/self/cgroup says where we are in each hierarchy, mountinfo where the hierarchies are mounted.
void Memory::find_groups() {
    std::string v1_path, v2_path;
    std::ifstream membership(root_ + "/proc/self/cgroup");
    for (std::string line; std::getline(membership, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (controllers.empty()) v2_path = line.substr(second + 1);
        if (has_word(controllers, "memory")) v1_path = line.substr(second + 1);
    }
    std::ifstream mounts(root_ + "/proc/self/mountinfo");
    for (std::string line; std::getline(mounts, line);) {
        std::istringstream before(line.substr(0, line.find(" - ")));
        std::string skip, mount_root, mount_point, type, source, options;
        before >> skip >> skip >> skip >> mount_root >> mount_point;
        if (line.find(" - ") == std::string::npos) continue;
        std::istringstream after(line.substr(line.find(" - ") + 3));
        after >> type >> source >> options;
        if (type == "cgroup2" && !v2_path.empty()) add_groups(mount_point, mount_root, v2_path, true);
        if (type == "cgroup" && !v1_path.empty() && has_word(options, "memory"))
            add_groups(mount_point, mount_root, v1_path, false);
    }
}

void Memory::add_groups(const std::string &mount_point, const std::string &mount_root, std::string path, bool v2) {
    // In a container only a part of the hierarchy is mounted, and our path may begin with that part.
    if (mount_root != "/" && path.compare(0, mount_root.size(), mount_root) == 0) path.erase(0, mount_root.size());
    for (;;) {
        while (!path.empty() && path.back() == '/')
            path.pop_back();
        std::string folder = root_;
        folder.append(mount_point).append(path);
        // A path outside of what is mounted here has no folder: its ancestors may have.
        if (access(folder.c_str(), R_OK) == 0) groups_.push_back({folder, v2});
        if (path.empty()) return;
        path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
}

uint64_t Memory::limit_of(const Group &group) const {
    if (!group.v2) return read_number(group.folder + "/memory.limit_in_bytes", kUnlimited);
    // Beyond `high` nobody is killed, but all of the group are slowed down until they hardly go on: pages of a cache
    // cannot be taken away to get below it.
    return std::min(read_number(group.folder + "/memory.max", kUnlimited),
                    read_number(group.folder + "/memory.high", kUnlimited));
}

uint64_t Memory::room_of(const Group &group, bool less_margin) const {
    const uint64_t limit = limit_of(group);
    if (limit >= kUnlimited / 4) return kUnlimited; // v1 says "no limit" by a number near 2^63
    const uint64_t usage = read_number(group.folder + (group.v2 ? "/memory.current" : "/memory.usage_in_bytes"), 0);
    // Cached file pages count as used and are dropped before anybody is killed.
    const std::string stat = group.folder + "/memory.stat";
    const uint64_t droppable = group.v2 ? sum_fields(stat, {"inactive_file", "active_file"})
                                        : sum_fields(stat, {"total_inactive_file", "total_active_file"});
    const uint64_t taken = usage - std::min(usage, droppable) + (less_margin ? margin_of(limit) : 0);
    return limit - std::min(limit, taken);
}

uint64_t Memory::meminfo(const char *field) const {
    std::ifstream file(root_ + "/proc/meminfo");
    std::string name, unit;
    uint64_t kib;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        if (words >> name >> kib && name == field) return kib * 1024;
    }
    return kUnlimited;
}

std::string mebibytes(uint64_t bytes) {
    char text[32];
    snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
    return text;
}

uint64_t Memory::total_bytes() const {
    uint64_t total = meminfo("MemTotal:");
    for (const Group &group : groups_)
        total = std::min(total, limit_of(group));
    return total;
}

uint64_t Memory::smallest(bool less_margin) const {
    const uint64_t available = meminfo("MemAvailable:"), margin = less_margin ? margin_of(meminfo("MemTotal:")) : 0;
    uint64_t room = available - std::min(available, margin);
    for (const Group &group : groups_)
        room = std::min(room, room_of(group, less_margin));
    return room;
}

} // namespace libcache
