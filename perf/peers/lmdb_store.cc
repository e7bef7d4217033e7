// SPDX-License-Identifier: Apache-2.0
// LMDB for several processes: each opens the environment anew, since one must not go through fork.
#include "perf/peers/folder.h"
#include "perf/peers/store.h"

#include <algorithm>
#include <lmdb.h>
#include <sys/stat.h>

namespace peers {
namespace {

constexpr size_t kRowsPerTransaction = 1000;

void must(int error, const char *call) {
    if (error != 0) throw std::runtime_error(std::string(call) + ": " + mdb_strerror(error));
}

class Lmdb : public Store {
  public:
    explicit Lmdb(const Workload &w) : Store(w) { open(); }
    ~Lmdb() override { mdb_env_close(env_); }

    // The parent's environment is left as it is: closing it here would release the parent's place in its lock file.
    void attach(Place) override { open(); }

    void put(Ids ids, Source &source) override {
        for (size_t i = 0; i < ids.size(); i += kRowsPerTransaction) {
            MDB_txn *transaction = nullptr;
            must(mdb_txn_begin(env_, nullptr, 0, &transaction), "mdb_txn_begin");
            for (int64_t id : ids.subspan(i, std::min(kRowsPerTransaction, ids.size() - i))) {
                MDB_val key{sizeof id, &id}, value{workload.row_bytes, const_cast<char *>(source.row(id))};
                must(mdb_put(transaction, database_, &key, &value, 0), "mdb_put");
            }
            must(mdb_txn_commit(transaction), "mdb_txn_commit");
        }
    }

    unsigned look_up(Ids ids) override {
        unsigned sum = 0;
        read(ids, [&](size_t, const char *row) { sum += static_cast<unsigned char>(*row); });
        return sum;
    }

    void copy(Ids ids, char *to) override {
        const size_t bytes = workload.row_bytes;
        read(ids, [&](size_t i, const char *row) { memcpy(to + i % kBatch * bytes, row, bytes); });
    }

    uint64_t memory_bytes() override {
        struct stat status {};
        stat((folder_.path() + "/data.mdb").c_str(), &status);
        return static_cast<uint64_t>(status.st_blocks) * 512;
    }

  private:
    void open() {
        must(mdb_env_create(&env_), "mdb_env_create");
        // Room for keys, inner pages and what whole pages cost rows that do not fill them.
        must(mdb_env_set_mapsize(env_, 2 * workload.bytes() + workload.rows * 64 + (64u << 20)), "mdb_env_set_mapsize");
        must(mdb_env_open(env_, folder_.path().c_str(), MDB_NOSYNC | MDB_WRITEMAP, 0600), "mdb_env_open");
        MDB_txn *transaction = nullptr;
        must(mdb_txn_begin(env_, nullptr, 0, &transaction), "mdb_txn_begin");
        must(mdb_dbi_open(transaction, nullptr, MDB_INTEGERKEY | MDB_CREATE, &database_), "mdb_dbi_open");
        must(mdb_txn_commit(transaction), "mdb_txn_commit");
    }

    template <class Each> void read(Ids ids, Each each) {
        MDB_txn *transaction = nullptr;
        must(mdb_txn_begin(env_, nullptr, MDB_RDONLY, &transaction), "mdb_txn_begin");
        for (size_t i = 0; i < ids.size(); ++i) {
            int64_t id = ids[i];
            MDB_val key{sizeof id, &id}, value;
            if (mdb_get(transaction, database_, &key, &value) != 0) missing("LMDB", id);
            each(i, static_cast<const char *>(value.mv_data));
        }
        mdb_txn_abort(transaction);
    }

    Folder folder_{folders().on_tmpfs};
    MDB_env *env_ = nullptr;
    MDB_dbi database_ = 0;
};

} // namespace

std::unique_ptr<Store> make_lmdb(const Workload &w) {
    return std::make_unique<Lmdb>(w);
}

} // namespace peers
