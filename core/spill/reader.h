// SPDX-License-Identifier: Apache-2.0
// Reading spilled rows: stubs in, checked images in memory of one's own out. Used by the client's get, get_batch and
// gather. Any thread may call, also in a forked child; nothing is shared between readers but the file.
#pragma once

#include "core/shm/layout.h"

#include <cstdint>
#include <memory>
#include <mutex>

namespace libcache {

// A row's image, 64-aligned, with the links of its list before it.
struct SpilledImage {
    class SpilledImages *list;
    SpilledImage *next, *previous;
    uint64_t bytes;
    uint64_t reserved[4];

    struct Free {
        void operator()(SpilledImage *image) const;
    };
    static std::unique_ptr<SpilledImage, Free> make(uint64_t bytes); // null: no memory
    char *data() { return reinterpret_cast<char *>(this + 1); }
};
static_assert(sizeof(SpilledImage) == 64);
using OwnedImage = std::unique_ptr<SpilledImage, SpilledImage::Free>;

// The images that a handle's views show: each is freed by its view's release or with the list.
class SpilledImages {
  public:
    ~SpilledImages();
    SpilledImage *add(OwnedImage image);
    void release(SpilledImage *image);

  private:
    std::mutex mutex_;
    SpilledImage *first_ = nullptr;
};

struct SpillRead {
    SpillStub stub;
    int64_t row_id;
    OwnedImage image;     // if `code` is 0
    int code = 0;         // CACHE_ENOMEM, CACHE_EIO, CACHE_ECORRUPT
    int error = 0;        // errno; ENODATA: not within the file
    uint32_t columns = 0; // of a row whose CRC differs and whose header is right all the same
};

// Reads n images from `fd`, whose stubs may name anything below `file_bytes`; many at once where n > 1, neighbours in
// one piece.
void read_images(int fd, uint64_t file_bytes, SpillRead *reads, size_t n);
// The sentence of a read that failed; returns its code.
int read_failed(const SpillRead &read);

} // namespace libcache
