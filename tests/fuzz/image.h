// SPDX-License-Identifier: Apache-2.0
// A real cache region as it lay in a file, and damaged copies of it. It holds rows of stored layouts and rows that
// carry their column table, dense and hashed index levels, a schema, an extent that is HELD by slot 0 and others that
// are GRANTED to it.
#pragma once

#include "core/control/socket.h"
#include "core/shm/region.h"
#include "tests/fuzz/input.h"

#include <cstdint>
#include <vector>

namespace fuzz {

class Image {
  public:
    static const Image &get(); // made by a real broker at the first call

    libcache::Fd copy() const;                // an undamaged one
    void restore(int copy, char *base) const; // makes a copy undamaged again; `base` as for damage()
    const libcache::RegionHeader &header() const { return *reinterpret_cast<const libcache::RegionHeader *>(head_); }
    uint64_t epoch() const { return epoch_; } // of slot 0
    const std::vector<int64_t> &ids() const { return ids_; }

    // One change that the input chooses: a byte, a word, a field of a row header with its check made right again, or an
    // index entry. `base` is a writable mapping of a copy.
    void damage(char *base, Input &input) const;

  private:
    struct Page {
        uint64_t offset;
        char bytes[4096];
    };
    uint64_t file_bytes_ = 0, epoch_ = 0;
    std::vector<Page> pages_;       // those with anything in them
    std::vector<uint64_t> words_;   // offsets of the words that are not 0, rows' columns left out
    std::vector<uint64_t> rows_;    // offsets of row headers
    std::vector<uint64_t> entries_; // of index entries in use
    std::vector<int64_t> ids_;
    alignas(64) char head_[libcache::kHeaderBytes];

    Image();
    void note_pages(int fd);
    void note_places(int fd);
};

// The whole of a region's file in this process, for damage and for the fuzzer's own judgement.
class Mapping {
  public:
    explicit Mapping(int fd);
    ~Mapping();
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;
    char *base() const { return base_; }
    libcache::Slot &slot(uint64_t number) const; // by the undamaged geometry
    libcache::RegionHeader &header() const { return *reinterpret_cast<libcache::RegionHeader *>(base_); }

  private:
    char *base_;
    uint64_t bytes_;
};

} // namespace fuzz
