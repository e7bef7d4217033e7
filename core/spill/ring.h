// SPDX-License-Identifier: Apache-2.0
// Reading and writing a file with many transfers under way, by io_uring; where the kernel, a container or a seccomp
// filter refuses that (EPERM, ENOSYS, ENOMEM), by preadv and pwritev, one after the other. Used by the spill writer
// and readers. A ring belongs to whoever made it: one thread at a time uses it, and never a forked child (its memory is
// not mapped there).
#pragma once

#include <boost/circular_buffer.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <sys/types.h>
#include <sys/uio.h>

struct io_uring;

namespace libcache {

// One read or write of consecutive bytes of a file, from or into several pieces of memory. Owned by whoever starts it,
// in place until it is done.
struct Transfer {
    int fd = -1;
    bool write = false;
    uint64_t offset = 0;
    iovec *pieces = nullptr; // shortened as bytes are transferred
    unsigned n_pieces = 0;
    int error = 0; // errno once done; ENODATA: the file ends before. 0: all of it was transferred
    unsigned tries = 0;

    // Takes note that `bytes` were transferred. True: that was all.
    bool advance(uint64_t bytes);
};

class TransferRing {
  public:
    explicit TransferRing(unsigned depth); // throws nothing: without io_uring it goes the other way
    ~TransferRing();
    TransferRing(const TransferRing &) = delete;
    TransferRing &operator=(const TransferRing &) = delete;

    // The copy in a forked child, of whichever generation: not to be touched, nor destroyed.
    bool is_parents() const;

    // errno with which io_uring was refused, 0: it is in use.
    int refusal() const { return refusal_; }

    // Room for n transfers between their start and their next_done(): nothing fails for want of memory after it, so
    // that none is left under way by an exception.
    void expect(size_t n);
    // Puts it in line; next_done() and submit() set it going. At most `depth` are under way: more wait here.
    void start(Transfer &transfer);
    void submit();
    // One that is done, in any order, or null: none under way or, without `wait`, none done yet. A transfer that is cut
    // short goes on; one that is cancelled, because the thread that submitted it has ended, begins again.
    Transfer *next_done(bool wait);
    // What the kernel says of one transfer: bytes or -errno. For tests, otherwise private.
    void settle(Transfer &transfer, int result);

  private:
    std::unique_ptr<io_uring> ring_; // null: refused
    const pid_t process_;  // that made it, with the number of fork()s that led there: in a namespace of its own
    const uint64_t forks_; // a child may have its parent's number, and numbers come again
    const unsigned depth_;
    unsigned under_way_ = 0; // in the ring
    size_t started_ = 0;     // and not given out by next_done() yet
    int refusal_ = 0;
    boost::circular_buffer<Transfer *> waiting_, queued_, done_; // queued_: the kernel has not seen them yet

    void fill_queue();
    bool collect(bool wait);
    void refused(int error);
    void run(Transfer &transfer);
};

} // namespace libcache
