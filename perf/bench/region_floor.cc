// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/region_floor.h"

#include "core/common/error.h"
#include "core/shm/backing.h"
#include "perf/bench/cache_store.h"

#include <stdexcept>

namespace bench {
namespace {

void must_do(int error) {
    if (error != 0) throw std::runtime_error(std::string("the floor of a first epoch: ") + libcache::last_error());
}

const libcache::Backing &backing_of_the_server() {
    static const libcache::Backing chosen = [] {
        cache_server_stats info{};
        info.size = sizeof info;
        must(cache_server_info(client(), &info), "cache_server_info");
        libcache::Backing backing;
        must_do(backing.choose(info.huge_pages ? libcache::BackingWish::Huge : libcache::BackingWish::Memfd));
        return backing;
    }();
    return chosen;
}

} // namespace

RegionFloor::RegionFloor(size_t bytes, bool present) {
    using namespace libcache;
    const Geometry geometry = Geometry::for_limit(bytes + kHugeBytes, backing_of_the_server().huge());
    Fd file;
    must_do(backing_of_the_server().make_region(geometry.region_bytes, &file));
    must_do(window_.map(file.get(), geometry, 0, (bytes + kChunkBytes - 1) / kChunkBytes));
    if (present) must_do(populate(window_.address(), window_.bytes()));
}

} // namespace bench
