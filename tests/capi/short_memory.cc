// SPDX-License-Identifier: Apache-2.0
// Memory that was there when the server began and is not any more: a control group that shrinks, others that need it,
// a kernel that has none to give.
#include "tests/support/memory_group.h"
#include "tests/support/refuse.h"
#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr uint64_t MiB = 1 << 20;
constexpr uint64_t kRowBytes = 100'000;
const char *const kMemfd[] = {"--backing", "memfd", nullptr};
const char *const kAuto[] = {"--backing", "auto", nullptr};

cache_server_stats info_of(const Session &s) {
    cache_server_stats info{};
    info.size = sizeof info;
    OK(cache_server_info(s.client, &info));
    return info;
}

std::string log_of(const Session &s) {
    std::ifstream file(std::string(test_server_socket(s.server)) + ".log");
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

// Puts rows from `first` on until one does not fit. Its id.
int64_t fill(cache *handle, int64_t first, int64_t most = INT64_MAX) {
    for (int64_t id = first; id < most; ++id) {
        const int result = rows::put(handle, id, kRowBytes);
        if (result == CACHE_EFULL) return id;
        cr_assert_eq(result, 0, "row %lld: %s", (long long)id, cache_last_error());
    }
    return most;
}

// Room that comes free shows a moment later; the test's deadline ends this.
void put_as_soon_as_possible(cache *handle, int64_t id) {
    int result;
    while ((result = rows::put(handle, id, kRowBytes)) == CACHE_EFULL)
        usleep(5000);
    OK(result);
}

// Made, and not in use by rows.
int64_t unused_bytes(const Session &s, cache *handle) {
    const cache_stats stats = s.stat(handle);
    return stats.charged_bytes - stats.used_bytes;
}

void all_right(cache *handle, int64_t rows) {
    for (int64_t id = 0; id < rows; ++id)
        RIGHT(rows::check(handle, id, kRowBytes));
}

// Memory of a neighbour in the same control group.
class Neighbour {
  public:
    Neighbour() = default;
    Neighbour(const Neighbour &) = delete;
    Neighbour &operator=(const Neighbour &) = delete;
    ~Neighbour() { leave(); }
    void take(uint64_t bytes) {
        void *const place =
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        cr_assert_neq(place, MAP_FAILED);
        taken_.push_back({place, bytes});
    }
    void leave() {
        for (const auto &[place, bytes] : taken_)
            munmap(place, bytes);
        taken_.clear();
    }

  private:
    std::vector<std::pair<void *, uint64_t>> taken_;
};

void shrinks_and_grows(const char *const *backing) {
    NEEDS_MADVISE("pages that the server makes");
    MemoryGroup group;
    if (!group.enter(512 * MiB)) SKIP("no memory control group can be made here");
    Session s(2 * MiB, backing);
    cache *handle = s.open(2, options_with_limit(0));
    const int64_t before = fill(handle, 0, 600);
    cr_assert_eq(before, 600, "%s", cache_last_error());
    cr_assert(group.set_limit(256 * MiB));
    const int64_t full = fill(handle, before);
    cr_assert_eq(cache_full_cause(), uint32_t{CACHE_FULL_MEMORY}, "%s", cache_last_error());
    cr_assert(strstr(cache_last_error(), "--headroom"), "%s", cache_last_error());
    cache_server_stats info = info_of(s);
    cr_assert_lt(info.memory_used_bytes, int64_t(256 * MiB));
    cr_assert_gt(info.available_bytes, info.headroom_bytes - int64_t(16 * MiB), "%lld bytes are left to others",
                 (long long)info.available_bytes);
    cr_assert(group.set_limit(512 * MiB));
    put_as_soon_as_possible(handle, full);
    const int64_t more = fill(handle, full + 1, full + 500);
    cr_assert_eq(more, full + 500, "%s", cache_last_error());
    all_right(handle, more);
    info = info_of(s);
    cr_assert_eq(info.generation, 1, "nobody was killed");
    OK(cache_close(handle));
}

// The kernel refuses to make the pages of an extent, whatever it says to be available.
void is_full_when_pages_are_refused_with(int error) {
    NEEDS_SECCOMP();
    refuse_populating(error, MiB); // of the index and the tables there are enough
    Session s(64 * MiB, kMemfd);
    for (int64_t id = 0; id < 3; ++id) {
        FAILS(rows::put(s.rows, id, 3 * MiB), CACHE_EFULL, "does not fit");
        cr_assert_eq(cache_full_cause(), uint32_t{CACHE_FULL_MEMORY}, "%s", cache_last_error());
    }
    while (s.stat().charged_bytes > int64_t(2 * MiB)) // what was begun is given back, its charge too
        usleep(5000);
    cr_assert_eq(info_of(s).generation, 1, "the broker lives");
    const std::string log = log_of(s), name = error == ENOMEM ? "no memory" : strerror(error);
    cr_assert(log.find("populating stopped") != std::string::npos, "%s", log.c_str());
    if (error == EHWPOISON) cr_assert(log.find(name) != std::string::npos, "%s", log.c_str());
}

} // namespace

Test(short_memory, a_control_group_that_shrinks_is_respected_on_small_pages, .timeout = 120) {
    if (kSanitized) SKIP("a small control group: the sanitizer's own memory counts there");
    shrinks_and_grows(kMemfd);
}

Test(short_memory, a_control_group_that_shrinks_is_respected_on_what_there_is, .timeout = 120) {
    if (kSanitized) SKIP("a small control group: the sanitizer's own memory counts there");
    shrinks_and_grows(kAuto);
}

// What writers are lent ahead goes to a neighbour who needs it, at once: they need not have been idle for it.
Test(short_memory, unused_stock_is_given_back_and_the_rest_is_refused, .timeout = 120) {
    NEEDS_MADVISE("pages that the server makes");
    if (kSanitized) SKIP("a small control group: the sanitizer's own memory counts there");
    MemoryGroup group;
    if (!group.enter(512 * MiB)) SKIP("no memory control group can be made here");
    Session s(2 * MiB);
    cache *handle = s.open(2, options_with_limit(0));
    Neighbour neighbour;
    const int64_t headroom = info_of(s).headroom_bytes;
    cr_assert(headroom > int64_t(64 * MiB) && headroom < int64_t(128 * MiB), "a quarter: %lld", (long long)headroom);
    int64_t next = 0;
    // On a busy machine the stock may have gone back as that of an idle writer: then once more.
    while (log_of(s).find("unused memory is given back") == std::string::npos) {
        neighbour.leave();
        while (unused_bytes(s, handle) < int64_t(16 * MiB))
            put_as_soon_as_possible(handle, next++);
        neighbour.take(uint64_t(info_of(s).available_bytes - headroom) + 32 * MiB);
        while (unused_bytes(s, handle) >= int64_t(8 * MiB))
            usleep(5000);
    }
    next = fill(handle, next);
    cr_assert_eq(cache_full_cause(), uint32_t{CACHE_FULL_MEMORY}, "%s", cache_last_error());
    cr_assert_lt(unused_bytes(s, handle), int64_t(8 * MiB));
    neighbour.leave();
    put_as_soon_as_possible(handle, next);
    all_right(handle, next + 1);
    cr_assert_eq(info_of(s).generation, 1, "nobody was killed");
    OK(cache_close(handle));
}

Test(short_memory, pages_refused_with_enomem_are_full, .timeout = 60) {
    is_full_when_pages_are_refused_with(ENOMEM);
}

Test(short_memory, pages_refused_with_efault_are_full, .timeout = 60) {
    is_full_when_pages_are_refused_with(EFAULT);
}

Test(short_memory, pages_refused_with_ehwpoison_are_full, .timeout = 60) {
    is_full_when_pages_are_refused_with(EHWPOISON);
}
