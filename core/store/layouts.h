// SPDX-License-Identifier: Apache-2.0
// The layouts of one cache as this process knows them: checked private copies of the column tables that the region
// stores once. Lock-free and never shrinking, so it works from all threads and in a forked child.
#pragma once

#include "core/store/row.h"

namespace libcache {

class Layouts {
  public:
    // `rows`: the region's first byte in the reading mapping.
    void attach(const char *rows, uint64_t data_offset, uint64_t region_bytes);
    ~Layouts();

    // The layout of this number, or null if it is none or damaged. Costs one load once it is known.
    const Layout *get(uint32_t number) {
        if (number >= kMaxLayouts) return nullptr;
        // acq pairs with load()'s CAS: the copy was made before its pointer
        const Layout *known = known_[number].load(std::memory_order_acquire);
        return known != nullptr ? known : load(number);
    }

    // The same if this process has read it before, else null.
    const Layout *known(uint32_t number) const {
        return number < kMaxLayouts ? known_[number].load(std::memory_order_acquire) : nullptr; // acq as in get()
    }

    // The layout that was found last and its number, or null: data sets have one, mostly.
    const Layout *last_found(uint32_t *number) const {
        *number = last_found_.load(std::memory_order_relaxed);
        return known(*number);
    }

    // The number under which these columns are stored, or -1. Looks at the shared table too.
    int find(const cache_column *columns, uint32_t n_columns);

    // Number of entries in use, from the shared table; kMaxLayouts when it is full.
    uint32_t stored() const;

    // Offset of the layout's row in the region, 0 if none.
    uint64_t offset(uint32_t number) const;

  private:
    const RegionHeader *header_ = nullptr;
    const char *rows_ = nullptr;
    uint64_t data_offset_ = 0, region_bytes_ = 0;
    std::atomic<const Layout *> known_[kMaxLayouts] = {};
    AtomicU32 last_found_{0}; // a hint

    const Layout *load(uint32_t number);
};

} // namespace libcache
