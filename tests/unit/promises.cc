// SPDX-License-Identifier: Apache-2.0
// Ids that are promised to rows of a stream which are being written to disk: no other row may take them.
#include "tests/support/fake_broker.h"

#include <atomic>
#include <criterion/criterion.h>
#include <thread>

using namespace libcache;

namespace {

constexpr uint64_t kTerm = 3;

// A builder, and a broker that serves it.
struct Stream {
    FakeBroker broker{16 << 20, 7};
    std::atomic<bool> done{false};
    std::thread stepping{[this] {
        while (!done.load())
            broker.step();
    }};

    Stream() { broker.region().header()->builder.store(Builder{0, kTerm}.pack()); }
    ~Stream() {
        writer().seal_all();
        done.store(true);
        stepping.join();
    }
    Writer &writer() { return broker.writer_of(0); }
    Writer::Place place() {
        const int64_t shape = 8;
        const cache_column column{nullptr, 8, &shape, CACHE_UINT8, 1, {}};
        const auto layout = Layout::of(&column, 1);
        Writer::Place place;
        cr_assert_eq(writer().place({layout.get(), kInlineLayout, 0, 10'000'000'000}, &place), 0);
        memcpy(place.address + sizeof(RowHeader), layout->table(), layout->table_bytes());
        return place;
    }
    Writer::Place stub(int64_t id) {
        Writer::Place place;
        cr_assert_eq(writer().place_stub(id, 10'000'000'000, &place), 0);
        Writer::fill_stub(place, {uint64_t(id) * 64, 64, 1});
        return place;
    }
};

} // namespace

Test(promises, rows_of_memory_wait_for_promised_ones, .timeout = 60) {
    Stream s;
    const Writer::Place row = s.place();
    int64_t id = -1;
    cr_assert_eq(s.writer().promise(kTerm), 0);
    cr_assert_eq(s.writer().promise(kTerm), 1);
    cr_assert_eq(s.writer().promise(kTerm + 1), -1, "that is not this builder");
    for (int64_t promised = 0; promised < 2; promised++) {
        cr_assert_eq(s.writer().append(row, kTerm, &id), Writer::kBehind);
        cr_assert_eq(s.writer().append(s.stub(promised), kTerm, &id, true), 0);
        cr_assert_eq(id, promised);
    }
    cr_assert_eq(s.writer().append(row, kTerm, &id), 0);
    cr_assert_eq(id, 2);
}

Test(promises, broken_ones_are_given_to_others, .timeout = 60) {
    Stream s;
    int64_t id = -1;
    cr_assert_eq(s.writer().promise(kTerm), 0);
    s.writer().break_promises();
    cr_assert_eq(s.writer().append(s.place(), kTerm, &id), 0);
    cr_assert_eq(id, 0);
    cr_assert_eq(s.writer().promise(kTerm), 1);
}

// The broker lets the next builder begin as soon as it has been told: what this process still had in hand by then must
// not be appended, even while the builder's word still names it.
Test(promises, nothing_is_appended_in_a_term_that_was_ended, .timeout = 60) {
    Stream s;
    int64_t id = -1;
    cr_assert_eq(s.writer().append(s.place(), kTerm, &id), 0);
    const Writer::Place row = s.place(), later = s.place();
    const Writer::Place stub = s.stub(s.writer().promise(kTerm));
    s.writer().end_appends(kTerm);
    cr_assert_eq(s.writer().append(row, kTerm, &id), CACHE_EBUILDING);
    cr_assert_eq(s.writer().append(stub, kTerm, &id, true), CACHE_EBUILDING);
    cr_assert_eq(s.writer().promise(kTerm), -1);
    s.writer().break_promises();
    s.broker.region().header()->builder.store(Builder{0, kTerm + 1}.pack());
    cr_assert_eq(s.writer().append(later, kTerm + 1, &id), 0, "the same process may build again");
    cr_assert_eq(id, 1);
}
