// SPDX-License-Identifier: Apache-2.0
// An index entry that leads to another row: a whole and right one, of the same layout, so that its id alone tells; or
// to where no row can be. No read may serve anything for it.
#include "tests/support/row_words.h"
#include "tests/support/session.h"

#include <vector>

using namespace libcache;

namespace {

constexpr int64_t kBytes = 100; // of a row
constexpr unsigned char kUntouched = 0xee;

void put(cache *handle, int64_t id) {
    const std::vector<unsigned char> bytes(kBytes, static_cast<unsigned char>(id));
    const cache_column column{const_cast<unsigned char *>(bytes.data()), kBytes, &kBytes, CACHE_UINT8, 1, {}};
    cr_assert_eq(cache_put(handle, id, &column, 1), 0, "%s", cache_last_error());
}

bool no_hit(int64_t result) {
    return result == 0 || result == CACHE_ENOTFOUND || result == CACHE_ECORRUPT;
}

// No way of reading finds row `id`; row `other` is there.
void must_miss(cache *handle, int64_t id, int64_t other) {
    cache_view view{};
    const int result = cache_get(handle, id, &view);
    cr_assert(result == CACHE_ENOTFOUND || result == CACHE_ECORRUPT, "cache_get of row %ld gives %d", long(id), result);
    const int64_t ids[] = {other, id, other};
    cache_view views[3] = {};
    const int64_t hits = cache_get_batch(handle, ids, 3, views);
    cr_assert(hits == 2 || hits == CACHE_ECORRUPT, "cache_get_batch gives %ld", long(hits));
    cr_assert_null(views[1].cache, "cache_get_batch serves row %ld", long(id));
    for (cache_view &each : views)
        if (each.cache) cache_view_release(&each);
    unsigned char gathered[3 * kBytes];
    uint8_t found[3] = {1, 1, 1};
    memset(gathered, kUntouched, sizeof gathered);
    const int64_t copied = cache_gather(handle, ids, 3, 0, gathered, kBytes, found);
    cr_assert(copied == 2 || copied == CACHE_ECORRUPT, "cache_gather gives %ld", long(copied));
    cr_assert_eq(found[1], 0, "cache_gather serves row %ld", long(id));
    for (int64_t i = 0; i < kBytes; i++)
        cr_assert_eq(gathered[kBytes + i], kUntouched, "cache_gather copies another row at byte %ld", long(i));
    uint8_t there[1] = {1};
    cr_assert(no_hit(cache_contains(handle, &id, 1, there)), "cache_contains counts row %ld", long(id));
    cr_assert_eq(there[0], 0, "cache_contains has row %ld", long(id));
}

// Row `id`'s entry leads to row `other`, and then outside of all rows. Both were read before: their layout is known,
// and the short ways are taken.
void redirect(cache *handle, int64_t id, int64_t other) {
    cache_view view{};
    for (int64_t known : {id, other}) {
        OK(cache_get(handle, known, &view));
        cache_view_release(&view);
    }
    char *const region = writable_region();
    const uint64_t units = reinterpret_cast<RegionHeader *>(region)->region_bytes / kUnitBytes;
    AtomicU64 &entry = entry_of(region, id);
    const uint64_t before = entry.load(std::memory_order_relaxed);
    const uint64_t to = entry_of(region, other).load(std::memory_order_relaxed) & IndexEntry::kRefMask;
    for (const uint64_t place : {to, uint64_t{1}, units - 1, units, 2 * units, IndexEntry::kRefMask}) {
        entry.store((before & ~IndexEntry::kRefMask) | place, std::memory_order_release);
        must_miss(handle, id, other);
    }
    entry.store(before, std::memory_order_release); // the server's own check at the end finds all as it was
    OK(cache_get(handle, id, &view));
    cache_view_release(&view);
}

} // namespace

Test(redirected, an_entry_of_the_dense_level_that_leads_to_another_row_gives_none) {
    Session s;
    put(s.rows, 3);
    put(s.rows, 4);
    redirect(s.rows, 3, 4);
}

// The tag stays: the window is searched to its end.
Test(redirected, an_entry_of_a_hashed_level_that_leads_to_another_row_gives_none) {
    Session s;
    const int64_t far = int64_t{1} << 50;
    put(s.rows, far + 1);
    put(s.rows, far + (int64_t{1} << 40));
    redirect(s.rows, far + 1, far + (int64_t{1} << 40));
}
