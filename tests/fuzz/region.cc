// SPDX-License-Identifier: Apache-2.0
// A region as a client reads and writes it while somebody damages it: every call gives an error or a row, whose columns
// lie inside the region's data, and comes back.
#include "core/client/internal.h"
#include "core/store/check.h"
#include "core/store/stats.h"
#include "tests/fuzz/image.h"
#include "tests/fuzz/peer.h"
#include "tests/support/rows.h"
#include "tests/support/server.h"

#include <cstring>
#include <string>
#include <vector>

namespace {

using namespace libcache;
using fuzz::Image;
using fuzz::Input;

constexpr int64_t kTimeoutMs = 5000; // a busy machine may take a second to connect

class Reader {
  public:
    Reader(cache *handle, const fuzz::Mapping &region, Input &input)
        : handle_(handle), region_(region), input_(input) {}

    // One call, after which the region may be damaged further.
    void step() {
        switch (input_.byte() % 12) {
        case 0: return get(id());
        case 1: return batch();
        case 2: return gather();
        case 3: return contains();
        case 4: return scan();
        case 5: return stat();
        case 6: return schema();
        case 7: return put();
        case 8: return reserve();
        case 9: return check();
        default: return Image::get().damage(region_.base(), input_);
        }
    }

  private:
    cache *const handle_;
    const fuzz::Mapping &region_;
    Input &input_;

    int64_t id() {
        const auto &ids = Image::get().ids();
        const uint8_t which = input_.byte();
        return which < 200 ? ids[which % ids.size()] : input_.number<int64_t>() & INT64_MAX;
    }
    std::vector<int64_t> some_ids() {
        std::vector<int64_t> ids(1 + input_.byte() % 70u);
        for (int64_t &one : ids)
            one = id();
        return ids;
    }

    // The bytes are the peer's business; where they lie is ours.
    void look(const cache_view &view) {
        const RegionMap &map = region_of(handle_);
        const char *const first = map.base() + map.geometry().data_offset, *const end =
                                                                               map.base() + map.geometry().region_bytes;
        const int n = cache_view_columns(&view);
        if (n < 0 || n > static_cast<int>(CACHE_MAX_COLUMNS)) test_die("a view has %d columns", n);
        for (int i = 0; i < n; i++) {
            cache_column column{};
            if (cache_view_column(&view, static_cast<uint32_t>(i), &column) != 0) continue;
            const char *const data = static_cast<const char *>(column.data);
            if (column.bytes != 0 && (data < first || data > end || column.bytes > static_cast<uint64_t>(end - data)))
                test_die("column %d has %llu bytes that lie outside of the region", i,
                         static_cast<unsigned long long>(column.bytes));
            if (column.ndim > CACHE_MAX_DIMENSIONS) test_die("column %d has %u dimensions", i, column.ndim);
            volatile int64_t sum = 0; // the shape and the last byte must be readable
            for (uint32_t d = 0; d < column.ndim; d++)
                sum = sum ^ column.shape[d];
            if (column.bytes != 0) sum = sum + data[0] + data[column.bytes - 1];
        }
    }

    void get(int64_t row_id) {
        cache_view view{};
        if (cache_get(handle_, row_id, &view) != 0) return;
        look(view);
        cache_view_release(&view);
    }
    void batch() {
        const std::vector<int64_t> ids = some_ids();
        std::vector<cache_view> views(ids.size());
        if (cache_get_batch(handle_, ids.data(), ids.size(), views.data()) < 0) return;
        for (cache_view &view : views)
            if (view.cache != nullptr) look(view);
    }
    void gather() {
        const std::vector<int64_t> ids = some_ids();
        const size_t stride = input_.byte() % 2 ? 400 : 8;
        const auto to = std::make_unique<char[]>(ids.size() * stride); // of this length, so that a sanitizer sees more
        std::vector<uint8_t> found(ids.size());
        cache_gather(handle_, ids.data(), ids.size(), input_.byte() % 4, to.get(), stride,
                     input_.byte() % 2 ? found.data() : nullptr);
    }
    void contains() {
        const std::vector<int64_t> ids = some_ids();
        std::vector<uint8_t> found(ids.size());
        cache_contains(handle_, ids.data(), ids.size(), found.data());
    }
    void scan() {
        std::vector<int64_t> ids(64);
        uint64_t cursor = input_.byte() % 2 ? 0 : input_.number<uint64_t>();
        for (int round = 0; round < 8; round++)
            if (cache_scan(handle_, &cursor, ids.data(), ids.size()) <= 0) break;
    }
    void stat() {
        cache_stats stats{};
        stats.size = sizeof stats;
        if (input_.byte() % 16 == 0)
            cache_stat(handle_, &stats); // asks the kernel for page tables, which takes most of a run's time
        else
            region_statistics(region_of(handle_), &stats);
        if (memchr(stats.tag, 0, sizeof stats.tag) == nullptr || memchr(stats.label, 0, sizeof stats.label) == nullptr)
            test_die("a text of cache_stat has no end");
    }
    void schema() {
        size_t bytes = input_.byte();
        const auto buffer = std::make_unique<char[]>(bytes + 1);
        cache_schema_get(handle_, buffer.get(), &bytes);
    }
    void put() { (void)rows::put(handle_, id(), 300); }
    void reserve() {
        int64_t shape = input_.number<uint16_t>();
        cache_column column{nullptr, static_cast<uint64_t>(shape), &shape, CACHE_UINT8, 1, {}};
        cache_reservation *open = nullptr;
        if (cache_reserve(handle_, id(), &column, 1, &open) != 0) return;
        memset(column.data, 1, column.bytes);
        if (input_.byte() % 2)
            cache_commit(open);
        else
            cache_abort(open);
    }
    void check() {
        if (input_.byte() % 16 != 0) return; // it walks all of the index
        std::string report;
        (void)region_check(region_of(handle_), &report);
    }
};

// What inputs share, for speed: the region is made as it was before each, and a connection that served one input well
// serves the next.
class Bench {
  public:
    ~Bench() { disconnect(); }

    const fuzz::Mapping &region() const { return region_; }
    void restore() { Image::get().restore(file_.get(), region_.base()); }
    cache *open() {
        if (client_ == nullptr) connect();
        cache *handle = nullptr;
        if (cache_open(client_, Image::get().header().session_id, 1, nullptr, &handle) >= 0) return handle;
        disconnect();
        return nullptr;
    }

  private:
    const Fd file_ = Image::get().copy();
    const fuzz::Mapping region_{file_.get()};
    fuzz::Peer peer_{file_.get(), region_};
    cache_client *client_ = nullptr;

    void connect() {
        cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
        options.socket_path = peer_.path().c_str();
        options.timeout_ms = kTimeoutMs;
        if (cache_connect(&options, &client_) != 0) test_die("connecting to the peer: %s", cache_last_error());
    }
    void disconnect() {
        if (client_ != nullptr) cache_disconnect(client_);
        client_ = nullptr;
    }
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Bench bench;
    Input input(data, size);
    bench.restore();
    for (unsigned early = input.byte() % 4; early != 0; early--)
        Image::get().damage(bench.region().base(), input);
    if (cache *const handle = bench.open(); handle != nullptr) {
        Reader reader(handle, bench.region(), input);
        for (int steps = 0; steps < 60 && input.more(); steps++)
            reader.step();
        cache_close(handle);
    }
    return 0;
}
