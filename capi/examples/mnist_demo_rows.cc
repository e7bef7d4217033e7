// SPDX-License-Identifier: Apache-2.0
#include "capi/examples/mnist_demo_rows.h"

#include "capi/examples/mnist_demo_cache.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>

namespace demo {
namespace {

constexpr int64_t kReportRows = 1024; // progress is told this often

Cache open_job(const Client &client, const Job &job, uint32_t flags) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.flags = flags;
    return open_cache(client, job.session, job.cache_id, options);
}

// Counts the time inside the calls into libcache, and tells the parent now and then.
class Tally {
  public:
    explicit Tally(const Worker::Progress &progress) : progress_(progress) {}

    template <typename Call> void time(Call call) {
        const auto before = std::chrono::steady_clock::now();
        call();
        const auto spent = std::chrono::steady_clock::now() - before;
        totals_.nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count();
    }

    void count(int64_t rows, int64_t bytes) {
        totals_.rows += rows;
        totals_.bytes += bytes;
        if (totals_.rows - told_ < kReportRows) return;
        told_ = totals_.rows;
        progress_(totals_);
    }

    const Totals &totals() const { return totals_; }

  private:
    const Worker::Progress &progress_;
    Totals totals_{};
    int64_t told_ = 0;
};

// ---- writing ------------------------------------------------------------------------------------

class Loader : public Worker {
  public:
    explicit Loader(const Job &job) : job_(job), client_(connect(job.port)), cache_(open_job(client_, job, 0)) {}

    Totals run(const Order &, const Progress &progress) override {
        const int64_t first = job_.data.rows * job_.rank / job_.size;
        const int64_t last = job_.data.rows * (job_.rank + 1) / job_.size;
        Tally tally(progress);
        for (int64_t begin = first; begin < last; begin += job_.batch) {
            const int64_t end = std::min(begin + job_.batch, last);
            tally.time([&] {
                for (int64_t row = begin; row < end; ++row)
                    put(row);
            });
            tally.count(end - begin, (end - begin) * static_cast<int64_t>(job_.data.image_bytes() + sizeof(uint32_t)));
        }
        return tally.totals();
    }

  private:
    void put(int64_t row) {
        const Dataset &data = job_.data;
        const int64_t shape[] = {data.height, data.width};
        uint32_t label = data.labels[static_cast<size_t>(row)];
        const cache_column image = {.data = const_cast<uint8_t *>(data.image(row)), // put only reads it
                                    .bytes = data.image_bytes(),
                                    .shape = shape,
                                    .dtype = CACHE_UINT8,
                                    .ndim = 2,
                                    .reserved = {}};
        const cache_column scalar = {
            .data = &label, .bytes = sizeof label, .shape = nullptr, .dtype = CACHE_UINT32, .ndim = 0, .reserved = {}};
        const cache_column columns[] = {image, scalar};
        if (check(cache_put(cache_.get(), row, columns, 2)) == 1)
            throw std::runtime_error("row " + std::to_string(row) + " was in the cache before anybody put it there");
    }

    const Job job_;
    Client client_;
    Cache cache_;
};

// ---- reading ------------------------------------------------------------------------------------

enum class ReadCall { Get, GetBatch, Gather };

ReadCall call_of(int32_t epoch) {
    return static_cast<ReadCall>((epoch - 1) % 3);
}

class Reader : public Worker {
  public:
    explicit Reader(const Job &job)
        : job_(job), client_(connect(job.port)), cache_(open_job(client_, job, CACHE_READ_ONLY | CACHE_NO_CREATE)),
          ids_(static_cast<size_t>(job.data.rows)), views_(static_cast<size_t>(job.batch)),
          images_(static_cast<size_t>(job.batch) * job.data.image_bytes()), labels_(static_cast<size_t>(job.batch)) {}

    Totals run(const Order &order, const Progress &progress) override {
        const size_t mine = shuffle(order.seed);
        Tally tally(progress);
        for (size_t begin = 0; begin < mine; begin += views_.size()) {
            const int64_t *ids = ids_.data() + begin;
            const size_t n = std::min(views_.size(), mine - begin);
            // No byte of an earlier batch may pass for one of this.
            std::memset(images_.data(), 0xa5, images_.size());
            std::memset(labels_.data(), 0xa5, labels_.size() * sizeof(uint32_t));
            tally.time([&] { read_batch(call_of(order.epoch), ids, n); });
            int64_t bytes = 0;
            for (size_t i = 0; i < n; ++i)
                bytes += compare(ids[i], i);
            tally.count(static_cast<int64_t>(n), bytes);
        }
        return tally.totals();
    }

  private:
    // Puts this reader's share of the epoch's order, which all of them draw alike, at the front of ids_.
    size_t shuffle(uint64_t seed) {
        std::iota(ids_.begin(), ids_.end(), 0);
        std::mt19937_64 random(seed);
        std::shuffle(ids_.begin(), ids_.end(), random);
        size_t mine = 0;
        for (auto i = static_cast<size_t>(job_.rank); i < ids_.size(); i += static_cast<size_t>(job_.size))
            ids_[mine++] = ids_[i];
        return mine;
    }

    // Three ways from row ids to a batch in a buffer of our own. A trainer that can work on the rows where they lie
    // would use the pointers that the first two give, and copy nothing.
    void read_batch(ReadCall call, const int64_t *ids, size_t n) {
        switch (call) {
        case ReadCall::Get: return read_by_get(ids, n);
        case ReadCall::GetBatch: return read_by_get_batch(ids, n);
        case ReadCall::Gather: return read_by_gather(ids, n);
        }
    }

    void read_by_get(const int64_t *ids, size_t n) {
        for (size_t i = 0; i < n; ++i) {
            check(cache_get(cache_.get(), ids[i], &views_[i]));
            copy_out(i);
        }
    }

    void read_by_get_batch(const int64_t *ids, size_t n) {
        check(cache_get_batch(cache_.get(), ids, n, views_.data()));
        for (size_t i = 0; i < n; ++i) {
            if (!views_[i].cache) throw std::runtime_error("row " + std::to_string(ids[i]) + " is not in the cache");
            copy_out(i);
        }
    }

    void read_by_gather(const int64_t *ids, size_t n) {
        const size_t image_bytes = job_.data.image_bytes();
        check(cache_gather(cache_.get(), ids, n, 0, images_.data(), image_bytes, nullptr));
        check(cache_gather(cache_.get(), ids, n, 1, labels_.data(), sizeof(uint32_t), nullptr));
    }

    void copy_out(size_t i) {
        cache_column image, label;
        check(cache_view_column(&views_[i], 0, &image));
        check(cache_view_column(&views_[i], 1, &label));
        if (image.dtype != CACHE_UINT8 || image.ndim != 2 || image.shape[0] != job_.data.height ||
            image.shape[1] != job_.data.width || label.dtype != CACHE_UINT32 || label.ndim != 0)
            throw std::runtime_error("row " + std::to_string(views_[i].row_id) + " has another type or shape than put");
        std::memcpy(images_.data() + i * job_.data.image_bytes(), image.data, image.bytes);
        std::memcpy(&labels_[i], label.data, label.bytes);
        cache_view_release(&views_[i]);
    }

    // Returns the bytes of the row at place i of the batch, all equal to the source's.
    int64_t compare(int64_t row, size_t i) const {
        const size_t image_bytes = job_.data.image_bytes();
        const uint8_t *got = images_.data() + i * image_bytes;
        const uint8_t *wanted = job_.data.image(row);
        if (std::memcmp(got, wanted, image_bytes) != 0) {
            const auto at = static_cast<size_t>(std::mismatch(got, got + image_bytes, wanted).first - got);
            throw std::runtime_error("row " + std::to_string(row) + ", image, byte " + std::to_string(at) + ": " +
                                     std::to_string(got[at]) + " in the cache, " + std::to_string(wanted[at]) +
                                     " in the source");
        }
        if (const uint32_t label = job_.data.labels[static_cast<size_t>(row)]; labels_[i] != label)
            throw std::runtime_error("row " + std::to_string(row) + ", label: " + std::to_string(labels_[i]) +
                                     " in the cache, " + std::to_string(label) + " in the source");
        return static_cast<int64_t>(image_bytes + sizeof(uint32_t));
    }

    const Job job_;
    Client client_;
    Cache cache_;
    std::vector<int64_t> ids_;
    std::vector<cache_view> views_; // one batch, as the next two
    std::vector<uint8_t> images_;
    std::vector<uint32_t> labels_;
};

} // namespace

const char *read_call(int32_t epoch) {
    switch (call_of(epoch)) {
    case ReadCall::Get: return "cache_get";
    case ReadCall::GetBatch: return "cache_get_batch";
    case ReadCall::Gather: return "cache_gather";
    }
    return "";
}

std::unique_ptr<Worker> make_loader(const Job &job) {
    return std::make_unique<Loader>(job);
}

std::unique_ptr<Worker> make_reader(const Job &job) {
    return std::make_unique<Reader>(job);
}

} // namespace demo
