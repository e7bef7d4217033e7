// SPDX-License-Identifier: Apache-2.0
// What every peer must do: keep the rows of one workload, for several processes. Calls take many ids at once, so that a
// peer which batches may do so, and none pays for a virtual call per row. One process uses an object at a time; a
// forked member calls attach() first. Failures are std::runtime_error.
#pragma once

#include "perf/bench/workload.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace peers {

using bench::Workload;
using Ids = std::span<const int64_t>;

// Rows asked for at once where a peer can: what one step of training wants.
inline constexpr size_t kBatch = 32;

// Rows to be written, made ahead: a few, so that making them costs nothing, each stamped with its id.
class Source {
  public:
    explicit Source(const Workload &w);
    const char *row(int64_t id);
    void check(const char *row, int64_t id); // that it is this row, in every byte

  private:
    size_t row_bytes_;
    std::vector<char> rows_;
};

struct Place {
    unsigned member, members;
};

class Store {
  public:
    explicit Store(const Workload &w) : workload(w) {}
    virtual ~Store() = default;
    Store(const Store &) = delete;
    Store &operator=(const Store &) = delete;

    virtual void attach(Place) {} // in a forked process: the place'th of so many
    virtual void put(Ids ids, Source &source) = 0;
    // Finds each row and reads its first byte: where it lies if the peer can, else as little as it can send. Returns
    // their sum.
    virtual unsigned look_up(Ids ids) = 0;
    // Copies row ids[i] to (i % kBatch) * row_bytes.
    virtual void copy(Ids ids, char *to) = 0;
    // That the rows and their keeping take, the peer's server included.
    virtual uint64_t memory_bytes() = 0;

    const Workload workload;
};

[[noreturn]] void missing(const char *peer, int64_t id);

// Calls each(ids of a batch), in order.
template <class Each> void in_batches(Ids ids, Each each) {
    for (size_t i = 0; i < ids.size(); i += kBatch)
        each(ids.subspan(i, std::min(kBatch, ids.size() - i)));
}

struct Peer {
    std::string name, how; // how: its setting
    std::string (*version)();
    std::unique_ptr<Store> (*make)(const Workload &w);
};
const std::vector<Peer> &all_peers();

std::unique_ptr<Store> make_floor(const Workload &w);
std::unique_ptr<Store> make_libcache(const Workload &w);
std::unique_ptr<Store> make_lmdb(const Workload &w);
std::unique_ptr<Store> make_files(const Workload &w);
std::unique_ptr<Store> make_redis(const Workload &w);
std::unique_ptr<Store> make_memcached(const Workload &w);

} // namespace peers
