// SPDX-License-Identifier: Apache-2.0
// The doors that tests have into a handle, past the C ABI.
#pragma once

#include "core/client/cache.h"

namespace libcache {

inline const RegionMap &region_of(const cache *handle) {
    return handle->region->map;
}

} // namespace libcache
