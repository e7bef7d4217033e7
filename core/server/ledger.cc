// SPDX-License-Identifier: Apache-2.0
#include "core/server/ledger.h"

#include "capi/libcache.h"

namespace libcache {

uint32_t Ledger::shortage_cause() const {
    return gauge_.bytes() < headroom_ + left() ? CACHE_FULL_MEMORY : CACHE_FULL_SERVER;
}

std::string Ledger::shortage() const {
    if (shortage_cause() == CACHE_FULL_MEMORY)
        return "only " + mebibytes(gauge_.bytes()) + " are available on this machine or in its cgroup, and " +
               mebibytes(headroom_) + " are left to others (--headroom)";
    return mebibytes(charged_) + " of the " + mebibytes(limit_) +
           " that it may use are taken; end sessions with cache_admin -d";
}

} // namespace libcache
