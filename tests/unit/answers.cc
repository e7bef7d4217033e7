// SPDX-License-Identifier: Apache-2.0
// All threads of a process wait at one slot, so the answer that wakes one may be another's, or to a message that came
// before its own. Nothing is refused by the answer to something else.
#include "tests/support/fake_broker.h"

#include <criterion/criterion.h>
#include <optional>
#include <utility>

using namespace libcache;

namespace {

constexpr int64_t kPatience = 10'000'000'000; // ns

// A writer whose first want is answered as the test says, before the message comes; the next one gets what it asks for.
class Answered : public BrokerLink {
  public:
    explicit Answered(Answer first) : first_(first) {
        writer_.emplace(broker_.region().map(), broker_.region().map(), 0, FakeBroker::kEpoch, *this,
                        broker_.layouts());
    }

    bool send_want(uint64_t, uint32_t, uint64_t, Want want, int64_t) override {
        if (!want.extent && !want.grow) return true;
        asked_++;
        if (const Answer answer = std::exchange(first_, {}); answer.code != 0) {
            Slot &slot = *broker_.region().map().slot(0);
            slot.answer.store(answer.pack());
            slot.futex.fetch_add(1);
        } else {
            broker_.region().map().slot(0)->answer.store(0);
            if (broker_.lend_fresh(0, std::max(want.chunks, 1u)) == Extents::kNone) test_die("no room to lend");
        }
        return true;
    }
    bool alive() override { return true; }
    unsigned port() const override { return 0; }

    int row(uint64_t chunks) {
        const auto shape = static_cast<int64_t>(chunks * kChunkBytes - 1000);
        const cache_column column{nullptr, uint64_t(shape), &shape, CACHE_UINT8, 1, {}};
        const auto layout = Layout::of(&column, 1);
        Writer::Place place;
        return writer_->place({layout.get(), kInlineLayout, 1, kPatience}, &place);
    }
    int stub() {
        Writer::Place place;
        return writer_->place_stub(1, kPatience, &place);
    }
    int level() {
        Writer::Deadline deadline{kPatience};
        return writer_->wait_for_level(0, 1, &deadline);
    }
    int asked() const { return asked_; }

  private:
    FakeBroker broker_{8 << 20, 1};
    Answer first_;
    int asked_ = 0;
    std::optional<Writer> writer_;
};

} // namespace

Test(answers, a_refusal_of_rows_is_none_of_stubs, .timeout = 60) {
    Answered rows({CACHE_EFULL, 1, false});
    cr_assert_eq(rows.stub(), 0, "refused what it did not ask for");
    cr_assert_eq(rows.asked(), 2);
    Answered stubs({CACHE_EFULL, 1, true});
    cr_assert_eq(stubs.stub(), CACHE_EFULL);
    cr_assert_eq(stubs.asked(), 1);
}

Test(answers, what_stubs_are_refused_rows_are, .timeout = 60) {
    Answered stubs({CACHE_EFULL, 1, true});
    cr_assert_eq(stubs.row(1), CACHE_EFULL);
    cr_assert_eq(stubs.asked(), 1);
}

Test(answers, a_refusal_of_more_is_none_of_less, .timeout = 60) {
    Answered more({CACHE_EFULL, 3});
    cr_assert_eq(more.row(2), 0);
    cr_assert_eq(more.asked(), 2);
    Answered less({CACHE_EFULL, 1});
    cr_assert_eq(less.row(2), CACHE_EFULL);
}

Test(answers, a_refused_level_is_no_refused_extent, .timeout = 60) {
    Answered level({CACHE_EFULL, 0});
    cr_assert_eq(level.row(1), 0);
    cr_assert_eq(level.asked(), 2);
    Answered extent({CACHE_EFULL, 1});
    cr_assert_eq(extent.level(), 0, "look again");
    Answered refused({CACHE_EFULL, 0});
    cr_assert_eq(refused.level(), CACHE_EFULL);
}
