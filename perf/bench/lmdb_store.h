// SPDX-License-Identifier: Apache-2.0
// The peer: LMDB in a tmpfs, as fast as its manual lets it be: integer keys, a writable map, no synchronising, one
// transaction for all writes, one open read transaction for all reads. Failures are std::runtime_error.
#pragma once

#include "perf/bench/workload.h"

#include <lmdb.h>

namespace bench {

class Lmdb {
  public:
    explicit Lmdb(const Workload &w); // an empty one, in a file that nobody else sees
    ~Lmdb();
    Lmdb(const Lmdb &) = delete;
    Lmdb &operator=(const Lmdb &) = delete;

    void begin_writing();
    void put(int64_t id, const char *row);
    void commit();
    void begin_reading();
    const char *get(int64_t id) const; // nullptr: not there

  private:
    size_t row_bytes_;
    MDB_env *env_ = nullptr;
    MDB_txn *transaction_ = nullptr;
    MDB_dbi database_ = 0;
};

// The store that holds a whole workload, ready to be read: filled at the first call, kept till the end of the run.
const Lmdb &full_lmdb(const Workload &w);

} // namespace bench
