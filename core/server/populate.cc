// SPDX-License-Identifier: Apache-2.0
#include "core/server/populate.h"

#include "core/common/error.h"
#include "core/common/log.h"
#include "core/shm/backing.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace libcache {
namespace {

constexpr uint64_t kSliceChunks = 128; // 8 MiB: what an urgent job waits for at most

void signal(const Fd &event) {
    const uint64_t one = 1;
    (void)!write(event.get(), &one, sizeof one); // fails only when it is signalled already
}

int punch(const Job &job, uint64_t first, uint64_t chunks) {
    const uint64_t offset = job.geometry.data_offset + first * kChunkBytes;
    if (fallocate(job.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(chunks * kChunkBytes)) == 0)
        return 0;
    return fail(CACHE_EIO, "giving back %llu chunks at %llu failed: %s", static_cast<unsigned long long>(chunks),
                static_cast<unsigned long long>(first), strerror(errno));
}

constexpr uint64_t kUnitChunks = kHugeBytes / kChunkBytes;

long faults_of_this_thread() {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
}

// Which of the units in a populated window did not become huge pages. One fault a unit: all did, which need not be
// looked up. Else the kernel tells how many: the last ones stand for them, since it runs out of huge pages and does not
// find them again soon.
void note_small_units(Job &job, const void *window, uint64_t first, uint64_t chunks, long faults) {
    const uint64_t from = first / kUnitChunks, end = std::min(first + chunks, job.geometry.huge_chunks) / kUnitChunks;
    if (faults == static_cast<long>(end - from)) return;
    for (uint64_t unit = from + bytes_on_huge_pages(window) / kHugeBytes; unit < end; ++unit)
        job.small_units.push_back(unit * kUnitChunks);
}

// In a window of its own: pages stay in the file when the mapping goes.
int make_or_zero(Job &job, uint64_t first, uint64_t chunks, MemoryGauge &memory) {
    const bool zero = job.work == Work::Zero;
    if (!zero && memory.bytes() < chunks * kChunkBytes)
        return fail(CACHE_EFULL, "the machine or a cgroup has no room for %llu more chunks",
                    static_cast<unsigned long long>(chunks));
    WindowMap window;
    if (int rc = window.map(job.fd, job.geometry, first, chunks); rc != 0) return rc;
    const long faults = faults_of_this_thread();
    if (int rc = populate(window.address(), window.bytes()); rc != 0) return rc;
    if (zero)
        memset(window.address(), 0, window.bytes());
    else
        memory.made(window.bytes());
    if (!zero && first < job.geometry.huge_chunks)
        note_small_units(job, window.address(), first, chunks, faults_of_this_thread() - faults);
    return 0;
}

} // namespace

Populator::Populator(const char *name)
    : wake_(eventfd(0, EFD_CLOEXEC)), finished_signal_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), name_(name) {
    if (ok()) thread_ = std::thread([this] { run(); });
}

Populator::~Populator() {
    if (!thread_.joinable()) return;
    stopping_.store(true, std::memory_order_relaxed); // a wish to hurry; the join below is what orders
    signal(wake_);
    thread_.join();
    jobs_.consume_all([](Job *job) { delete job; });
    finished_.consume_all([](Job *job) { delete job; });
}

void Populator::submit(std::unique_ptr<Job> job) {
    overflow_.push_back(std::move(job));
    hand_over();
}

void Populator::hand_over() {
    bool handed = false;
    for (; !overflow_.empty() && in_flight_ < kQueue - 1; ++in_flight_, handed = true) {
        jobs_.push(overflow_.front().release());
        overflow_.pop_front();
    }
    if (handed) signal(wake_);
}

std::unique_ptr<Job> Populator::take_finished() {
    Job *job = nullptr;
    if (!finished_.pop(job)) {
        uint64_t count;
        (void)!read(finished_signal_.get(), &count, sizeof count); // then look again: it may have come in between
        if (!finished_.pop(job)) return nullptr;
        signal(finished_signal_); // there may be more
    }
    --in_flight_;
    hand_over();
    return std::unique_ptr<Job>(job);
}

namespace {

// One slice of a job on a spill file, as slice().
bool disk_slice(Job &job) {
    const auto at = static_cast<off_t>((job.head + job.done) * kSegmentBytes);
    const uint64_t segments = std::min(kSliceChunks, job.chunks - job.done);
    const bool release = job.work == Work::Release;
    const int mode = release ? FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE : 0;
    while (fallocate(job.fd, mode, at, static_cast<off_t>(segments * kSegmentBytes)) != 0) {
        if (errno == EINTR) continue;
        if (!release && errno == EOPNOTSUPP) break; // space comes with the writes: they find out when it ends
        job.error = errno;
        job.result = fail(CACHE_EIO, "fallocate failed: %s", strerror(job.error));
        if (!release) // what was made of it
            (void)fallocate(job.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                            static_cast<off_t>(job.head * kSegmentBytes),
                            static_cast<off_t>(job.chunks * kSegmentBytes));
        return true;
    }
    job.done += segments;
    return job.done == job.chunks;
}

} // namespace

// One slice of a job. True when it is done, well or not.
bool Populator::slice(Job &job, MemoryGauge &memory) {
    if (works_on_disk(job.work)) return disk_slice(job);
    const uint64_t chunks = std::min(kSliceChunks, job.chunks - job.done);
    const uint64_t first = job.head + job.done;
    // rlx: an old value costs a slice. A punch is never cut short: it makes room.
    if (job.work != Work::Punch && job.cancelled->load(std::memory_order_relaxed))
        job.result = fail(CACHE_EFULL, "the cache was destroyed meanwhile");
    else
        job.result = job.work == Work::Punch ? punch(job, first, chunks) : make_or_zero(job, first, chunks, memory);
    if (job.result != 0) {
        log_line(LogLevel::Warning, "populating stopped after %llu of %llu chunks: %s",
                 static_cast<unsigned long long>(job.done), static_cast<unsigned long long>(job.chunks), last_error());
        return true;
    }
    job.done += chunks;
    return job.done == job.chunks;
}

void Populator::run() {
    prctl(PR_SET_NAME, name_);
    MemoryGauge memory(MemoryGauge::Reading::Room);
    std::deque<std::unique_ptr<Job>> turn;
    while (!stopping_.load(std::memory_order_relaxed)) {
        jobs_.consume_all([&](Job *job) {
            // An index level is waited for by a row that is written already; stock is made ahead.
            const bool urgent = job->work == Work::Zero || (job->work == Work::Populate && job->slot == kNoSlot);
            urgent ? turn.emplace_front(job) : turn.emplace_back(job);
        });
        if (turn.empty()) {
            uint64_t count;
            (void)!read(wake_.get(), &count, sizeof count); // blocks until something is handed over
            continue;
        }
        std::unique_ptr<Job> job = std::move(turn.front());
        turn.pop_front();
        if (!slice(*job, memory)) {
            // The others' turn; but what the same writer asked for later comes after it, for it is the first extent
            // that is waited for.
            const auto rest = std::stable_partition(turn.begin(), turn.end(), [&](const std::unique_ptr<Job> &other) {
                return other->region_id != job->region_id || other->slot != job->slot;
            });
            turn.insert(rest, std::move(job));
            continue;
        }
        finished_.push(job.release()); // has room: in_flight_ bounds it
        signal(finished_signal_);
    }
}

} // namespace libcache
