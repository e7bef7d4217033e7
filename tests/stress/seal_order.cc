// SPDX-License-Identifier: Apache-2.0
// seal_order [seconds]: the one thing that only [seal] orders. A writer writes a row's header above `used`; the broker
// cuts the extent meanwhile, so the row does not fit any more and the header is left where it is. The extent is sealed,
// lent to somebody else, and he writes his own header to the same bytes. All else that a former owner wrote is either
// never written again, or ordered by `bump` or by the return ring, which this broker therefore does not read: it finds
// sealed extents by a walk, as the server's does when a hint was lost. Made for TSan: x86 orders these stores in any
// case.
#include "tests/support/fake_broker.h"
#include "tests/support/rows.h"

#include "core/common/error.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <memory>
#include <thread>

using namespace libcache;

namespace {

constexpr uint32_t kFirst = 0, kSecond = 1; // slots
constexpr uint64_t kChunks = 3; // more room left by a row than by a cut: the extent with more room stays current
constexpr int64_t kFitsUntilCut = 70000; // bytes: more than the chunk that a cut leaves

struct Sized {
    int64_t shape;
    cache_column column;
    std::shared_ptr<const Layout> layout;
    explicit Sized(int64_t bytes)
        : shape(bytes), column{this, uint64_t(bytes), &shape, CACHE_UINT8, 1, {}}, layout(Layout::of(&column, 1)) {}
    Sized(const Sized &) = delete;
    Sized &operator=(const Sized &) = delete;
};

// Places a row and takes it back: every extent is empty when it is sealed.
void place_once(Writer &writer, const Sized &row, int64_t id) {
    Writer::Place place;
    if (writer.place({row.layout.get(), kInlineLayout, id, FakeBroker::kTimeoutNs}, &place) != 0)
        test_die("placing row %ld: %s", id, last_error());
    writer.give_back(place);
}

void write_first(FakeBroker &broker, std::atomic<bool> &stop, std::atomic<bool> &ended) {
    const Sized row(kFitsUntilCut);
    Writer &writer = broker.writer_of(kFirst);
    for (int64_t id = 0; !stop.load(std::memory_order_relaxed); id++)
        place_once(writer, row, id);
    writer.seal_all();
    ended.store(true, std::memory_order_relaxed);
}

// What the first writer left goes to the second one, which is this thread.
void use_second(FakeBroker &broker, uint64_t chunk, const Sized &row, int64_t id) {
    broker.lend_rest(kSecond, chunk);
    Writer &writer = broker.writer_of(kSecond);
    place_once(writer, row, id);
    writer.seal_all();
    broker.extents().trim(chunk); // it is empty: FREE
}

ExtentState state_of(FakeBroker &broker, uint64_t chunk) {
    // acq: the half of [seal] and [grant] that is the broker's. No other word may be looked at: it could order more.
    return ExtentWord::unpack(broker.region().map().extent(chunk)->own.load(std::memory_order_acquire)).state;
}

uint64_t pass_on(unsigned seconds) {
    FakeBroker broker(4 << 20, 1);
    std::atomic<bool> stop{false}, ended{false};
    std::thread first(write_first, std::ref(broker), std::ref(stop), std::ref(ended));
    const Sized row(100);
    std::deque<uint64_t> lent;
    uint64_t passed = 0;
    const time_t end = time(nullptr) + time_t(seconds);
    while (!ended.load(std::memory_order_relaxed)) {
        if (time(nullptr) >= end) stop.store(true, std::memory_order_relaxed);
        while (lent.size() < 3) // so that the writer never waits for one
            lent.push_back(broker.lend_fresh(kFirst, kChunks));
        const uint64_t chunk = lent.front();
        lent.pop_front();
        ExtentState state;
        while ((state = state_of(broker, chunk)) != ExtentState::Sealed && !ended.load(std::memory_order_relaxed))
            if (state == ExtentState::Held) broker.extents().cut_held(chunk); // again and again: rows come and go
        if (state == ExtentState::Sealed) use_second(broker, chunk, row, int64_t(passed++));
    }
    first.join();
    return passed;
}

} // namespace

int main(int argc, char **argv) {
    const unsigned seconds = argc > 1 ? unsigned(atoi(argv[1])) : 2;
    test_watchdog(seconds + 200);
    const uint64_t passed = pass_on(seconds);
    if (passed == 0) test_die("no extent came back");
    printf("%lu extents passed on\n", passed);
    return 0;
}
