// SPDX-License-Identifier: Apache-2.0
// What a server holds, seen from outside: the entries of its tables, and the files without a name that it has made.
#pragma once

#include "core/server/server_region.h"
#include "tests/crash/crash.h"

#include <algorithm>
#include <set>
#include <string>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <utility>

namespace crash {

inline std::vector<std::string> descriptor_links(pid_t pid) {
    std::vector<std::string> links;
    std::error_code error;
    for (const auto &entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error))
        links.push_back(entry.path());
    return links;
}

// Entries in use of the tables that outlive brokers: one that stays behind is told of by nobody, until none is left.
struct Tables {
    size_t sessions = 0, caches = 0, opens = 0, destroyers = 0;
};

inline Tables tables_of(pid_t keeper) {
    std::error_code error;
    for (const std::string &link : descriptor_links(keeper)) {
        if (!std::filesystem::read_symlink(link, error).string().starts_with("/memfd:libcache server")) continue;
        // Read, not mapped: a look must not make pages.
        std::vector<char> bytes(sizeof(libcache::ServerTables));
        const int fd = open(link.c_str(), O_RDONLY | O_CLOEXEC);
        const ssize_t got = pread(fd, bytes.data(), bytes.size(), 0);
        close(fd);
        if (got != ssize_t(bytes.size())) test_die("the server region of keeper %d cannot be read", keeper);
        const auto &tables = *reinterpret_cast<const libcache::ServerTables *>(bytes.data());
        const auto named = [](const auto &entry) { return entry.state.load() != libcache::EntryState::Empty; };
        const auto used = [](const auto &entry) { return entry.conn_id.load() != 0; };
        const auto count = [](const auto &table, const auto &is) {
            return size_t(std::count_if(std::begin(table), std::end(table), is));
        };
        return {count(tables.session, named), count(tables.cache, named), count(tables.open, used),
                count(tables.destroyer, used)};
    }
    test_die("keeper %d holds no server region", keeper);
}

using FileId = std::pair<dev_t, ino_t>;

// Regular files without a name that the process has open: regions, spill files.
inline std::set<FileId> unnamed_files(pid_t pid) {
    std::set<FileId> files;
    for (const std::string &link : descriptor_links(pid)) {
        struct stat status {};
        if (stat(link.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 0)
            files.insert({status.st_dev, status.st_ino});
    }
    return files;
}

// A process that has one of the files open or maps it, or 0: then the kernel has freed them.
inline pid_t holder_of(const std::set<FileId> &files) {
    std::error_code error;
    for (const auto &entry : std::filesystem::directory_iterator("/proc", error)) {
        const pid_t pid = atoi(entry.path().filename().c_str());
        if (pid <= 0) continue;
        for (const FileId &file : unnamed_files(pid))
            if (files.count(file) != 0) return pid;
        std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
        for (std::string line; std::getline(maps, line);) { // from-to rights offset major:minor inode path
            unsigned from_major = 0, from_minor = 0;
            unsigned long inode = 0;
            if (sscanf(line.c_str(), "%*s %*s %*s %x:%x %lu", &from_major, &from_minor, &inode) == 3 &&
                files.count({makedev(from_major, from_minor), inode}) != 0)
                return pid;
        }
    }
    return 0;
}

} // namespace crash
