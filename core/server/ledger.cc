// SPDX-License-Identifier: Apache-2.0
#include "core/server/ledger.h"

namespace libcache {

std::string Ledger::shortage() const {
    const uint64_t available = gauge_.bytes();
    if (available < headroom_ + left())
        return "only " + mebibytes(available) + " are available on this machine or in its cgroup, and " +
               mebibytes(headroom_) + " are left to others (--headroom)";
    return mebibytes(charged_) + " of the " + mebibytes(limit_) +
           " that it may use are taken; end sessions with cache_admin -d";
}

} // namespace libcache
