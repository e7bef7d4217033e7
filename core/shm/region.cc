// SPDX-License-Identifier: Apache-2.0
#include "core/shm/region.h"

#include "core/common/error.h"
#include "core/common/page.h"

#include <algorithm>
#include <boost/interprocess/exceptions.hpp>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace libcache {
namespace {

namespace ipc = boost::interprocess;

// Lets Boost map a descriptor that came over a socket.
struct Mappable {
    int fd;
    ipc::mode_t mode;
    ipc::mapping_handle_t get_mapping_handle() const { return ipc::ipcdetail::mapping_handle_from_file_handle(fd); }
    ipc::mode_t get_mode() const { return mode; }
};

// Address space for `bytes` whose start is congruent to `offset` modulo 2 MiB, so that huge pages can be mapped whole.
// The caller maps over it with MAP_FIXED. Whole pages, since what is left over is unmapped, and a header may be less.
char *reserve_aligned(uint64_t bytes, uint64_t offset) {
    bytes = round_up(bytes, page_bytes());
    const uint64_t span = bytes + kHugeBytes;
    void *raw = mmap(nullptr, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return nullptr;
    char *const start = static_cast<char *>(raw);
    const uint64_t skew = (offset - reinterpret_cast<uintptr_t>(start)) % kHugeBytes;
    char *const aligned = start + skew;
    if (skew != 0) munmap(start, skew);
    if (span - skew > bytes) munmap(aligned + bytes, span - skew - bytes);
    return aligned;
}

int map_aligned(ipc::mapped_region &map, int fd, bool writable, uint64_t offset, uint64_t bytes) {
    char *const address = reserve_aligned(bytes, offset);
    if (address == nullptr)
        return fail(CACHE_ENOMEM, "no address space for a mapping of %llu bytes: %s (see ulimit -v)",
                    static_cast<unsigned long long>(bytes), strerror(errno));
    try {
        const Mappable file{fd, writable ? ipc::read_write : ipc::read_only};
        ipc::mapped_region fresh(file, file.mode, static_cast<ipc::offset_t>(offset), bytes, address,
                                 MAP_FIXED | MAP_NORESERVE);
        map.swap(fresh);
    } catch (const ipc::interprocess_exception &e) {
        munmap(address, bytes);
        return fail(CACHE_ENOMEM, "mapping %llu bytes of a cache region failed: %s",
                    static_cast<unsigned long long>(bytes), e.what());
    }
    madvise(address, bytes, MADV_DONTDUMP); // a core of the trainer must not carry the data set
    return 0;
}

// Which pages are huge is the same for everybody who maps the region: a page made by one is charged to all.
// Kernels without huge pages refuse both advices, and have only small pages: no error.
void advise_pages(char *data, const Geometry &g, uint64_t first_chunk, uint64_t chunks) {
    const uint64_t end = first_chunk + chunks;
    const uint64_t huge_end = std::clamp(g.huge_chunks, first_chunk, end);
    if (huge_end > first_chunk) madvise(data, (huge_end - first_chunk) * kChunkBytes, MADV_HUGEPAGE);
    if (end > huge_end)
        madvise(data + (huge_end - first_chunk) * kChunkBytes, (end - huge_end) * kChunkBytes, MADV_NOHUGEPAGE);
}

bool spill_is_possible(const Geometry &g) {
    if (g.spill_segments == 0) return g.spill_offset == 0;
    return g.spill_segments <= kMaxRunChunks && g.spill_offset % page_bytes() == 0 && g.spill_offset < g.data_offset &&
           g.spill_offset >= g.table_offset + g.chunks * sizeof(Extent) &&
           g.data_offset - g.spill_offset >= g.spill_segments * sizeof(SpillSegment);
}

bool possible(const Geometry &g, uint64_t file_bytes) {
    return g.region_bytes <= file_bytes && g.region_bytes < (uint64_t{1} << 52) && g.slots_offset == kHeaderBytes &&
           g.slots >= 1 && g.slots <= kMaxSlots && g.table_offset % page_bytes() == 0 &&
           g.table_offset >= g.slots_offset + g.slots * sizeof(Slot) && g.table_offset < g.region_bytes &&
           g.chunks >= 1 && g.chunks < (uint64_t{1} << 36) && g.data_offset % kHugeBytes == 0 &&
           g.data_offset >= g.table_offset + g.chunks * sizeof(Extent) && g.data_offset < g.region_bytes &&
           spill_is_possible(g) && (g.region_bytes - g.data_offset) / kChunkBytes == g.chunks &&
           g.huge_chunks <= g.chunks && g.huge_chunks % (kHugeBytes / kChunkBytes) == 0;
}

} // namespace

Geometry Geometry::for_limit(uint64_t limit_bytes, bool huge, uint64_t spill_segments) {
    Geometry g{};
    const uint64_t whole_units = huge ? limit_bytes / kHugeBytes : 0;
    const uint64_t rest = round_up(limit_bytes - whole_units * kHugeBytes, kChunkBytes);
    // Header and tables are charged too, so the last whole unit may not fit: the small pages must hold that unit's
    // worth.
    const uint64_t small_bytes = 2 * (rest + (huge ? kHugeBytes : 0));
    g.huge_chunks = 2 * whole_units * (kHugeBytes / kChunkBytes);
    g.chunks = g.huge_chunks + small_bytes / kChunkBytes;
    g.slots_offset = kHeaderBytes;
    g.slots = kMaxSlots;
    g.table_offset = round_up(g.slots_offset + g.slots * sizeof(Slot), page_bytes());
    const uint64_t table_end = round_up(g.table_offset + g.chunks * sizeof(Extent), page_bytes());
    g.spill_segments = spill_segments;
    if (spill_segments != 0) g.spill_offset = table_end;
    g.data_offset = round_up(table_end + spill_segments * sizeof(SpillSegment), kHugeBytes);
    g.region_bytes = g.data_offset + g.chunks * kChunkBytes;
    return g;
}

int RegionMap::map(int fd, RegionAccess access) {
    mapped_bytes_ = access == RegionAccess::Control ? geometry_.data_offset : geometry_.region_bytes;
    const int rc = map_aligned(map_, fd, access != RegionAccess::Read, 0, mapped_bytes_);
    if (rc != 0) return rc;
    base_ = static_cast<char *>(map_.get_address());
    // A child must not touch what its parent holds: it gets a slot and a writing mapping of its own.
    if (access == RegionAccess::Write) madvise(base_, mapped_bytes_, MADV_DONTFORK);
    if (access != RegionAccess::Control) advise_pages(base_ + geometry_.data_offset, geometry_, 0, geometry_.chunks);
    return 0;
}

int RegionMap::map_as(int fd, const Geometry &geometry, RegionAccess access) {
    geometry_ = geometry;
    return map(fd, access);
}

int RegionMap::open(int fd, RegionAccess access) {
    struct stat st {};
    if (fstat(fd, &st) != 0) return fail(CACHE_EIO, "fstat of a cache region: %s", strerror(errno));
    const uint64_t file_bytes = static_cast<uint64_t>(st.st_size);
    if (file_bytes < kHeaderBytes)
        return fail(CACHE_ECORRUPT, "a cache region of %llu bytes is too short: its header alone has %llu",
                    static_cast<unsigned long long>(file_bytes), static_cast<unsigned long long>(kHeaderBytes));
    ipc::mapped_region first;
    if (int rc = map_aligned(first, fd, false, 0, kHeaderBytes); rc != 0) return rc;
    const auto *header = static_cast<const RegionHeader *>(first.get_address());
    // acq [ready] pairs with the maker's last store: the constants below were written before
    const uint64_t magic = header->magic.load(std::memory_order_acquire);
    if (magic == 0) return fail(CACHE_ETIMEOUT, "the cache region is not ready: its maker has not published it");
    if (magic != kRegionMagic)
        return fail(CACHE_ECORRUPT, "not a cache region: magic %016llx instead of %016llx",
                    static_cast<unsigned long long>(magic), static_cast<unsigned long long>(kRegionMagic));
    if (header->version != kFormatVersion)
        return fail(CACHE_EVERSION, "the cache region has format version %u, this library reads version %u",
                    header->version, kFormatVersion);
    if (header->stamp != kLayoutStamp)
        return fail(CACHE_EVERSION,
                    "the cache region was laid out by another build: stamp %016llx instead of %016llx; use the server "
                    "and the library of one build",
                    static_cast<unsigned long long>(header->stamp), static_cast<unsigned long long>(kLayoutStamp));
    geometry_ = {header->region_bytes, header->slots_offset, header->slots,
                 header->table_offset, header->chunks,       header->data_offset,
                 header->huge_chunks,  header->spill_offset, header->spill_segments};
    if (!possible(geometry_, file_bytes))
        return fail(CACHE_ECORRUPT, "the cache region's geometry is impossible: %llu bytes stated, %llu in the file",
                    static_cast<unsigned long long>(geometry_.region_bytes),
                    static_cast<unsigned long long>(file_bytes));
    return map(fd, access);
}

int WindowMap::map(int fd, const Geometry &geometry, uint64_t first_chunk, uint64_t chunks) {
    const uint64_t offset = geometry.data_offset + first_chunk * kChunkBytes;
    if (int rc = map_aligned(map_, fd, true, offset, chunks * kChunkBytes); rc != 0) return rc;
    advise_pages(address(), geometry, first_chunk, chunks);
    return 0;
}

int populate(void *address, uint64_t bytes) {
    if (madvise(address, bytes, MADV_POPULATE_WRITE) == 0) return 0;
    if (errno == EINVAL) { // before Linux 5.14; an atomic "or 0" touches a page without changing what others write
        for (uint64_t at = 0; at < bytes; at += page_bytes())
            __atomic_fetch_or(static_cast<char *>(address) + at, 0, __ATOMIC_RELAXED);
        return 0;
    }
    if (errno == ENOMEM || errno == EFAULT || errno == ENOSPC)
        return fail(CACHE_EFULL, "the kernel has no memory for %llu more bytes of cache",
                    static_cast<unsigned long long>(bytes));
    return fail(CACHE_EIO, "populating %llu bytes of cache: %s", static_cast<unsigned long long>(bytes),
                strerror(errno));
}

} // namespace libcache
