// SPDX-License-Identifier: Apache-2.0
// Walking an extent that somebody has scribbled on: nothing outside is read, and nothing is called clear that is not.
#include "core/store/audit.h"

#include "tests/support/fake_region.h"

#include <criterion/criterion.h>
#include <sys/mman.h>

using namespace libcache;

namespace {

// The last `units` units before memory that must not be touched.
class AtTheEdge {
  public:
    explicit AtTheEdge(uint32_t units) {
        pages_ =
            static_cast<char *>(mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        cr_assert_neq(static_cast<void *>(pages_), MAP_FAILED);
        cr_assert_eq(mprotect(pages_ + kPage, kPage, PROT_NONE), 0);
        extent_ = pages_ + kPage - uint64_t{units} * kUnitBytes;
    }
    ~AtTheEdge() { munmap(pages_, 2 * kPage); }
    char *extent() { return extent_; }
    void header(uint32_t at, uint32_t stride) {
        auto &row = *reinterpret_cast<RowHeader *>(extent_ + uint64_t{at} * kUnitBytes);
        row = {stride, 0, -1, sizeof(RowHeader), 0, 0};
    }

  private:
    static constexpr size_t kPage = 65'536; // a multiple of every page size in use
    char *pages_, *extent_;
};

} // namespace

Test(audit, a_chain_that_leaves_less_than_a_header_is_not_read_past_its_end) {
    FakeRegion region;
    Index index;
    index.attach(region.at(0), region.at(0), region.geometry().data_offset, region.geometry().region_bytes);
    AtTheEdge memory(5);
    memory.header(0, 2);
    memory.header(2, 2); // one unit is left
    const ExtentAudit audit = audit_extent(index, *region.map().header(), memory.extent(), 0, 5);
    cr_assert_not(audit.clear);
    cr_assert_eq(audit.used, 5, "what is unclear is kept: used is %u", audit.used);
}

Test(audit, a_chain_of_rows_that_nobody_holds_is_dead_and_clear) {
    FakeRegion region;
    Index index;
    index.attach(region.at(0), region.at(0), region.geometry().data_offset, region.geometry().region_bytes);
    AtTheEdge memory(5);
    memory.header(0, 2);
    memory.header(2, 3);
    const ExtentAudit audit = audit_extent(index, *region.map().header(), memory.extent(), 0, 5);
    cr_assert(audit.clear);
    cr_assert_eq(audit.used, 0);
    cr_assert_eq(audit.rows, 0);
    cr_assert_eq(audit.dead_units, 0, "only what lies below a live row counts");
}
