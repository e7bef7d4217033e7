// SPDX-License-Identifier: Apache-2.0
#include "core/spill/reader.h"

#include "core/common/error.h"
#include "core/spill/checksum.h"
#include "core/spill/ring.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <unistd.h>
#include <vector>

namespace libcache {
namespace {

constexpr unsigned kDepth = 64;              // transfers of one thread under way
constexpr uint64_t kPieceBytes = 2 << 20;    // of a large row: several are read side by side
constexpr uint64_t kMergedBytes = 512 << 10; // rows that lie side by side are read as one, up to this
constexpr uint64_t kGapBytes = 4096;         // ... with no more than this between them
constexpr size_t kMergedRows = 64;

// The ring of a thread that reads batches. A child that was forked in between must not touch its parent's.
struct ThreadRing {
    std::unique_ptr<TransferRing> ring;

    ~ThreadRing() { forget_parents(); }
    void forget_parents() {
        if (ring && ring->is_parents()) (void)ring.release(); // its memory is not mapped here, its descriptor is closed
    }
    TransferRing &get() {
        forget_parents();
        if (!ring) ring = std::make_unique<TransferRing>(kDepth);
        return *ring;
    }
};
thread_local ThreadRing thread_ring;

// Consecutive bytes of the file, and the rows in them.
struct Stretch {
    Transfer transfer;
    std::vector<iovec> pieces;
    std::vector<SpillRead *> rows;
};

class BatchRead {
  public:
    BatchRead(int fd, size_t n) : fd_(fd), gap_(kGapBytes) { stretches_.reserve(n); }

    // In the order of their places.
    void add(SpillRead &read) {
        if (read.stub.bytes > kPieceBytes) return add_large(read);
        Stretch *last = stretches_.empty() ? nullptr : &stretches_.back();
        if (last != nullptr && joins(*last, read.stub)) {
            if (const uint64_t gap = read.stub.offset - end_; gap != 0) last->pieces.push_back({gap_.data(), gap});
        } else {
            last = &begin(read.stub.offset);
        }
        last->pieces.push_back({read.image->data(), read.stub.bytes});
        last->rows.push_back(&read);
        end_ = read.stub.offset + read.stub.bytes;
    }

    void run() {
        TransferRing &ring = thread_ring.get();
        ring.expect(stretches_.size());
        for (Stretch &stretch : stretches_) {
            stretch.transfer.pieces = stretch.pieces.data();
            stretch.transfer.n_pieces = static_cast<unsigned>(stretch.pieces.size());
            ring.start(stretch.transfer);
        }
        while (ring.next_done(true) != nullptr) {
        }
        for (const Stretch &stretch : stretches_)
            if (stretch.transfer.error != 0)
                for (SpillRead *row : stretch.rows)
                    row->error = stretch.transfer.error;
    }

  private:
    const int fd_;
    std::vector<char> gap_; // what lies between rows goes there
    std::vector<Stretch> stretches_;
    uint64_t end_ = 0;
    bool large_ = false;

    Stretch &begin(uint64_t offset) {
        Stretch &stretch = stretches_.emplace_back();
        stretch.transfer.fd = fd_;
        stretch.transfer.offset = offset;
        large_ = false;
        return stretch;
    }
    bool joins(const Stretch &last, const SpillStub &stub) const {
        return !large_ && last.rows.size() < kMergedRows && stub.offset >= end_ && stub.offset - end_ <= kGapBytes &&
               stub.offset + stub.bytes - last.transfer.offset <= kMergedBytes;
    }
    void add_large(SpillRead &read) {
        for (uint64_t at = 0; at < read.stub.bytes; at += kPieceBytes) {
            Stretch &stretch = begin(read.stub.offset + at);
            stretch.pieces.push_back({read.image->data() + at, std::min(kPieceBytes, read.stub.bytes - at)});
            stretch.rows.push_back(&read);
        }
        large_ = true;
    }
};

// By itself: what a single get does.
void read_one(int fd, SpillRead &read) {
    iovec piece{read.image->data(), read.stub.bytes};
    uint64_t offset = read.stub.offset;
    read.error = 0;
    while (piece.iov_len != 0) {
        const ssize_t n = pread(fd, piece.iov_base, piece.iov_len, static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            read.error = n < 0 ? errno : ENODATA;
            return;
        }
        piece = {static_cast<char *>(piece.iov_base) + n, piece.iov_len - static_cast<size_t>(n)};
        offset += static_cast<uint64_t>(n);
    }
}

// False: there is nothing to read, and read.code says why.
bool prepare(SpillRead &read, uint64_t file_bytes) {
    const SpillStub &stub = read.stub;
    if (stub.bytes < sizeof(RowHeader) || stub.offset > file_bytes || stub.bytes > file_bytes - stub.offset)
        return read.error = ENODATA, read.code = CACHE_ECORRUPT, false;
    read.image = SpilledImage::make(stub.bytes);
    if (!read.image) read.code = CACHE_ENOMEM;
    return read.image != nullptr;
}

// One sum covers the row: all that can be told of the damage is whether the header has it.
void look_at_damage(SpillRead &read) {
    RowHeader header;
    memcpy(&header, read.image->data(), sizeof header);
    if (header.check == row_check(header.layout, read.row_id, header.bytes, header.n_columns))
        read.columns = header.n_columns;
}

void judge(SpillRead &read) {
    const bool differs = read.error == 0 && crc32c(read.image->data(), read.stub.bytes) != read.stub.crc;
    if (differs) look_at_damage(read);
    if (differs || read.error == ENODATA)
        read.code = CACHE_ECORRUPT;
    else if (read.error != 0)
        read.code = read.error == ENOMEM ? CACHE_ENOMEM : CACHE_EIO;
    if (read.code != 0) read.image.reset();
}

} // namespace

OwnedImage SpilledImage::make(uint64_t bytes) {
    void *const memory = aligned_alloc(64, round_up(sizeof(SpilledImage) + bytes, 64));
    return OwnedImage(memory != nullptr ? new (memory) SpilledImage{nullptr, nullptr, nullptr, bytes, {}} : nullptr);
}

void SpilledImage::Free::operator()(SpilledImage *image) const {
    free(image);
}

SpilledImages::~SpilledImages() {
    while (first_ != nullptr) {
        SpilledImage *const image = first_;
        first_ = image->next;
        SpilledImage::Free{}(image);
    }
}

SpilledImage *SpilledImages::add(OwnedImage owned) {
    std::lock_guard lock(mutex_);
    SpilledImage *const image = owned.release();
    image->list = this;
    image->previous = nullptr;
    image->next = first_;
    if (first_ != nullptr) first_->previous = image;
    return first_ = image;
}

void SpilledImages::release(SpilledImage *image) {
    {
        std::lock_guard lock(mutex_);
        (image->previous != nullptr ? image->previous->next : first_) = image->next;
        if (image->next != nullptr) image->next->previous = image->previous;
    }
    SpilledImage::Free{}(image);
}

void read_images(int fd, uint64_t file_bytes, SpillRead *reads, size_t n) {
    std::vector<SpillRead *> order;
    order.reserve(n);
    for (size_t i = 0; i < n; i++)
        if (prepare(reads[i], file_bytes)) order.push_back(&reads[i]);
    if (order.size() == 1 && order[0]->stub.bytes <= kPieceBytes) {
        read_one(fd, *order[0]);
    } else {
        std::sort(order.begin(), order.end(),
                  [](const SpillRead *a, const SpillRead *b) { return a->stub.offset < b->stub.offset; });
        BatchRead batch(fd, order.size());
        for (SpillRead *read : order)
            batch.add(*read);
        batch.run();
        // A row must not fail for its neighbour's sake.
        for (SpillRead *read : order)
            if (read->error != 0) read_one(fd, *read);
    }
    for (SpillRead *read : order)
        judge(*read);
}

int read_failed(const SpillRead &read) {
    const auto id = static_cast<long long>(read.row_id);
    const auto offset = static_cast<unsigned long long>(read.stub.offset);
    const auto bytes = static_cast<unsigned long long>(read.stub.bytes);
    switch (read.code) {
    case CACHE_ENOMEM:
        return fail(CACHE_ENOMEM, "this process has no memory for the %llu bytes of spilled row %lld", bytes, id);
    case CACHE_EIO:
        if (read.error == EBADF)
            return fail(CACHE_EIO,
                        "spilled row %lld cannot be read: this process has closed the spill file's descriptor, as "
                        "daemons do with all that they inherit; open the cache again",
                        id);
        return fail(CACHE_EIO, "reading spilled row %lld, %llu bytes at %llu of the spill file: %s", id, bytes, offset,
                    strerror(read.error));
    default: break;
    }
    if (read.error == ENODATA)
        return fail(CACHE_ECORRUPT, "spilled row %lld, %llu bytes at %llu, does not lie within the spill file", id,
                    bytes, offset);
    if (read.columns == 0)
        return fail(CACHE_ECORRUPT,
                    "spilled row %lld, %llu bytes at %llu of the spill file, is damaged: its CRC-32C differs, and its "
                    "header is wrong",
                    id, bytes, offset);
    return fail(CACHE_ECORRUPT,
                "spilled row %lld, %llu bytes at %llu of the spill file, is damaged: its CRC-32C differs; its header "
                "is right, so it is one of its %u columns, which this sum covers together",
                id, bytes, offset, read.columns);
}

} // namespace libcache
