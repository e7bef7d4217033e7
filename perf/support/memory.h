// SPDX-License-Identifier: Apache-2.0
// Plain memory to compare with: anonymous and private, on huge pages where the kernel has them, present before it is
// used. A value of one owner; any thread may use what it holds.
#pragma once

#include <cstddef>

namespace perf {

enum class Pages { Huge, Small };

class Memory {
  public:
    Memory() = default;
    // Throws std::bad_alloc. `present`: every page is made now.
    explicit Memory(size_t bytes, Pages pages = Pages::Huge, bool present = true);
    Memory(Memory &&other) noexcept;
    Memory &operator=(Memory &&other) noexcept;
    ~Memory();

    char *data() const { return data_; }
    size_t bytes() const { return bytes_; }
    void make_present(); // every page of it that is not there yet

  private:
    char *data_ = nullptr;
    size_t bytes_ = 0; // rounded up to whole huge pages
};

// Makes the pages of [data, data + bytes) present and writable, in one call where the kernel can.
void make_present(char *data, size_t bytes);

} // namespace perf
