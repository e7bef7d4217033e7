// SPDX-License-Identifier: Apache-2.0
// The C++ binding against a real server: what it adds to libcache.h, which has tests of its own.
#include "bindings/cpp/libcache.hpp"
#include "tests/support/server.h"

#include <criterion/criterion.h>
#include <cstring>
#include <numeric>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using libcache::Code;

namespace {

// A server with a cache on it. Made by each test itself: what fails in a set-up does not count as a failure.
class Place {
  public:
    explicit Place(const libcache::OpenOptions &options = {.limit_bytes = 16 << 20})
        : rows(session.open(1, options).value()) {}
    // The server counts the memory of caches that are open, so they go first.
    ~Place() { rows = libcache::Cache(nullptr, ""), test_server_stop(server); }

    test_server *const server = test_server_start(nullptr);
    const libcache::Client client = libcache::Client::connect().value();
    const libcache::Session session = client.create_session().value();
    libcache::Cache rows;
};

template <class T> bool equal(std::span<const T> a, std::span<const T> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

template <class T> void round_trip(libcache::Cache &rows, int64_t id, std::vector<T> values) {
    const auto n = static_cast<int64_t>(values.size());
    cr_assert(rows.put(id, {libcache::array(values, {n / 2, 2}), libcache::scalar(values[0])}).value() ==
              libcache::Put::stored);
    const libcache::View view = rows.get(id).value();
    const libcache::Column column = view.column(0).value();
    cr_assert(column.dtype() == libcache::dtype_of<T>::value);
    const int64_t shape[] = {n / 2, 2};
    cr_assert(equal(column.shape(), std::span<const int64_t>(shape)));
    cr_assert(equal(column.as<T>().value(), std::span<const T>(values)));
    cr_assert_eq(view.column(1)->shape().size(), 0);
    cr_assert(view.column(1)->template scalar<T>().value() == values[0]);
}

} // namespace

Test(cpp, every_type_of_element_comes_back_with_type_and_shape) {
    Place place;
    int64_t id = 0;
    const auto numbers = [&]<class T>(T) {
        round_trip<T>(place.rows, id++, {std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max(), T(0), T(1)});
    };
    numbers(int8_t{}), numbers(int16_t{}), numbers(int32_t{}), numbers(int64_t{});
    numbers(uint8_t{}), numbers(uint16_t{}), numbers(uint32_t{}), numbers(uint64_t{});
    numbers(float{}), numbers(double{});
    round_trip<std::byte>(place.rows, id++, {std::byte{0}, std::byte{255}});
    round_trip<char>(place.rows, id++, {'a', 'b'});
}

Test(cpp, texts_bytes_and_empty_columns_come_back) {
    Place place;
    const std::vector<float> nothing;
    const std::array raw{std::byte{1}, std::byte{0}, std::byte{2}};
    const std::array<bool, 3> flags{true, false, true};
    cr_assert(place.rows.put(
        0, {libcache::text("Zürich"), libcache::bytes(raw), libcache::array(nothing, {0, 4}), libcache::array(flags)}));
    const libcache::View view = place.rows.get(0).value();
    cr_assert_eq(view.columns(), 4);
    cr_assert(view.column(0)->text() == "Zürich");
    cr_assert(view.column(0)->dtype() == CACHE_STRING);
    cr_assert(equal(view.column(1)->bytes(), std::span<const std::byte>(raw)));
    cr_assert_eq(view.column(2)->as<float>()->size(), 0);
    cr_assert_eq(view.column(2)->shape()[1], 4);
    cr_assert(equal(view.column(3)->as<bool>().value(), std::span<const bool>(flags)));
}

Test(cpp, more_columns_than_fit_without_an_allocation) {
    Place place;
    std::array<int32_t, 40> values;
    std::iota(values.begin(), values.end(), 7);
    std::vector<libcache::Input> row;
    for (const int32_t &value : values)
        row.push_back(libcache::scalar(value));
    cr_assert(place.rows.put(3, row).value() == libcache::Put::stored);
    const libcache::View view = place.rows.get(3).value();
    cr_assert_eq(view.columns(), values.size());
    for (uint32_t i = 0; i < values.size(); ++i)
        cr_assert_eq(view.column(i)->scalar<int32_t>().value(), values[i]);
}

Test(cpp, the_first_row_wins_and_a_miss_is_an_error_of_its_own) {
    Place place;
    const int32_t first = 1, second = 2;
    const auto miss = place.rows.get(5);
    cr_assert(!miss && miss.error().is(Code::not_found));
    cr_assert_str_eq(miss.error().message(), cache_strerror(CACHE_ENOTFOUND));
    cr_assert(place.rows.put(5, {libcache::scalar(first)}).value() == libcache::Put::stored);
    cr_assert(place.rows.put(5, {libcache::scalar(second)}).value() == libcache::Put::was_there);
    cr_assert_eq(place.rows.get(5)->column(0)->scalar<int32_t>().value(), 1);
    cr_assert(place.rows.contains(5).value() && !place.rows.contains(6).value());
}

Test(cpp, a_failure_tells_code_and_sentence_and_value_throws_it) {
    Place place;
    const int32_t value = 1;
    const auto refused = place.rows.put(-1, {libcache::scalar(value)});
    cr_assert(!refused && refused.error().is(Code::invalid));
    cr_assert(strstr(refused.error().message(), "-1"), "%s", refused.error().message());
    const std::string kept = refused.error().message();
    (void)place.rows.put(-22, {libcache::scalar(value)}); // a later failure does not change the earlier one's words
    cr_assert_str_eq(refused.error().message(), kept.c_str());
    bool thrown = false;
    try {
        (void)place.rows.put(-1, {libcache::scalar(value)}).value();
    } catch (const libcache::Exception &exception) {
        thrown = exception.code() == Code::invalid && kept == exception.what();
    }
    cr_assert(thrown);
}

Test(cpp, another_type_or_more_than_one_element_is_refused_not_reinterpreted) {
    Place place;
    const std::array<uint16_t, 2> pair{1, 2};
    cr_assert(place.rows.put(0, {libcache::array(pair)}));
    const libcache::View view = place.rows.get(0).value();
    cr_assert(view.column(0)->as<int16_t>().error().is(Code::invalid));
    cr_assert(view.column(0)->scalar<uint16_t>().error().is(Code::invalid));
    cr_assert(view.column(1).error().is(Code::invalid));
    cr_assert(place.rows.put(1, {libcache::array(pair, {3})}).error().is(Code::invalid), "a shape of 3 for 2 elements");
}

Test(cpp, a_row_is_written_in_place_and_seen_after_its_commit_only) {
    Place place;
    const auto specs = {libcache::Spec::of<float>({4, 100}), libcache::Spec::of<int64_t>({})};
    auto room = place.rows.reserve(9, specs).value();
    cr_assert(room.has_value() && room->columns() == 2 && room->bytes(1).size() == 8);
    std::ranges::fill(room->as<float>(0), 0.5F);
    room->as<int64_t>(1)[0] = 77;
    cr_assert(place.rows.get(9).error().is(Code::not_found));
    cr_assert(std::move(*room).commit().value());
    cr_assert_eq(place.rows.get(9)->column(0)->as<float>().value()[399], 0.5F);
    cr_assert_eq(place.rows.get(9)->column(1)->scalar<int64_t>().value(), 77);
    cr_assert(!place.rows.reserve(9, specs).value().has_value(), "the row is there");
}

Test(cpp, a_reservation_that_is_dropped_is_aborted) {
    Place place;
    {
        auto dropped = place.rows.reserve(9, {libcache::Spec::of<uint8_t>({100})}).value();
        cr_assert(dropped.has_value());
        auto moved = std::move(*dropped);
        cr_assert_eq(moved.bytes(0).size(), 100);
    }
    cr_assert(!place.rows.contains(9).value());
    cr_assert(place.rows.reserve(9, {libcache::Spec::of<uint8_t>({100})}).value().has_value());
}

Test(cpp, a_batch_has_its_rows_in_order_with_gaps_and_is_used_again) {
    Place place;
    for (int32_t i = 0; i < 100; ++i)
        cr_assert(place.rows.put(i, {libcache::scalar(i)}));
    libcache::Batch batch;
    const std::vector<int64_t> ids = {7, 200, 3};
    for (int again = 0; again < 2; ++again) {
        cr_assert(place.rows.get_batch(ids, batch));
        cr_assert(batch.size() == 3 && batch.hits() == 2);
        cr_assert(batch[0] && !batch[1] && batch[2]);
        cr_assert_eq(batch[0].id(), 7);
        cr_assert_eq(batch[2].column(0)->scalar<int32_t>().value(), 3);
        cr_assert(batch[1].column(0).error().is(Code::invalid) && batch[1].columns() == 0);
    }
    libcache::Batch taken = std::move(batch);
    cr_assert_eq(taken[2].column(0)->scalar<int32_t>().value(), 3);
    taken.clear();
    cr_assert(taken.size() == 0 && taken.hits() == 0);
    const std::vector<int64_t> wrong = {-1};
    libcache::Batch other;
    cr_assert(place.rows.get_batch(wrong, other).error().is(Code::invalid));
    cr_assert_eq(other.size(), 0);
}

Test(cpp, gather_copies_each_row_to_its_share) {
    Place place;
    for (int32_t i = 0; i < 10; ++i) {
        const std::array<int32_t, 3> row{i, 10 * i, 100 * i};
        cr_assert(place.rows.put(i, {libcache::array(row)}));
    }
    const std::vector<int64_t> ids = {4, 11, 2};
    std::vector<int32_t> to(12, -1);
    std::vector<uint8_t> found(3, 9);
    cr_assert_eq(place.rows.gather(ids, 0, std::span(to), found).value(), 2);
    cr_assert((found == std::vector<uint8_t>{1, 0, 1}));
    cr_assert((to == std::vector<int32_t>{4, 40, 400, -1, -1, -1, -1, -1, 2, 20, 200, -1}));
    cr_assert(place.rows.gather(ids, 0, std::span(to)).error().is(Code::not_found));
    std::vector<uint8_t> too_few(2);
    cr_assert(place.rows.gather(ids, 0, std::span(to), too_few).error().is(Code::invalid));
    cr_assert(place.rows.gather(ids, 0, std::span(to).first(6), found).error().is(Code::invalid), "2 places for 3");
}

Test(cpp, a_view_moves_and_outlives_session_and_server) {
    Place place;
    const std::string words = "outlives";
    cr_assert(place.rows.put(0, {libcache::text(words)}));
    libcache::View first = place.rows.get(0).value();
    libcache::View view = std::move(first);
    cr_assert_eq(first.columns(), 0);
    cr_assert(place.session.destroy());
    cr_assert(place.rows.get(0).error().is(Code::gone));
    cr_assert(view.column(0)->text() == words);
}

Test(cpp, the_ids_names_and_numbers_of_a_cache_are_told) {
    Place place({.limit_bytes = 16 << 20, .tag = "v1", .label = "of people"});
    for (int32_t i = 0; i < 5000; ++i)
        cr_assert(place.rows.put(3 * i, {libcache::scalar(i)}));
    std::vector<int64_t> ids = place.rows.ids().value();
    std::ranges::sort(ids);
    cr_assert(ids.size() == 5000 && ids.front() == 0 && ids.back() == 3 * 4999);
    cr_assert(place.rows.names().error().is(Code::not_found));
    const std::vector<std::string> names = {"image", "label"};
    cr_assert(place.rows.set_names(names));
    cr_assert(place.rows.names().value() == names);
    const cache_stats stats = place.rows.stat().value();
    cr_assert_eq(stats.rows_in_memory, 5000);
    cr_assert_str_eq(stats.tag, "v1");
    cr_assert(place.rows.flush());
    cr_assert(place.rows.check(true).value().empty());
    const auto lines = place.client.list().value();
    cr_assert_eq(lines.size(), 1);
    cr_assert_eq(lines[0].session_id, place.session.id());
    cr_assert_str_eq(lines[0].stats->label, "of people");
    cr_assert_eq(place.client.server_info()->caches, 1);
}

Test(cpp, options_are_passed_on_and_a_difference_is_told) {
    Place place({.limit_bytes = 16 << 20, .tag = "v1"});
    cr_assert(place.rows.differs().empty());
    cr_assert(place.session.open(1, {.tag = "v2"}).error().is(Code::conflict));
    cr_assert(place.session.open(2, {.create = false}).error().is(Code::not_found));
    const std::string differs = place.session.open(1, {.limit_bytes = 32 << 20}).value().differs();
    cr_assert(differs.find(std::to_string(32 << 20)) != std::string::npos, "'%s'", differs.c_str());
    const int32_t value = 1;
    libcache::Cache reader = place.session.open(1, {.read_only = true}).value();
    cr_assert(reader.put(0, {libcache::scalar(value)}).error().is(Code::permission));
    cr_assert(place.client.session(place.session.id() + 1).open(1).error().is(Code::no_session));
    cr_assert(place.session.destroy_cache(7).error().is(Code::not_found));
    cr_assert(libcache::Client::connect({.port = test_server_port(place.server)}));
    cr_assert(libcache::Client::connect({.socket_path = "/nowhere/at/all"}).error().is(Code::server));
    const libcache::Session kept = place.client.create_session({.name = "kept", .keep = true}).value();
    const libcache::Cache in_kept = kept.open(1).value();
    for (const libcache::Listed &line : place.client.list().value())
        cr_assert_eq(line.stats->kept, line.session_id == kept.id());
    cr_assert_eq(place.client.open_session("one")->id(), place.client.open_session("one")->id());
}

Test(cpp, a_stream_is_appended_and_waited_for) {
    Place place({.limit_bytes = 16 << 20, .build = true});
    const libcache::Build build = place.rows.build_begin().value();
    cr_assert(!build.done && build.next_id == 0);
    const int32_t value = 5;
    cr_assert_eq(place.rows.append({libcache::scalar(value)}).value(), 0);
    cr_assert(place.rows.build_leave());
    cr_assert(place.rows.append({libcache::scalar(value)}).error().is(Code::building));
    cr_assert_eq(place.rows.build_begin()->next_id, 1);
    cr_assert_eq(place.rows.append({libcache::scalar(value)}).value(), 1);
    cr_assert(place.rows.build_done());
    cr_assert(place.rows.build_wait(std::chrono::seconds(60)));
    cr_assert(place.rows.build_begin()->done && place.rows.build_begin()->next_id == 2);
}

Test(cpp, a_full_cache_refuses_and_goes_on_giving) {
    Place place({.limit_bytes = 2 << 20});
    const std::vector<uint8_t> big(256 << 10, 3);
    int64_t stored = 0;
    for (;; ++stored) {
        const auto put = place.rows.put(stored, {libcache::array(big)});
        if (put) continue;
        cr_assert(put.error().is(Code::full), "%s", put.error().message());
        break;
    }
    cr_assert_gt(stored, 0);
    cr_assert(place.rows.get(stored - 1)->column(0)->as<uint8_t>()->back() == 3);
}

Test(cpp, threads_and_a_forked_child_share_a_cache) {
    Place place;
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            for (int64_t i = t; i < 1000; i += 4)
                cr_assert(place.rows.put(i, {libcache::scalar(i)}));
        });
    for (std::thread &thread : threads)
        thread.join();
    const pid_t child = fork();
    if (child == 0) {
        const int64_t mine = 1000;
        const bool right = place.rows.get(999)->column(0)->scalar<int64_t>().value() == 999 &&
                           place.rows.put(mine, {libcache::scalar(mine)}).has_value();
        _exit(right ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    cr_assert_eq(status, 0);
    cr_assert_eq(place.rows.get(1000)->column(0)->scalar<int64_t>().value(), 1000);
}
