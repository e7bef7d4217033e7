// SPDX-License-Identifier: Apache-2.0
#include "core/spill/ring.h"

#include "core/common/in_child.h"

#include <algorithm>
#include <cerrno>
#include <liburing.h>
#include <poll.h>
#include <unistd.h>

namespace libcache {
namespace {

constexpr unsigned kMostTries = 64; // of one transfer; then it is done without the ring

} // namespace

bool Transfer::advance(uint64_t bytes) {
    offset += bytes;
    while (n_pieces != 0 && bytes >= pieces->iov_len) {
        bytes -= pieces->iov_len;
        pieces++;
        n_pieces--;
    }
    if (n_pieces == 0) return true;
    pieces->iov_base = static_cast<char *>(pieces->iov_base) + bytes;
    pieces->iov_len -= bytes;
    return false;
}

TransferRing::TransferRing(unsigned depth)
    : process_(getpid()), forks_(forks_so_far()), depth_(depth), waiting_(depth), queued_(depth), done_(depth) {
    auto ring = std::make_unique<io_uring>();
    if (const int rc = io_uring_queue_init(depth, ring.get(), 0); rc != 0) {
        refusal_ = -rc;
        return;
    }
    io_uring_ring_dontfork(ring.get()); // a child's stores would be seen by the kernel as its parent's
    close_in_child(ring->ring_fd);
    ring_ = std::move(ring);
}

bool TransferRing::is_parents() const {
    return process_ != getpid() || forks_ != forks_so_far();
}

TransferRing::~TransferRing() {
    while (next_done(true) != nullptr) { // the kernel still writes into memory that is about to go
    }
    if (!ring_) return;
    forget_in_child(ring_->ring_fd);
    io_uring_queue_exit(ring_.get());
}

void TransferRing::expect(size_t n) {
    for (auto *line : {&waiting_, &queued_, &done_})
        if (line->capacity() < n) line->set_capacity(n);
}

void TransferRing::start(Transfer &transfer) {
    if (started_ == done_.capacity()) expect(2 * started_); // the last that expect() has grown
    started_++;
    transfer.error = 0;
    transfer.tries = 0;
    waiting_.push_back(&transfer);
}

// Without a ring: at once, and to the end.
void TransferRing::run(Transfer &t) {
    for (;;) {
        const auto at = static_cast<off_t>(t.offset);
        const int n = static_cast<int>(std::min(t.n_pieces, 1024u));
        const ssize_t bytes = t.write ? pwritev(t.fd, t.pieces, n, at) : preadv(t.fd, t.pieces, n, at);
        if (bytes < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (bytes > 0 && !t.advance(static_cast<uint64_t>(bytes))) continue;
        t.error = bytes < 0 ? errno : bytes == 0 ? (t.write ? EIO : ENODATA) : 0;
        done_.push_back(&t);
        return;
    }
}

// From waiting_ into the ring's queue, as many as may be under way.
void TransferRing::fill_queue() {
    while (!waiting_.empty()) {
        Transfer &t = *waiting_.front();
        if (refusal_ != 0 || t.tries >= kMostTries) {
            waiting_.pop_front();
            run(t);
            continue;
        }
        io_uring_sqe *const entry = under_way_ < depth_ ? io_uring_get_sqe(ring_.get()) : nullptr;
        if (entry == nullptr) return;
        waiting_.pop_front();
        const unsigned n = std::min(t.n_pieces, 1024u);
        // Most file systems leave the copying of a buffered write to a thread of the kernel, one write after the other.
        // IOSQE_ASYNC would add nothing to that but more threads, which wait for the file's lock.
        t.write ? io_uring_prep_writev(entry, t.fd, t.pieces, n, t.offset)
                : io_uring_prep_readv(entry, t.fd, t.pieces, n, t.offset);
        io_uring_sqe_set_data(entry, &t);
        t.tries++;
        under_way_++;
        queued_.push_back(&t);
    }
}

void TransferRing::submit() {
    fill_queue();
    while (!queued_.empty() && refusal_ == 0) {
        const int taken = io_uring_submit(ring_.get());
        if (taken > 0) {
            queued_.erase_begin(std::min(static_cast<size_t>(taken), queued_.size()));
        } else if (taken == -EAGAIN || taken == -EBUSY) { // of memory, or of completions that nobody has taken
            if (!collect(false)) poll(nullptr, 0, 1);
        } else if (taken != -EINTR) {
            refused(taken == 0 ? EIO : -taken);
        }
    }
}

// A filter that came after the ring was made: what the kernel has not seen goes the other way.
void TransferRing::refused(int error) {
    refusal_ = error;
    under_way_ -= static_cast<unsigned>(queued_.size());
    for (; !queued_.empty(); queued_.pop_back())
        waiting_.push_front(queued_.back());
    fill_queue();
}

void TransferRing::settle(Transfer &t, int result) {
    if (result == -ECANCELED || result == -EINTR || result == -EAGAIN)
        waiting_.push_back(&t);
    else if (result > 0 && !t.advance(static_cast<uint64_t>(result)))
        waiting_.push_front(&t);
    else {
        t.error = result < 0 ? -result : result == 0 ? (t.write ? EIO : ENODATA) : 0;
        done_.push_back(&t);
    }
}

// Takes one completion. False: there was none.
bool TransferRing::collect(bool wait) {
    if (under_way_ == queued_.size()) return false;
    io_uring_cqe *entry = nullptr;
    for (;;) {
        const int rc =
            wait && refusal_ == 0 ? io_uring_wait_cqe(ring_.get(), &entry) : io_uring_peek_cqe(ring_.get(), &entry);
        if (rc == 0 && entry != nullptr) break;
        if (!wait) return false;
        if (refusal_ != 0)
            poll(nullptr, 0, 1); // waiting is forbidden too, completions come nevertheless
        else if (rc != -EINTR && rc != -EAGAIN)
            refused(-rc);
    }
    auto &transfer = *static_cast<Transfer *>(io_uring_cqe_get_data(entry));
    const int result = entry->res;
    io_uring_cqe_seen(ring_.get(), entry);
    under_way_--;
    settle(transfer, result);
    return true;
}

Transfer *TransferRing::next_done(bool wait) {
    for (;;) {
        submit();
        while (collect(false)) {
        }
        if (!done_.empty()) {
            Transfer *const done = done_.front();
            done_.pop_front();
            started_--;
            return done;
        }
        if (wait ? waiting_.empty() && under_way_ == 0 : waiting_.empty() || under_way_ == depth_) return nullptr;
        if (under_way_ != 0 && wait) (void)collect(true);
    }
}

} // namespace libcache
