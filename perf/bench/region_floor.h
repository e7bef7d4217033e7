// SPDX-License-Identifier: Apache-2.0
// What a first epoch cannot avoid: fresh pages of the backing that the server uses, made by the same calls. This is the
// one place where the benchmarks use more than libcache.h.
#pragma once

#include "core/shm/region.h"

namespace bench {

class RegionFloor {
  public:
    // Of a fresh anonymous file; `present`: every page is made now. Throws std::runtime_error.
    explicit RegionFloor(size_t bytes, bool present = true);
    char *data() const { return window_.address(); }

  private:
    libcache::WindowMap window_;
};

} // namespace bench
