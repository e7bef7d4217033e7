// SPDX-License-Identifier: Apache-2.0
// One run of cache_perf: server, session, pipelines, epochs, and the end of all of them.
#pragma once

#include "perf/cache_perf/options.h"

namespace perf {

int run(Options options); // the exit status

} // namespace perf
