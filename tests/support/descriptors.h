// SPDX-License-Identifier: Apache-2.0
// What a process has open.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <unistd.h>

// What is open above the standard streams, by number; of "self" or of a process number. /proc itself is left out: that
// is who looks.
inline std::map<int, std::string> open_in(const std::string &process) {
    std::map<int, std::string> found;
    for (const auto &entry : std::filesystem::directory_iterator("/proc/" + process + "/fd")) {
        std::error_code gone;
        const std::string what = std::filesystem::read_symlink(entry.path(), gone).string();
        const int fd = std::stoi(entry.path().filename().string());
        if (!gone && fd > STDERR_FILENO && !what.starts_with("/proc/")) found[fd] = what;
    }
    return found;
}

// Without those that are in `others` under the same number.
inline std::map<int, std::string> without(std::map<int, std::string> open, const std::map<int, std::string> &others) {
    std::erase_if(open, [&](const auto &entry) {
        const auto at = others.find(entry.first);
        return at != others.end() && at->second == entry.second;
    });
    return open;
}

inline bool contains(const std::map<int, std::string> &open, const std::string &what) {
    return std::any_of(open.begin(), open.end(), [&](const auto &entry) { return entry.second.starts_with(what); });
}
