// SPDX-License-Identifier: Apache-2.0
// A memory control group below ours (v1 or v2), with this process in it until the end.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

class MemoryGroup {
  public:
    MemoryGroup() = default;
    MemoryGroup(const MemoryGroup &) = delete;
    MemoryGroup &operator=(const MemoryGroup &) = delete;
    ~MemoryGroup() {
        if (folder_.empty()) return;
        write(parent_ + "/cgroup.procs", std::to_string(getpid()));
        while (rmdir(folder_.c_str()) != 0 && errno == EBUSY) // the server's processes are going; a watchdog ends this
            usleep(5000);
    }

    // False: not possible here.
    bool enter(uint64_t limit) {
        std::ifstream mine("/proc/self/cgroup");
        for (std::string line; std::getline(mine, line);) {
            const size_t first = line.find(':'), second = line.find(':', first + 1);
            const std::string controllers = line.substr(first + 1, second - first - 1);
            const bool v2 = controllers.empty();
            if (!v2 && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
            parent_ = (v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory") + line.substr(second + 1);
            folder_ = parent_ + "/libcache-" + std::to_string(getpid());
            if (mkdir(folder_.c_str(), 0755) != 0) continue;
            limit_file_ = folder_ + (v2 ? "/memory.max" : "/memory.limit_in_bytes");
            if (set_limit(limit) && write(folder_ + "/cgroup.procs", std::to_string(getpid()))) return true;
            rmdir(folder_.c_str());
        }
        folder_.clear();
        return false;
    }
    bool set_limit(uint64_t limit) const { return write(limit_file_, std::to_string(limit)); }

  private:
    std::string parent_, folder_, limit_file_;
    static bool write(const std::string &path, const std::string &text) {
        std::ofstream file(path);
        file << text << std::flush;
        return bool(file);
    }
};
