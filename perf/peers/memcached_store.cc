// SPDX-License-Identifier: Apache-2.0
#include "perf/peers/peer_server.h"
#include "perf/peers/store.h"

#include <array>
#include <libmemcached/memcached.h>

namespace peers {
namespace {

struct Free {
    void operator()(memcached_st *client) const { memcached_free(client); }
};
using Client = std::unique_ptr<memcached_st, Free>;

Client connect(const std::string &socket) {
    Client client(memcached_create(nullptr));
    memcached_server_add_unix_socket(client.get(), socket.c_str());
    memcached_behavior_set(client.get(), MEMCACHED_BEHAVIOR_BINARY_PROTOCOL, 1); // keys are numbers, not words
    return client;
}

bool answers(const std::string &socket) {
    return memcached_version(connect(socket).get()) == MEMCACHED_SUCCESS;
}

class Memcached : public Store {
  public:
    explicit Memcached(const Workload &w) : Store(w), server_(words(w), answers) { attach({0, 1}); }

    void attach(Place) override {
        (void)client_.release(); // its descriptor is the parent's, too
        client_ = connect(server_.socket());
    }

    // Sets without answers, as a user in a hurry sends them; libmemcached has no pipeline with answers. The look-up at
    // the end answers for all of them: the server takes a connection's commands in turn.
    void put(Ids ids, Source &source) override {
        const Client writer = connect(server_.socket());
        memcached_behavior_set(writer.get(), MEMCACHED_BEHAVIOR_NOREPLY, 1);
        for (const int64_t &id : ids)
            must(memcached_set(writer.get(), key(id), sizeof id, source.row(id), workload.row_bytes, 0, 0), "set");
        memcached_behavior_set(writer.get(), MEMCACHED_BEHAVIOR_NOREPLY, 0);
        must(memcached_exist(writer.get(), key(ids.back()), sizeof ids.back()), "exist");
    }

    unsigned look_up(Ids ids) override {
        unsigned sum = 0;
        fetch(ids, [&](size_t, const char *row) { sum += static_cast<unsigned char>(*row); });
        return sum;
    }

    void copy(Ids ids, char *to) override {
        fetch(ids, [&](size_t i, const char *row) { memcpy(to + i * workload.row_bytes, row, workload.row_bytes); });
    }

    uint64_t memory_bytes() override { return server_.resident_bytes(); }

  private:
    // Twice the rows, so that nothing is evicted whatever its slabs waste.
    static std::vector<std::string> words(const Workload &w) {
        const size_t mib = ((2 * w.bytes() + w.rows * 128) >> 20) + 128;
        return {"memcached", "-s", "SOCKET", "-m", std::to_string(mib), "-u", "root", "-t", "4"};
    }
    static const char *key(const int64_t &id) { return reinterpret_cast<const char *>(&id); }
    void must(memcached_return_t result, const char *call) const {
        if (memcached_failed(result))
            throw std::runtime_error(std::string("memcached ") + call + ": " +
                                     memcached_strerror(client_.get(), result));
    }

    template <class Each> void fetch(Ids ids, Each each) {
        in_batches(ids, [&](Ids batch) {
            std::array<const char *, kBatch> keys;
            std::array<size_t, kBatch> lengths;
            lengths.fill(sizeof(int64_t));
            for (size_t i = 0; i < batch.size(); ++i)
                keys[i] = key(batch[i]);
            must(memcached_mget(client_.get(), keys.data(), lengths.data(), batch.size()), "mget");
            size_t found = 0;
            memcached_return_t result;
            memcached_result_st row;
            memcached_result_create(client_.get(), &row);
            while (memcached_fetch_result(client_.get(), &row, &result)) {
                if (memcached_result_length(&row) != workload.row_bytes) missing("memcached", batch[found]);
                each(found++, memcached_result_value(&row));
            }
            memcached_result_free(&row);
            if (found != batch.size()) missing("memcached", batch[found]);
        });
    }

    PeerServer server_;
    Client client_;
};

} // namespace

std::unique_ptr<Store> make_memcached(const Workload &w) {
    return std::make_unique<Memcached>(w);
}

} // namespace peers
