// SPDX-License-Identifier: Apache-2.0
#include "capi/libcache.h"
#include "perf/peers/store.h"
#include "perf/support/resident.h"

#include <chrono>
#include <stdexcept>
#include <thread>

namespace peers {
namespace {

void must(int64_t result, const char *call) {
    if (result < 0) throw std::runtime_error(std::string(call) + ": " + cache_last_error());
}

class Libcache : public Store {
  public:
    explicit Libcache(const Workload &w) : Store(w) {
        must(cache_connect(nullptr, &client_), "cache_connect");
        must(cache_session_create(client_, &session_), "cache_session_create");
        cache_options options = CACHE_OPTIONS_INIT;
        options.expected_rows = w.rows;
        must(cache_open(client_, session_, 1, &options, &rows_), "cache_open");
    }
    ~Libcache() override {
        cache_close(rows_);
        cache_session_destroy(client_, session_);
        wait_until_freed();
        cache_disconnect(client_);
    }

    void put(Ids ids, Source &source) override {
        const auto bytes = static_cast<int64_t>(workload.row_bytes);
        cache_column column{nullptr, workload.row_bytes, &bytes, CACHE_UINT8, 1, {}};
        for (const int64_t id : ids) {
            column.data = const_cast<char *>(source.row(id));
            must(cache_put(rows_, id, &column, 1), "cache_put");
        }
    }

    unsigned look_up(Ids ids) override {
        unsigned sum = 0;
        for (const int64_t id : ids) {
            cache_view view;
            cache_column column;
            must(cache_get(rows_, id, &view), "cache_get");
            must(cache_view_column(&view, 0, &column), "cache_view_column");
            sum += *static_cast<const unsigned char *>(column.data);
            cache_view_release(&view);
        }
        return sum;
    }

    void copy(Ids ids, char *to) override {
        in_batches(ids, [&](Ids batch) {
            must(cache_gather(rows_, batch.data(), batch.size(), 0, to, workload.row_bytes, nullptr), "cache_gather");
        });
    }

    uint64_t memory_bytes() override {
        cache_stats stats{};
        stats.size = sizeof stats;
        must(cache_stat(rows_, &stats), "cache_stat");
        return static_cast<uint64_t>(stats.charged_bytes) + perf::server_bytes(server());
    }

  private:
    cache_server_stats server() const {
        cache_server_stats stats{};
        stats.size = sizeof stats;
        must(cache_server_info(client_, &stats), "cache_server_info");
        return stats;
    }
    // The next store is measured while nobody frees this one's memory.
    void wait_until_freed() const noexcept {
        using Clock = std::chrono::steady_clock;
        const auto deadline = Clock::now() + std::chrono::seconds(30);
        try {
            while (server().memory_used_bytes > 0 && Clock::now() < deadline)
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
        } catch (const std::exception &error) { // the server is gone: so is the memory
            fprintf(stderr, "libcache: %s\n", error.what());
        }
    }

    cache_client *client_ = nullptr;
    uint32_t session_ = 0;
    cache *rows_ = nullptr;
};

} // namespace

std::unique_ptr<Store> make_libcache(const Workload &w) {
    return std::make_unique<Libcache>(w);
}

} // namespace peers
