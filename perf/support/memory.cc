// SPDX-License-Identifier: Apache-2.0
#include "perf/support/memory.h"

#include "core/common/page.h"

#include <cstdint>
#include <new>
#include <sys/mman.h>
#include <utility>

namespace perf {
namespace {

constexpr size_t kHuge = size_t{2} << 20;

} // namespace

Memory::Memory(size_t bytes, Pages pages, bool present) : bytes_((bytes + kHuge - 1) / kHuge * kHuge) {
    // One huge page more, to begin on the boundary of one; what is too much is given back.
    const size_t mapped = bytes_ + kHuge;
    void *const map = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) throw std::bad_alloc();
    char *const start = static_cast<char *>(map);
    const size_t before = (kHuge - reinterpret_cast<uintptr_t>(start) % kHuge) % kHuge;
    data_ = start + before;
    if (before != 0) munmap(start, before);
    munmap(data_ + bytes_, kHuge - before);
    madvise(data_, bytes_, pages == Pages::Huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (present) make_present();
}

Memory::Memory(Memory &&other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Memory &Memory::operator=(Memory &&other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

Memory::~Memory() {
    if (data_ != nullptr) munmap(data_, bytes_);
}

void Memory::make_present() {
    perf::make_present(data_, bytes_);
}

void make_present(char *data, size_t bytes) {
    if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return;
    for (size_t at = 0; at < bytes; at += libcache::page_bytes()) { // before Linux 5.14: by touching
        volatile char *const byte = data + at;
        *byte = *byte;
    }
}

} // namespace perf
