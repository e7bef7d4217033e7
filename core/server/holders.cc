// SPDX-License-Identifier: Apache-2.0
#include "core/server/holders.h"

#include "core/control/socket.h"
#include "core/server/broker.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <memory>
#include <set>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <utility>

namespace libcache {
namespace {

constexpr int64_t kPatience = 250'000'000; // ns for a walk of /proc

using FileId = std::pair<dev_t, ino_t>;

// The files that a process maps. A line of maps: from-to rights offset major:minor inode path
std::set<FileId> files_mapped_by(int pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    const std::unique_ptr<FILE, int (*)(FILE *)> maps(fopen(path, "re"), fclose);
    char *line = nullptr;
    size_t room = 0;
    std::set<FileId> found;
    while (maps && getline(&line, &room, maps.get()) > 0) {
        unsigned major_number = 0, minor_number = 0;
        unsigned long inode = 0;
        if (sscanf(line, "%*s %*s %*s %x:%x %lu", &major_number, &minor_number, &inode) == 3 && inode != 0)
            found.insert({makedev(major_number, minor_number), inode});
    }
    free(line);
    return found;
}

int number_of(const char *name) {
    char *end = nullptr;
    const long number = strtol(name, &end, 10);
    return end != name && *end == 0 && number > 0 && number <= INT_MAX ? static_cast<int>(number) : 0;
}

int close_folder(DIR *folder) {
    return closedir(folder);
}

} // namespace

Mappers processes_mapping(const std::vector<int> &files, int64_t deadline_ns) {
    Mappers mappers{std::vector<std::vector<int32_t>>(files.size()), false};
    std::vector<FileId> wanted;
    for (int file : files) {
        struct stat status {};
        wanted.push_back(fstat(file, &status) == 0 ? FileId{status.st_dev, status.st_ino} : FileId{});
    }
    const std::unique_ptr<DIR, int (*)(DIR *)> proc(opendir("/proc"), close_folder);
    while (proc && now_ns() < deadline_ns) {
        const dirent *entry = readdir(proc.get());
        if (!entry) {
            mappers.complete = true;
            break;
        }
        const int pid = number_of(entry->d_name);
        if (pid == 0 || pid == getpid()) continue;
        const std::set<FileId> mapped = files_mapped_by(pid);
        for (size_t i = 0; i < wanted.size(); ++i)
            if (mapped.count(wanted[i]) != 0) mappers.of_file[i].push_back(pid);
    }
    for (std::vector<int32_t> &pids : mappers.of_file)
        std::sort(pids.begin(), pids.end());
    return mappers;
}

// Connections that have it open, and writers. A forked child that only reads is no connection of its own.
void Broker::fill_openers(const CacheRegion &region, wire::Entry *entry) const {
    std::set<int32_t> pids;
    for (const auto &[id, connection] : connections_)
        if (connection.pid > 0 && (caches_->has_open(id, region.names().region_id) || region.owns(id)))
            pids.insert(connection.pid);
    fill_pids({pids.begin(), pids.end()}, entry);
}

void Broker::fill_pids(const std::vector<int32_t> &pids, wire::Entry *entry) {
    entry->n_pids = static_cast<uint32_t>(std::min(pids.size(), std::size(entry->pids)));
    std::copy_n(pids.begin(), entry->n_pids, entry->pids);
}

// Destroyed caches as a listing tells them: such as nobody maps any more are left out, if that can be told.
void Broker::note_destroyed() {
    std::vector<const CacheRegion *> dying;
    std::vector<int> files;
    for (const CacheRegion *region : caches_->all())
        if (region->state() == CacheRegion::State::Dying) dying.push_back(region), files.push_back(region->file());
    destroyed_.clear();
    if (dying.empty()) return;
    const Mappers mappers = processes_mapping(files, now_ns() + kPatience);
    for (size_t i = 0; i < dying.size(); ++i) {
        if (mappers.of_file[i].empty() && mappers.complete) continue;
        const CacheRegion &region = *dying[i];
        wire::Entry &entry = destroyed_.emplace_back();
        entry.session_id = region.names().session_id;
        entry.cache_id = region.names().cache_id;
        entry.has_cache = 1;
        entry.limit_bytes = static_cast<int64_t>(region.limit_bytes());
        entry.charged_bytes = static_cast<int64_t>(region.charged());
        entry.state = 2;
        snprintf(entry.tag, sizeof entry.tag, "%s", region.tag());
        snprintf(entry.label, sizeof entry.label, "%s", region.label());
        fill_pids(mappers.of_file[i], &entry);
    }
}

// The destroyed cache that comes after so many others of them. One look at the processes serves a whole listing; of two
// listings at once the first may miss what the second has found gone. False: there are no more.
bool Broker::fill_destroyed(uint32_t told, wire::Entry *entry) {
    if (told == 0) note_destroyed();
    if (told >= destroyed_.size()) {
        destroyed_.clear();
        return false;
    }
    *entry = destroyed_[told];
    return true;
}

} // namespace libcache
