// SPDX-License-Identifier: Apache-2.0
#include "core/server/holders.h"

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

namespace libcache {
namespace {

// A line of maps: from-to rights offset major:minor inode path
bool maps_file(int pid, const struct stat &file) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    const std::unique_ptr<FILE, int (*)(FILE *)> maps(fopen(path, "re"), fclose);
    char *line = nullptr;
    size_t room = 0;
    bool found = false;
    while (maps && !found && getline(&line, &room, maps.get()) > 0) {
        unsigned major_number = 0, minor_number = 0;
        unsigned long inode = 0;
        found = sscanf(line, "%*s %*s %*s %x:%x %lu", &major_number, &minor_number, &inode) == 3 &&
                inode == file.st_ino && makedev(major_number, minor_number) == file.st_dev;
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

std::vector<int32_t> processes_mapping(int file, size_t most) {
    std::vector<int32_t> found;
    struct stat status;
    const std::unique_ptr<DIR, int (*)(DIR *)> proc(opendir("/proc"), close_folder);
    if (!proc || fstat(file, &status) != 0) return found;
    while (const dirent *entry = readdir(proc.get())) {
        const int pid = number_of(entry->d_name);
        if (pid != 0 && pid != getpid() && maps_file(pid, status)) found.push_back(pid);
    }
    std::sort(found.begin(), found.end());
    found.resize(std::min(found.size(), most));
    return found;
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

// The destroyed cache that comes after so many others of them; such as nobody maps any more are not told. False: none.
bool Broker::fill_destroyed(uint32_t told, wire::Entry *entry) const {
    for (const CacheRegion *region : caches_->all()) {
        if (region->state() != CacheRegion::State::Dying) continue;
        const std::vector<int32_t> pids = processes_mapping(region->file(), std::size(entry->pids));
        if (pids.empty() || told-- != 0) continue;
        entry->session_id = region->names().session_id;
        entry->cache_id = region->names().cache_id;
        entry->has_cache = 1;
        entry->limit_bytes = static_cast<int64_t>(region->limit_bytes());
        entry->charged_bytes = static_cast<int64_t>(region->charged());
        entry->state = 2;
        snprintf(entry->tag, sizeof entry->tag, "%s", region->tag());
        snprintf(entry->label, sizeof entry->label, "%s", region->label());
        fill_pids(pids, entry);
        return true;
    }
    return false;
}

} // namespace libcache
