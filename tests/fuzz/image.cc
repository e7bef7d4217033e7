// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/image.h"

#include "core/client/internal.h"
#include "core/common/error.h"
#include "core/shm/backing.h"
#include "core/store/stats.h"
#include "tests/fuzz/server.h"
#include "tests/support/rows.h"
#include "tests/support/server.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fuzz {

using namespace libcache;

namespace {

constexpr uint64_t kLimit = 4 << 20;
constexpr uint64_t kLargestRow = 300;

void must(int64_t result, const char *call) {
    if (result < 0) test_die("%s: %s", call, cache_last_error());
}

// More shapes than there is room for stored layouts: the last rows carry their own.
void put_shapes(cache *handle, std::vector<int64_t> *ids) {
    for (int64_t n = 1; n <= kMaxLayouts + 20; n++) {
        const int64_t id = 1000 + n;
        std::vector<uint8_t> bytes(static_cast<size_t>(n), static_cast<uint8_t>(n));
        const cache_column column{bytes.data(), bytes.size(), &n, CACHE_UINT8, 1, {}};
        must(cache_put(handle, id, &column, 1), "cache_put");
        if (n % 16 == 0 || n > kMaxLayouts) ids->push_back(id);
    }
}

} // namespace

const Image &Image::get() {
    static const Image image;
    return image;
}

Image::Image() {
    Server server;
    server.start();
    cache_client *client = nullptr;
    uint32_t session = 0;
    cache *handle = nullptr;
    cache_options options = CACHE_OPTIONS_INIT;
    options.memory_limit_bytes = kLimit;
    options.tag = "tag";
    must(cache_connect(nullptr, &client), "cache_connect");
    must(cache_session_create(client, &session), "cache_session_create");
    must(cache_open(client, session, 1, &options, &handle), "cache_open");
    const char *const names[] = {"image", "label"};
    must(cache_schema_set(handle, names, 2), "cache_schema_set");
    for (int64_t i = 0; i < 24; i++) {
        ids_.push_back(i < 12 ? i : static_cast<int64_t>(rows::mix(static_cast<uint64_t>(i)) >> 1));
        must(rows::put(handle, ids_.back(), kLargestRow), "cache_put");
    }
    put_shapes(handle, &ids_);
    epoch_ = SlotWord::unpack(region_of(handle).slot(0)->owner.load(std::memory_order_acquire)).epoch;
    // While the handle is open: the writer's slot is ACTIVE and has its extents.
    const Fd region = open_again(server.held(HeldKind::Region), O_RDWR);
    if (!region) test_die("the region cannot be opened again: %s", strerror(errno));
    note_pages(region.get());
    note_places(region.get());
    must(cache_close(handle), "cache_close");
    must(cache_disconnect(client), "cache_disconnect");
}

void Image::note_pages(int fd) {
    struct stat status {};
    fstat(fd, &status);
    file_bytes_ = static_cast<uint64_t>(status.st_size);
    static const char kZeros[4096] = {};
    for (off_t at = lseek(fd, 0, SEEK_DATA); at >= 0; at = lseek(fd, at, SEEK_DATA)) {
        Page page{};
        page.offset = static_cast<uint64_t>(at) / sizeof page.bytes * sizeof page.bytes;
        if (pread(fd, page.bytes, sizeof page.bytes, static_cast<off_t>(page.offset)) < 0)
            test_die("pread of a region");
        if (memcmp(page.bytes, kZeros, sizeof kZeros) != 0) pages_.push_back(page);
        at = static_cast<off_t>(page.offset + sizeof page.bytes);
    }
    memcpy(head_, pages_.at(0).bytes, 4096);
    memcpy(head_ + 4096, pages_.at(1).offset == 4096 ? pages_[1].bytes : kZeros, 4096);
}

void Image::note_places(int fd) {
    RegionMap map;
    if (map.open(fd, RegionAccess::Read) != 0) test_die("mapping the image: %s", last_error());
    for (uint64_t at = 0; at < kHeaderBytes; at += 8)
        words_.push_back(at);
    for (uint64_t at = header().slots_offset; at < header().slots_offset + sizeof(Slot); at += 8)
        words_.push_back(at);
    for_each_extent(map, [&](uint64_t chunk, ExtentWord word) {
        for (uint64_t i = 0; i < 4; i++)
            words_.push_back(header().table_offset + chunk * sizeof(Extent) + 8 * i);
        const uint64_t start = map.chunk_offset(chunk);
        if (word.state == ExtentState::Index) {
            for (uint64_t at = start; at < start + word.len * kChunkBytes; at += 8)
                if (*reinterpret_cast<const uint64_t *>(map.base() + at) != 0) entries_.push_back(at);
        } else if (word.state == ExtentState::Held || word.state == ExtentState::Sealed) {
            const uint32_t used = Bump::unpack(map.extent(chunk)->bump.load(std::memory_order_relaxed)).used;
            for (uint64_t at = start; at < start + used * kUnitBytes;) {
                const auto &row = *reinterpret_cast<const RowHeader *>(map.base() + at);
                if (row.stride == 0) test_die("the image has a row without a stride");
                rows_.push_back(at);
                for (uint64_t word_at = at; word_at < at + 96 && word_at < at + row.stride * kUnitBytes; word_at += 8)
                    words_.push_back(word_at);
                at += row.stride * kUnitBytes;
            }
        }
    });
    if (rows_.empty() || entries_.empty()) test_die("the image holds no rows");
}

Fd Image::copy() const {
    Fd file(memfd_create("libcache fuzz", MFD_CLOEXEC));
    if (!file || ftruncate(file.get(), static_cast<off_t>(file_bytes_)) != 0) test_die("memfd: %s", strerror(errno));
    for (const Page &page : pages_)
        if (pwrite(file.get(), page.bytes, sizeof page.bytes, static_cast<off_t>(page.offset)) != sizeof page.bytes)
            test_die("pwrite of an image: %s", strerror(errno));
    return file;
}

void Image::restore(int copy, char *base) const {
    const auto empty = [&](uint64_t from, uint64_t to) {
        if (from < to && fallocate(copy, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(from),
                                   static_cast<off_t>(to - from)) != 0)
            test_die("fallocate of an image: %s", strerror(errno));
    };
    uint64_t at = 0;
    for (const Page &page : pages_) {
        empty(at, page.offset);
        memcpy(base + page.offset, page.bytes, sizeof page.bytes);
        at = page.offset + sizeof page.bytes;
    }
    empty(at, file_bytes_);
}

void Image::damage(char *base, Input &input) const {
    const uint8_t how = input.byte() % 5;
    const auto place = input.number<uint16_t>();
    const auto word_at = [&](uint64_t offset) { return reinterpret_cast<AtomicU64 *>(base + offset); };
    if (how == 0) { // a byte
        const uint64_t offset = words_[place % words_.size()] + input.byte() % 8;
        base[offset] = static_cast<char>(base[offset] ^ static_cast<char>(input.byte()));
    } else if (how == 1) { // a word
        word_at(words_[place % words_.size()])->store(input.number<uint64_t>(), std::memory_order_relaxed);
    } else if (how == 2) { // a word, by a little
        word_at(words_[place % words_.size()])
            ->fetch_add(static_cast<uint64_t>(input.number<int8_t>()), std::memory_order_relaxed);
    } else if (how == 3) { // an index entry, to a row or anywhere
        const auto value = input.number<uint32_t>();
        word_at(entries_[place % entries_.size()])
            ->store(value % 2 != 0 ? IndexEntry::pack(value, rows_[value / 2 % rows_.size()]) : uint64_t{value} << 4,
                    std::memory_order_relaxed);
    } else { // a header that passes for one
        auto &row = *reinterpret_cast<RowHeader *>(base + rows_[place % rows_.size()]);
        switch (input.byte() % 5) {
        case 0: row.layout = input.number<uint32_t>(); break;
        case 1: row.row_id = input.number<int64_t>(); break;
        case 2: row.bytes = input.number<uint64_t>(); break;
        case 3: row.bytes += static_cast<uint64_t>(input.number<int8_t>()); break;
        default: row.n_columns = input.number<uint32_t>(); break;
        }
        row.check = row_check(row.layout, row.row_id, row.bytes, row.n_columns);
    }
}

Mapping::Mapping(int fd) {
    struct stat status {};
    fstat(fd, &status);
    bytes_ = static_cast<uint64_t>(status.st_size);
    void *const at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) test_die("mmap of a copy: %s", strerror(errno));
    base_ = static_cast<char *>(at);
}

Mapping::~Mapping() {
    munmap(base_, bytes_);
}

Slot &Mapping::slot(uint64_t number) const {
    return reinterpret_cast<Slot *>(base_ + Image::get().header().slots_offset)[number];
}

} // namespace fuzz
