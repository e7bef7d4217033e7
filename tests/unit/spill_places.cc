// SPDX-License-Identifier: Apache-2.0
// Places in the spill file as a damaged stub may name them: what does not lie within the file's bounds is not read,
// though it may be there and have the right sum; alone and in a batch.
#include "core/spill/checksum.h"
#include "core/spill/reader.h"

#include "capi/libcache.h"
#include "core/shm/layout.h"

#include <cerrno>
#include <criterion/criterion.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

using namespace libcache;

namespace {

constexpr uint64_t kThere = 64 << 10, kBound = 32 << 10; // bytes of the file, and how many of them count

struct File {
    std::vector<char> bytes = std::vector<char>(kThere);
    const int fd = memfd_create("spilled", MFD_CLOEXEC);

    File() {
        for (uint64_t i = 0; i < kThere; i++)
            bytes[i] = char(i * 7 + i / 256);
        cr_assert_eq(pwrite(fd, bytes.data(), kThere, 0), ssize_t(kThere));
    }
    ~File() { close(fd); }
    File(const File &) = delete;
    File &operator=(const File &) = delete;

    // A stub with the sum of what is there.
    SpillStub stub(uint64_t offset, uint64_t length) const {
        const uint64_t from = std::min(offset, kThere), to = std::min(offset + length, kThere);
        return {offset, length, crc32c(bytes.data() + from, to - from)};
    }
    // What the reader says of it by itself; beside a right one it must say the same.
    SpillRead read(const SpillStub &stub, uint64_t bound = kBound) const {
        SpillRead alone{stub, 1, nullptr};
        read_images(fd, bound, &alone, 1);
        SpillRead batch[] = {{this->stub(4096, 4096), 0, nullptr}, {stub, 1, nullptr}, {this->stub(0, 32), 2, nullptr}};
        read_images(fd, bound, batch, std::size(batch));
        cr_assert(batch[0].code == 0 && batch[2].code == 0, "a right one fails for its neighbour's sake");
        cr_assert(batch[1].code == alone.code && batch[1].error == alone.error, "code %d in a batch, %d alone",
                  batch[1].code, alone.code);
        cr_assert_eq(alone.image != nullptr, alone.code == 0);
        return alone;
    }
    void outside(const SpillStub &stub, uint64_t bound = kBound) const {
        const SpillRead got = read(stub, bound);
        cr_assert(got.code == CACHE_ECORRUPT && got.error == ENODATA, "%lu bytes at %lu: code %d, error %d", stub.bytes,
                  stub.offset, got.code, got.error);
    }
};

} // namespace

Test(spill_places, what_lies_in_the_file_is_read) {
    const File f;
    for (const auto &[offset, length] : {std::pair<uint64_t, uint64_t>{0, 32}, {kBound - 32, 32}, {0, kBound}})
        cr_assert_eq(f.read(f.stub(offset, length)).code, 0, "%lu bytes at %lu", length, offset);
}

Test(spill_places, what_lies_outside_of_the_file_is_not_read) {
    const File f;
    f.outside(f.stub(kBound, 32));
    f.outside(f.stub(kBound + kUnitBytes, 32));
    f.outside(f.stub(kBound - kUnitBytes, 32));
    f.outside(f.stub(0, kBound + kUnitBytes));
    f.outside(f.stub((uint64_t{1} << 60) - kUnitBytes, 32));
    f.outside(f.stub(0, (uint64_t{1} << 36) - kUnitBytes));
    f.outside(f.stub(4096, (uint64_t{1} << 36) - kUnitBytes));
}

Test(spill_places, no_image_is_shorter_than_a_header) {
    const File f;
    f.outside(f.stub(0, 0));
    f.outside(f.stub(0, kUnitBytes));
}

Test(spill_places, a_file_that_ends_before_its_bound_is_told) {
    const File f;
    f.outside(f.stub(kThere, 32), 2 * kThere);
    f.outside(f.stub(kThere - 32, 64), 2 * kThere);
}

Test(spill_places, an_image_of_another_sum_is_none) {
    const File f;
    SpillStub stub = f.stub(0, 4096);
    stub.crc++;
    const SpillRead got = f.read(stub);
    cr_assert(got.code == CACHE_ECORRUPT && got.error == 0);
}
