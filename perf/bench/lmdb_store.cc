// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/lmdb_store.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <unistd.h>

namespace bench {
namespace {

constexpr const char *kFolder = "/dev/shm";

void must_do(int error, const char *call) {
    if (error != 0) throw std::runtime_error(std::string(call) + ": " + mdb_strerror(error));
}

} // namespace

Lmdb::Lmdb(const Workload &w) : row_bytes_(w.row_bytes) {
    static unsigned made = 0;
    const std::string path =
        std::string(kFolder) + "/libcache-bench-" + std::to_string(getpid()) + "-" + std::to_string(++made);
    must_do(mdb_env_create(&env_), "mdb_env_create");
    // Room for keys, inner pages and what whole pages cost rows that do not fill them.
    must_do(mdb_env_set_mapsize(env_, 2 * w.bytes() + w.rows * 64 + (64u << 20)), "mdb_env_set_mapsize");
    const int opened = mdb_env_open(env_, path.c_str(), MDB_NOSUBDIR | MDB_NOSYNC | MDB_WRITEMAP, 0600);
    unlink(path.c_str()); // open files need no name, and no name is left behind
    unlink((path + "-lock").c_str());
    must_do(opened, "mdb_env_open");
    begin_writing();
    must_do(mdb_dbi_open(transaction_, nullptr, MDB_INTEGERKEY | MDB_CREATE, &database_), "mdb_dbi_open");
    commit();
}

Lmdb::~Lmdb() {
    if (transaction_ != nullptr) mdb_txn_abort(transaction_);
    mdb_env_close(env_);
}

void Lmdb::begin_writing() {
    must_do(mdb_txn_begin(env_, nullptr, 0, &transaction_), "mdb_txn_begin");
}

void Lmdb::put(int64_t id, const char *row) {
    MDB_val key{sizeof id, &id}, value{row_bytes_, const_cast<char *>(row)};
    must_do(mdb_put(transaction_, database_, &key, &value, 0), "mdb_put");
}

void Lmdb::commit() {
    must_do(mdb_txn_commit(transaction_), "mdb_txn_commit");
    transaction_ = nullptr;
}

void Lmdb::begin_reading() {
    must_do(mdb_txn_begin(env_, nullptr, MDB_RDONLY, &transaction_), "mdb_txn_begin");
}

const char *Lmdb::get(int64_t id) const {
    MDB_val key{sizeof id, &id}, value;
    return mdb_get(transaction_, database_, &key, &value) == 0 ? static_cast<const char *>(value.mv_data) : nullptr;
}

const Lmdb &full_lmdb(const Workload &w) {
    static std::map<std::string, std::unique_ptr<Lmdb>> stores;
    std::unique_ptr<Lmdb> &found = stores[w.name];
    if (found) return *found;
    found = std::make_unique<Lmdb>(w);
    std::vector<char> row(w.row_bytes);
    found->begin_writing();
    for (const uint32_t i : shuffled(w.rows)) {
        make_row(w, i, row.data());
        found->put(id_of(w, i), row.data());
    }
    found->commit();
    found->begin_reading();
    return *found;
}

} // namespace bench
