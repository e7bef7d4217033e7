// SPDX-License-Identifier: Apache-2.0
#include "core/server/spill_folder.h"

#include "core/common/error.h"
#include "core/shm/layout.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace libcache {
namespace {

constexpr uint64_t kMostSegments = uint64_t{1} << 20; // 8 TiB; the table takes address space for them, no memory
constexpr long kRamfs = 0x858458f6;

long type_of(const std::string &folder) {
    struct statfs status {};
    return statfs(folder.c_str(), &status) == 0 ? status.f_type : 0;
}

bool same_device(const std::string &folder, const char *other) {
    struct stat ours, theirs;
    return stat(folder.c_str(), &ours) == 0 && stat(other, &theirs) == 0 && ours.st_dev == theirs.st_dev;
}

// For file systems that have no O_TMPFILE. Dies between: a file of no bytes stays, named for what it is.
Fd make_and_unlink(const std::string &folder) {
    std::string path = folder + "/libcache-spill-XXXXXX";
    Fd file(mkostemp(path.data(), O_CLOEXEC));
    if (file && unlink(path.c_str()) != 0) file.reset();
    return file;
}

} // namespace

bool is_network_file_system(long type) {
    return type == NFS_SUPER_MAGIC;
}

std::string spill_folder_fault(const std::string &folder) {
    const std::string problem = "the spill folder " + folder + " is not writable: ";
    if (folder.empty() || folder[0] != '/') return problem + "it must be an absolute path";
    if (folder.size() >= 512) return problem + "its path is longer than 511 bytes";
    struct stat status;
    if (stat(folder.c_str(), &status) != 0 && errno == ENOENT)
        return problem + "it does not exist; make it with mkdir -p " + folder;
    // Proved by making and removing a folder there, which also finds read-only file systems.
    std::string trial = folder + "/libcache-XXXXXX";
    if (mkdtemp(trial.data()) == nullptr) return problem + strerror(errno);
    if (rmdir(trial.c_str()) != 0) return problem + "cannot remove a folder in it again: " + strerror(errno);
    if (is_network_file_system(type_of(folder)))
        return "the spill folder " + folder +
               " is on NFS, which keeps deleted files of a dead server: choose a folder on a local disk";
    return "";
}

std::string spill_folder_advice(const std::string &folder) {
    const long type = type_of(folder);
    if (type == TMPFS_MAGIC || type == kRamfs)
        return "the spill folder " + folder +
               " is on tmpfs: what is spilled there takes the memory that it should spare; choose a folder on a disk";
    if ((folder + "/").rfind("/tmp/", 0) == 0 && same_device(folder, "/"))
        return "the spill folder " + folder +
               " is in /tmp on the system disk: spilled rows may fill it up; choose another disk, or set --spill_limit";
    return "";
}

int make_spill_file(const std::string &folder, Fd *file) {
    Fd fresh(open(folder.c_str(), O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600));
    // What file systems and kernels say that do not know O_TMPFILE.
    if (!fresh && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL || errno == ENOENT))
        fresh = make_and_unlink(folder);
    if (!fresh)
        return fail(CACHE_EIO, "cannot make a file for spilled rows in %s: %s", folder.c_str(), strerror(errno));
    *file = std::move(fresh);
    return 0;
}

uint64_t spill_segments_of(const std::string &folder) {
    struct statvfs status {};
    if (statvfs(folder.c_str(), &status) != 0 || status.f_blocks == 0) return kMostSegments;
    const unsigned __int128 bytes = static_cast<unsigned __int128>(status.f_blocks) * status.f_frsize;
    const auto segments = static_cast<uint64_t>(
        std::min<unsigned __int128>(bytes / kSegmentBytes + 1, static_cast<unsigned __int128>(kMostSegments)));
    // Twice as far as it has room: a long run must not fail for want of adjacent segments.
    return std::min(2 * segments, kMostSegments);
}

uint64_t file_system_room(int file) {
    struct statvfs status {};
    if (fstatvfs(file, &status) != 0 || status.f_blocks == 0) return ~uint64_t{0};
    return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
}

} // namespace libcache
