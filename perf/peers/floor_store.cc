// SPDX-License-Identifier: Apache-2.0
// What nobody can go below by much: an array on pages of the kind that libcache's server uses, without index, check or
// server. Row i lies at i * row_bytes. A writer makes its share of the pages, then copies.
#include "core/common/page.h"
#include "perf/bench/region_floor.h"
#include "perf/peers/store.h"
#include "perf/support/memory.h"

#include <cstring>

namespace peers {
namespace {

class Floor : public Store {
  public:
    explicit Floor(const Workload &w) : Store(w), region_(w.bytes(), false) {}

    void attach(Place place) override { place_ = place; }

    void put(Ids ids, Source &source) override {
        const size_t begin = share(place_.member), end = share(place_.member + 1);
        perf::make_present(region_.data() + begin, end - begin);
        for (const int64_t id : ids)
            memcpy(at(id), source.row(id), workload.row_bytes);
    }

    unsigned look_up(Ids ids) override {
        unsigned sum = 0;
        for (const int64_t id : ids)
            sum += static_cast<unsigned char>(*at(id));
        return sum;
    }

    void copy(Ids ids, char *to) override {
        for (size_t i = 0; i < ids.size(); ++i)
            memcpy(to + i % kBatch * workload.row_bytes, at(ids[i]), workload.row_bytes);
    }

    uint64_t memory_bytes() override { return workload.bytes(); }

  private:
    char *at(int64_t id) const { return region_.data() + static_cast<size_t>(id) * workload.row_bytes; }
    size_t share(unsigned member) const { // where this one's pages begin
        if (member == place_.members) return workload.bytes();
        const size_t page = libcache::page_bytes();
        return workload.bytes() / place_.members * member / page * page;
    }

    bench::RegionFloor region_;
    Place place_{0, 1};
};

} // namespace

std::unique_ptr<Store> make_floor(const Workload &w) {
    return std::make_unique<Floor>(w);
}

} // namespace peers
