// SPDX-License-Identifier: Apache-2.0
// The ring of transfers by itself: what is cut short goes on, what is cancelled begins again, and what io_uring may not
// do is done without it.
#include "core/spill/ring.h"

#include "core/spill/checksum.h"
#include "tests/support/refuse.h"
#include "tests/support/session.h"

#include <cerrno>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace libcache;

namespace {

constexpr unsigned kDepth = 8;

struct File {
    int fd = memfd_create("file", 0);
    ~File() { close(fd); }
};

// One transfer with its memory.
struct Piece {
    std::vector<char> bytes;
    iovec vector{};
    Transfer transfer;

    Piece(int fd, bool write, uint64_t offset, size_t size, char fill = 0) : bytes(size, fill) {
        vector = {bytes.data(), size};
        transfer.fd = fd;
        transfer.write = write;
        transfer.offset = offset;
        transfer.pieces = &vector;
        transfer.n_pieces = 1;
    }
};

// More transfers than may be under way, written and read back.
void write_and_read(TransferRing &ring, unsigned transfers = 50) {
    const File file;
    for (const bool write : {true, false}) {
        std::vector<std::unique_ptr<Piece>> pieces;
        for (unsigned i = 0; i < transfers; i++) {
            pieces.push_back(std::make_unique<Piece>(file.fd, write, i * 5000, 5000, write ? char('a' + i % 20) : 0));
            ring.start(pieces.back()->transfer);
        }
        unsigned done = 0;
        while (const Transfer *transfer = ring.next_done(true)) {
            cr_assert_eq(transfer->error, 0);
            done++;
        }
        cr_assert_eq(done, transfers);
        for (unsigned i = 0; i < transfers && !write; i++)
            cr_assert(pieces[i]->bytes == std::vector<char>(5000, char('a' + i % 20)), "transfer %u", i);
    }
}

bool io_uring_works() {
    const TransferRing ring(kDepth);
    return ring.refusal() == 0;
}

} // namespace

Test(spill_ring, more_transfers_than_it_is_deep) {
    TransferRing ring(kDepth);
    write_and_read(ring);
}

Test(spill_ring, refused_with_eperm) {
    NEEDS_SECCOMP();
    refuse_calls({SCMP_SYS(io_uring_setup)}, EPERM);
    TransferRing ring(kDepth);
    cr_assert_eq(ring.refusal(), EPERM);
    write_and_read(ring);
}
Test(spill_ring, refused_with_enosys) {
    NEEDS_SECCOMP();
    refuse_calls({SCMP_SYS(io_uring_setup), SCMP_SYS(io_uring_enter), SCMP_SYS(io_uring_register)}, ENOSYS);
    TransferRing ring(kDepth);
    cr_assert_eq(ring.refusal(), ENOSYS);
    write_and_read(ring);
}
Test(spill_ring, refused_after_it_was_made) {
    if (!io_uring_works()) SKIP("io_uring is refused here");
    TransferRing ring(kDepth);
    write_and_read(ring, 3);
    refuse_calls({SCMP_SYS(io_uring_enter)}, EPERM);
    write_and_read(ring);
    cr_assert_eq(ring.refusal(), EPERM);
}

Test(spill_ring, nothing_may_be_locked_in_memory) {
    const rlimit none{0, 0};
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &none), 0);
    TransferRing ring(kDepth);
    write_and_read(ring);
}

Test(spill_ring, the_end_of_the_file_is_an_error_of_a_read) {
    NEEDS_SECCOMP();
    for (const bool alone : {false, true}) {
        if (alone) refuse_calls({SCMP_SYS(io_uring_setup)}, EPERM);
        TransferRing ring(kDepth);
        const File file;
        cr_assert_eq(pwrite(file.fd, "12345", 5, 0), 5);
        Piece piece(file.fd, false, 0, 10);
        ring.start(piece.transfer);
        cr_assert_eq(ring.next_done(true), &piece.transfer);
        cr_assert_eq(piece.transfer.error, ENODATA);
        cr_assert_eq(piece.bytes[4], '5');
    }
}

// A pipe gives what it has: the transfer goes on for the rest.
Test(spill_ring, short_transfers_are_completed) {
    if (!io_uring_works()) SKIP("io_uring is refused here");
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    TransferRing ring(kDepth);
    Piece piece(ends[0], false, 0, 3000);
    ring.start(piece.transfer);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(write(ends[1], std::string(1000, char('x' + i)).data(), 1000), 1000);
        if (i < 2) cr_assert_null(ring.next_done(false));
    }
    cr_assert_eq(ring.next_done(true), &piece.transfer);
    cr_assert_eq(piece.transfer.error, 0);
    cr_assert(piece.bytes[0] == 'x' && piece.bytes[1500] == 'y' && piece.bytes[2999] == 'z');
}

// One that can be done is not held up by one before it that cannot.
Test(spill_ring, several_are_under_way_at_once, .timeout = 20) {
    if (!io_uring_works()) SKIP("io_uring is refused here");
    int slow[2], quick[2];
    cr_assert(pipe(slow) == 0 && pipe(quick) == 0);
    TransferRing ring(kDepth);
    Piece first(slow[0], false, 0, 5), second(quick[0], false, 0, 5);
    ring.start(first.transfer);
    ring.start(second.transfer);
    cr_assert_eq(write(quick[1], "hello", 5), 5);
    cr_assert_eq(ring.next_done(true), &second.transfer);
    cr_assert_eq(write(slow[1], "hello", 5), 5);
    cr_assert_eq(ring.next_done(true), &first.transfer);
}

// A read that waits when its thread ends is cancelled by the kernel.
Test(spill_ring, what_a_thread_that_ended_left_behind_begins_again) {
    if (!io_uring_works()) SKIP("io_uring is refused here");
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    TransferRing ring(kDepth);
    Piece piece(ends[0], false, 0, 5);
    std::thread([&] {
        ring.start(piece.transfer);
        ring.submit();
    }).join();
    cr_assert_null(ring.next_done(false));
    cr_assert_eq(write(ends[1], "hello", 5), 5);
    cr_assert_eq(ring.next_done(true), &piece.transfer);
    cr_assert_eq(piece.transfer.error, 0);
    cr_assert_eq(memcmp(piece.bytes.data(), "hello", 5), 0);
}

Test(spill_ring, a_transfer_that_is_cancelled_again_and_again_is_done_otherwise) {
    TransferRing ring(kDepth);
    const File file;
    Piece piece(file.fd, true, 0, 100, 'c');
    piece.transfer.tries = 1000;
    ring.settle(piece.transfer, -ECANCELED);
    cr_assert_eq(ring.next_done(true), &piece.transfer);
    cr_assert_eq(piece.transfer.error, 0);
    char byte = 0;
    cr_assert_eq(pread(file.fd, &byte, 1, 99), 1);
    cr_assert_eq(byte, 'c');
}

Test(spill_ring, the_checksum_is_crc_32c) {
    cr_assert_eq(crc32c("123456789", 9), 0xe3069283u); // the check value of its definition
    Crc32c parts;
    parts.add("1234", 4);
    parts.add("", 0);
    parts.add("56789", 5);
    cr_assert_eq(parts.value(), 0xe3069283u);
}
