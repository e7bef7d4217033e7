// SPDX-License-Identifier: Apache-2.0
// A spiller of slot 0 over a FakeBroker's region: file space is lent as the server lends it, one segment at a time, and
// a thread steps the broker. With a file that cannot be written each row is one that the disk refuses.
#pragma once

#include "core/spill/reader.h"
#include "core/spill/spiller.h"
#include "tests/support/fake_broker.h"
#include "tests/support/rows.h"

#include <fcntl.h>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace libcache {

class FakeSpill : public SpillLink {
  public:
    static constexpr uint64_t kSegments = 64;
    static constexpr uint64_t kTerm = 3; // slot 0 builds a stream
    static constexpr int64_t kTimeoutNs = int64_t{60} * 1'000'000'000;

    explicit FakeSpill(bool writable = true) {
        if (fd_ < 0) test_die("O_TMPFILE in /var/tmp");
        // The same file once more, for reading only.
        refusing_ = open(("/proc/self/fd/" + std::to_string(fd_)).c_str(), O_RDONLY | O_CLOEXEC);
        broker_.region().header()->builder.store(Builder{0, kTerm}.pack());
        broker_.attach(index_);
        spiller_.emplace(broker_.region().map(), 0, writable ? fd_ : refusing_, writer(), *this);
        stepping_ = std::thread([this] {
            while (!done_.load()) {
                const std::lock_guard lock(stepping_mutex_);
                broker_.step();
            }
        });
    }
    ~FakeSpill() {
        end();
        done_.store(true);
        stepping_.join();
        close(fd_);
        close(refusing_);
    }
    FakeSpill(const FakeSpill &) = delete;
    FakeSpill &operator=(const FakeSpill &) = delete;

    Spiller &spiller() { return *spiller_; }
    Writer &writer() { return broker_.writer_of(0); }
    Index &index() { return index_; }
    // As long as this is held the broker does nothing.
    std::unique_lock<std::mutex> stop_broker() { return std::unique_lock(stepping_mutex_); }
    bool level_is_wanted() {
        return Want::unpack(broker_.region().map().slot(0)->want.load(std::memory_order_acquire)).grow;
    }
    // The first byte of the file at this place, 0 if nothing was written there yet.
    char byte_of_file(uint64_t offset) const {
        char byte = 0;
        return pread(fd_, &byte, 1, off_t(offset)) == 1 ? byte : char(0);
    }
    // The spiller and the writer end, as when the last handle is closed.
    void end() {
        if (!spiller_) return;
        spiller_.reset();
        writer().seal_all();
    }

    // A row of one column of bytes that follow from its id.
    struct Row {
        Row(int64_t id, uint64_t bytes) : data(bytes), shape(int64_t(bytes)) {
            rows::fill(data.data(), bytes, id, 0);
            column = {data.data(), bytes, &shape, CACHE_UINT8, 1, {}};
            layout = Layout::of(&column, 1);
        }
        Row(const Row &) = delete;
        Row &operator=(const Row &) = delete;
        SpillRow spilled() const { return {layout.get(), kInlineLayout, &column, kTimeoutNs}; }
        std::vector<unsigned char> data;
        int64_t shape;
        cache_column column{};
        std::unique_ptr<const Layout> layout;
    };
    int put(int64_t id, uint64_t bytes) { return spiller().put(id, Row(id, bytes).spilled()); }
    int append(uint64_t bytes, int64_t *id) { return spiller().append(Row(0, bytes).spilled(), kTerm, id); }

    // A row of memory, up to its publication.
    Writer::Place place(int64_t id) {
        const Row row(id, 8);
        Writer::Place place;
        if (writer().place({row.layout.get(), kInlineLayout, id, kTimeoutNs}, &place) != 0) test_die("place");
        memcpy(place.address + sizeof(RowHeader), row.layout->table(), row.layout->table_bytes());
        return place;
    }

    // True: the row is found, on disk. It must be right then.
    bool check(int64_t id, uint64_t bytes) {
        const uint64_t offset = index_.find(id);
        if (offset == 0) return false;
        RowHeader stub;
        memcpy(&stub, broker_.region().at(offset), sizeof stub);
        if (!SpillStub::is(stub.layout)) test_die("row %ld is no stub", id);
        SpillRead read{SpillStub::unpack(stub.layout, stub.bytes, stub.n_columns), id, nullptr};
        read_images(fd_, kSegments * kSegmentBytes, &read, 1);
        if (read.code != 0) test_die("row %ld: %s", id, (read_failed(read), last_error()));
        const Row row(id, bytes);
        const char *const column = read.image->data() + row.layout->column_offset_in_line(0, 0);
        if (const int64_t wrong = rows::first_wrong(column, bytes, id, 0); wrong >= 0)
            test_die("row %ld of %lu bytes is wrong from byte %ld on", id, bytes, wrong);
        return true;
    }

    // The word and the sums of the n'th run that was lent.
    ExtentWord word(uint64_t n) { return ExtentWord::unpack(segment(n).own.load(std::memory_order_acquire)); }
    uint64_t rows_of(uint64_t n) { return segment(n).rows.load(std::memory_order_relaxed); }
    uint64_t lent() const { return lent_; } // runs
    std::function<void()> before_grant = [] {};

  private:
    FakeBroker broker_{32 << 20, 7, kSegments};
    Index index_;
    const int fd_ = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    int refusing_ = -1;
    uint64_t lent_ = 0;
    std::atomic<bool> done_{false};
    std::atomic<bool> granting_{false};
    std::mutex stepping_mutex_;
    std::optional<Spiller> spiller_;
    std::thread stepping_;

    SpillSegment &segment(uint64_t n) { return *broker_.region().map().segment(n); }
    // By one thread at a time.
    int grant(uint64_t bytes, int, int64_t, Run *run) override {
        if (granting_.exchange(true)) test_die("two threads ask for file space at once");
        before_grant();
        granting_.store(false);
        if (lent_ == kSegments || bytes > kSegmentBytes)
            return fail(CACHE_EFULL, "%lu segments are lent, %lu bytes were asked for", lent_, bytes);
        *run = {lent_, 1, 1};
        segment(lent_).own.store(ExtentWord{ExtentState::Granted, 0, 1, 1}.pack(), std::memory_order_release);
        broker_.region().header()->spill_top.store(++lent_, std::memory_order_release);
        return 0;
    }
};

} // namespace libcache
