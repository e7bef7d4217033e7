// SPDX-License-Identifier: Apache-2.0
// What the populating thread says of the pages that it made: huge ones, or the small ones that the kernel gives
// instead.
#include "core/server/populate.h"

#include "core/common/error.h"
#include "core/shm/backing.h"
#include "tests/support/server.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <sys/prctl.h>

using namespace libcache;

namespace {

constexpr uint64_t kChunks = 4 * kHugeBytes / kChunkBytes; // four units: one slice

struct Made {
    Fd file;
    Geometry geometry = Geometry::for_limit(64 << 20, true);
    std::vector<uint64_t> small_units;

    explicit Made(const Backing &backing) {
        cr_assert_eq(backing.make_region(geometry.region_bytes, &file), 0, "%s", last_error());
        Populator populator("test");
        auto job = std::make_unique<Job>();
        job->work = Work::Populate;
        job->fd = file.get();
        job->geometry = geometry;
        job->cancelled = std::make_shared<std::atomic<bool>>(false);
        job->chunks = kChunks;
        populator.submit(std::move(job));
        pollfd entry{populator.readable(), POLLIN, 0};
        cr_assert_eq(poll(&entry, 1, 60'000), 1, "the job does not come back");
        const std::unique_ptr<Job> done = populator.take_finished();
        cr_assert(done && done->result == 0, "%s", last_error());
        small_units = done->small_units;
    }
    // As this process finds it that maps the same pages.
    uint64_t huge_units() const {
        WindowMap window;
        cr_assert_eq(window.map(file.get(), geometry, 0, kChunks), 0);
        for (uint64_t at = 0; at < window.bytes(); at += 4096)
            (void)*static_cast<volatile char *>(window.address() + at);
        return bytes_on_huge_pages(window.address()) / kHugeBytes;
    }
};

bool choose_huge(Backing *backing) {
    if (backing->choose(BackingWish::Auto) == 0 && backing->huge()) return true;
    fprintf(stderr, "SKIP no huge pages here: %s\n", backing->reason().c_str());
    return false;
}

} // namespace

Test(populate, counts_the_huge_pages_that_the_kernel_gave) {
    Backing backing;
    if (!choose_huge(&backing)) cr_skip_test("no huge pages here");
    const Made made(backing);
    cr_assert_eq(4 - made.small_units.size(), made.huge_units());
}

Test(populate, notes_small_pages_where_huge_ones_were_wished_for) {
    Backing backing;
    if (!choose_huge(&backing)) cr_skip_test("no huge pages here");
    cr_assert_eq(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0); // the kernel has none to give
    const Made made(backing);
    cr_assert_eq(made.small_units.size(), size_t{4});
    cr_assert_eq(made.small_units[3], 3 * kHugeBytes / kChunkBytes);
    cr_assert_eq(made.huge_units(), uint64_t{0});
}
