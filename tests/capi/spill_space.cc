// SPDX-License-Identifier: Apache-2.0
// File space for spilled rows as the server lends it, asked for by hand: who gets which segments, what comes back after
// deaths, and what the folder may be. How rows are written there is in spill.cc.
#include "core/shm/layout.h"
#include "tests/support/raw.h"
#include "tests/support/session.h"

#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <signal.h>
#include <sstream>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

using libcache::ExtentState;
using libcache::ExtentWord;
using libcache::kSegmentBytes;
using libcache::RegionHeader;
using libcache::SpillSegment;

namespace {

// A folder that is removed with what is in it; `fail` if something is: spill files have no name.
class SpillFolder {
  public:
    SpillFolder() { cr_assert_not_null(mkdtemp(path_)); }
    SpillFolder(const SpillFolder &) = delete;
    SpillFolder &operator=(const SpillFolder &) = delete;
    ~SpillFolder() { cr_assert_eq(rmdir(path_), 0, "the spill folder is not empty: %s", strerror(errno)); }
    const char *path() const { return path_; }

  private:
    char path_[32] = "/var/tmp/lcspill-XXXXXX";
};

cache_options spilling(uint64_t limit = 16 << 20) {
    cache_options options = options_with_limit(limit);
    options.spill = 1;
    return options;
}

// A writer that speaks by hand, in the calling process.
class RawWriter {
  public:
    RawWriter(const Session &s, uint32_t session, uint32_t cache_id, uint64_t limit = 16 << 20, uint32_t spill = 1)
        : socket_(welcomed(s, &generation_)) {
        auto open = ask(wire::Type::Open, [&](wire::Message &m) {
            m.u.open.session_id = session;
            m.u.open.cache_id = cache_id;
            m.u.open.limit_bytes = limit;
            m.u.open.spill = spill;
        });
        cr_assert_eq(open->header.status, 0, "%s", open->text);
        opened = open->u.opened;
        open_fds = n_fds_;
        close_fds();
        auto attach = ask(wire::Type::Attach, [&](wire::Message &m) { m.u.region.region_id = opened.region_id; });
        cr_assert_eq(attach->header.status, 0, "%s", attach->text);
        attached = attach->u.attached;
        cr_assert_eq(n_fds_, 2, "region and spill file");
        file = dup(fds_[1]);
        base_ = static_cast<char *>(mmap(nullptr, 64 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fds_[0], 0));
        cr_assert_neq(base_, MAP_FAILED);
        close_fds();
    }
    RawWriter(const RawWriter &) = delete;
    RawWriter &operator=(const RawWriter &) = delete;
    ~RawWriter() {
        munmap(base_, 64 << 20);
        close(file);
        close(socket_);
    }

    std::unique_ptr<wire::Message> lend(uint64_t bytes) {
        return ask(wire::Type::SpillGrant, [&](wire::Message &m) {
            m.u.spill.region_id = opened.region_id;
            m.u.spill.epoch = attached.epoch;
            m.u.spill.slot = attached.slot;
            m.u.spill.bytes = bytes;
        });
    }
    wire::Spill lent(uint64_t bytes) {
        const auto answer = lend(bytes);
        cr_assert_eq(answer->header.status, 0, "%s", answer->text);
        return answer->u.spill;
    }
    // Takes an extent, asked for with a want for rows or for stubs, as full at once. Bytes; 0: refused.
    uint64_t take(bool stub) {
        libcache::Slot &slot = reinterpret_cast<libcache::Slot *>(base_ + header().slots_offset)[attached.slot];
        if (const uint64_t bytes = take_granted()) return bytes;
        slot.answer.store(0);
        slot.grant.tail.store(slot.grant.head.load()); // the words are looked at, not the tokens
        auto request = message(wire::Type::Stock, 0);
        request->header.generation = generation_;
        request->u.want = {
            opened.region_id, attached.epoch, libcache::Want{true, false, 0, 1, stub}.pack(), 0, attached.slot, 0};
        cr_assert(send_all(socket_, request.get(), sizeof *request));
        for (;; usleep(500)) {
            if (const uint64_t bytes = take_granted()) return bytes;
            if (libcache::Answer::unpack(slot.answer.load()).code != 0) return take_granted();
        }
    }
    const RegionHeader &header() const { return *reinterpret_cast<const RegionHeader *>(base_); }
    SpillSegment &segment(uint64_t i) const {
        return reinterpret_cast<SpillSegment *>(base_ + header().spill_offset)[i];
    }
    ExtentWord word(uint64_t i) const { return ExtentWord::unpack(segment(i).own.load()); }
    bool move(uint64_t i, ExtentState from, ExtentState to) const {
        uint64_t seen = segment(i).own.load();
        ExtentWord w = ExtentWord::unpack(seen);
        if (w.state != from || w.slot != attached.slot) return false;
        w.state = to;
        return segment(i).own.compare_exchange_strong(seen, w.pack());
    }
    void wait_for(uint64_t i, ExtentState state) const {
        while (word(i).state != state) // the test's deadline ends this
            usleep(2000);
    }

    wire::Opened opened{};
    wire::Attached attached{};
    int open_fds = 0, file = -1;
    uint64_t number = 10;

  private:
    uint64_t generation_ = 0;
    int socket_;
    char *base_ = nullptr;
    int fds_[8] = {}, n_fds_ = 0;

    uint64_t take_granted() const {
        auto *extents = reinterpret_cast<libcache::Extent *>(base_ + header().table_offset);
        uint64_t bytes = 0, top = header().table_top.load();
        for (uint64_t i = 0, len; i < top; i += len) {
            uint64_t seen = extents[i].own.load();
            ExtentWord w = ExtentWord::unpack(seen);
            len = std::max(w.len, 1u);
            if (w.state != ExtentState::Granted || w.slot != attached.slot) continue;
            w.state = ExtentState::Held;
            if (!extents[i].own.compare_exchange_strong(seen, w.pack())) continue;
            const auto limit = uint32_t(w.len * libcache::kChunkBytes / libcache::kUnitBytes);
            extents[i].bump.store(libcache::Bump{limit, limit}.pack());
            bytes += w.len * libcache::kChunkBytes;
        }
        return bytes;
    }

    void close_fds() {
        for (int i = 0; i < n_fds_; ++i)
            close(fds_[i]);
        n_fds_ = 0;
    }

    // As the library does it: a RESUME in place of the answer means the same once more.
    template <typename Fill> std::unique_ptr<wire::Message> ask(wire::Type type, Fill fill) {
        ++number;
        for (uint32_t repeated = 0;; repeated = 1) {
            auto request = message(type, number);
            request->header.generation = generation_;
            request->header.repeated = repeated;
            fill(*request);
            cr_assert(send_all(socket_, request.get(), sizeof *request));
            for (;;) {
                auto answer = reply_with_fds();
                generation_ = answer->header.generation;
                if (answer->header.type == uint32_t(wire::Type::Resume)) break;
                if (answer->header.number == number) return answer;
            }
        }
    }
    std::unique_ptr<wire::Message> reply_with_fds() {
        pollfd entry{socket_, POLLIN, 0};
        cr_assert_eq(poll(&entry, 1, 60000), 1, "no answer and no hang-up");
        auto m = std::make_unique<wire::Message>();
        char control[CMSG_SPACE(sizeof fds_)];
        iovec part{m.get(), sizeof *m};
        msghdr packet{};
        packet.msg_iov = &part;
        packet.msg_iovlen = 1;
        packet.msg_control = control;
        packet.msg_controllen = sizeof control;
        cr_assert_eq(recvmsg(socket_, &packet, MSG_CMSG_CLOEXEC), ssize_t(sizeof *m), "the server hung up");
        for (cmsghdr *c = CMSG_FIRSTHDR(&packet); c; c = CMSG_NXTHDR(&packet, c)) {
            if (c->cmsg_type != SCM_RIGHTS) continue;
            n_fds_ = int((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(fds_, CMSG_DATA(c), size_t(n_fds_) * sizeof(int));
        }
        return m;
    }
};

// Runs `body` in a process of its own, which is then killed. The region must be left to it alone.
template <typename Body> void in_dying_process(Body body) {
    const pid_t child = fork();
    if (child == 0) {
        body();
        raise(SIGKILL);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the child ended by itself: %x", status);
}

std::string log_of(const Session &s) {
    std::ifstream file(std::string(test_server_socket(s.server)) + ".log");
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

uint64_t file_blocks(int file) {
    struct stat status;
    cr_assert_eq(fstat(file, &status), 0);
    return uint64_t(status.st_blocks) * 512;
}

struct SpillSession : SpillFolder, Session {
    explicit SpillSession(const char *limit = nullptr)
        : Session(64 << 20,
                  std::vector<const char *>{"--spilldir", path(), limit ? "--spill_limit" : nullptr, limit, nullptr}
                      .data()) {}
    ~SpillSession() { OK(cache_destroy(client, id, 2)); } // what was written by hand there is in no order
};

pid_t broker_of(const Session &s) {
    cache_server_stats info{};
    info.size = sizeof info;
    OK(cache_server_info(s.client, &info));
    return info.broker_pid;
}

} // namespace

Test(spill_space, is_lent_as_segments_that_have_room_on_disk, .timeout = 60) {
    SpillSession s;
    RawWriter w(s, s.id, 2);
    cr_assert_eq(w.opened.spill, 1);
    cr_assert_eq(w.open_fds, 2);
    cr_assert(w.header().flags & libcache::kRegionSpill);
    cr_assert_gt(w.header().spill_segments, 0);
    const wire::Spill run = w.lent(1000);
    cr_assert_eq(run.len, 1, "the first run is short");
    const ExtentWord word = w.word(run.segment);
    cr_assert_eq(uint32_t(word.state), uint32_t(ExtentState::Granted));
    cr_assert_eq(word.slot, w.attached.slot);
    cr_assert_eq(word.seq, run.seq);
    cr_assert_eq(w.segment(run.segment).used.load(), 0);
    cr_assert_geq(file_blocks(w.file), kSegmentBytes, "its space is there before it is lent");
    const char bytes[] = "a row";
    cr_assert_eq(pwrite(w.file, bytes, sizeof bytes, off_t(run.segment * kSegmentBytes)), ssize_t(sizeof bytes));
    const wire::Spill again = w.lent(1000);
    cr_assert(again.segment == run.segment && again.seq == run.seq, "a run that waits is told again");
    cr_assert(w.move(run.segment, ExtentState::Granted, ExtentState::Held));
    const wire::Spill other = w.lent(3 * kSegmentBytes + 16);
    cr_assert_geq(other.len, 4, "long enough for a row of many segments");
    cr_assert_neq(other.segment, run.segment);
}

// Who uses runs up quickly has his next one made while he writes into this one: it is begun by the time that he is
// answered, without his asking. On a busy machine a round may be too slow for that, and the next one is tried.
Test(spill_space, is_made_ahead_for_who_uses_it_up_quickly, .timeout = 120) {
    SpillSession s;
    RawWriter w(s, s.id, 2);
    const auto at_hand = [&] { // segments that are made or being made, and lent to nobody
        uint64_t segments = 0, len;
        for (uint64_t at = 0; at < w.header().spill_top.load(); at += std::max<uint64_t>(len, 1)) {
            const ExtentWord word = w.word(at);
            len = word.len;
            if (word.state == ExtentState::Busy || word.state == ExtentState::Free) segments += len;
        }
        return segments;
    };
    bool ahead = false;
    for (int round = 0; !ahead; round++) {
        cr_assert_lt(round, 30, "nothing is made ahead");
        const uint64_t before = at_hand();
        const wire::Spill run = w.lent(1000);
        ahead = before == 0 && run.len > 1 && at_hand() >= run.len; // a longer run: he was quick
        cr_assert(w.move(run.segment, ExtentState::Granted, ExtentState::Held));
        w.segment(run.segment).used.store(run.len * kSegmentBytes);
        cr_assert(w.move(run.segment, ExtentState::Held, ExtentState::Sealed));
    }
}

Test(spill_space, left_over_in_a_sealed_run_is_lent_again, .timeout = 60) {
    SpillSession s;
    RawWriter w(s, s.id, 2);
    const wire::Spill run = w.lent(1000);
    cr_assert(w.move(run.segment, ExtentState::Granted, ExtentState::Held));
    w.segment(run.segment).used.store(4096);
    cr_assert(w.move(run.segment, ExtentState::Held, ExtentState::Sealed));
    const wire::Spill next = w.lent(1000);
    cr_assert_eq(next.segment, run.segment);
    cr_assert_eq(next.seq, run.seq + 1);
    cr_assert_eq(w.segment(run.segment).used.load(), 4096, "the room above what is used");
    cr_assert(w.move(run.segment, ExtentState::Granted, ExtentState::Held));
    w.segment(run.segment).used.store(kSegmentBytes - 1024);
    cr_assert(w.move(run.segment, ExtentState::Held, ExtentState::Sealed));
    cr_assert_neq(w.lent(1000).segment, run.segment, "too little is left there");
}

Test(spill_space, that_nobody_uses_goes_back_to_the_disk, .timeout = 60) {
    SpillSession s;
    RawWriter w(s, s.id, 2);
    const wire::Spill run = w.lent(5 * kSegmentBytes);
    cr_assert_geq(file_blocks(w.file), 5 * kSegmentBytes);
    cr_assert(w.move(run.segment, ExtentState::Granted, ExtentState::Held));
    w.segment(run.segment).used.store(kSegmentBytes + 16);
    cr_assert(w.move(run.segment, ExtentState::Held, ExtentState::Sealed));
    while (file_blocks(w.file) > 2 * kSegmentBytes)
        usleep(10000);
    cr_assert_geq(file_blocks(w.file), 2 * kSegmentBytes, "what is used stays");
    cr_assert_eq(w.word(run.segment).len, 2);
}

Test(spill_space, of_a_killed_writer_comes_back, .timeout = 60) {
    SpillSession s;
    RawWriter w(s, s.id, 2);
    const uint64_t mine = w.lent(1000).segment;
    int tell[2];
    cr_assert_eq(pipe(tell), 0);
    in_dying_process([&] {
        RawWriter child(s, s.id, 2);
        uint64_t held = child.lent(1000).segment;
        if (!child.move(held, ExtentState::Granted, ExtentState::Held)) _exit(1);
        child.segment(held).used.store(64000); // places that no stub names
        uint64_t runs[2] = {held, child.lent(1000).segment};
        if (write(tell[1], runs, sizeof runs) != sizeof runs) _exit(2);
        raise(SIGKILL); // with the connection open, as a crash would
    });
    uint64_t runs[2];
    cr_assert_eq(read(tell[0], runs, sizeof runs), ssize_t(sizeof runs));
    for (uint64_t run : runs)
        while (w.word(run).state == ExtentState::Held || w.word(run).state == ExtentState::Granted)
            usleep(2000);
    cr_assert_eq(w.segment(runs[0]).rows.load(), 0);
    cr_assert_eq(uint32_t(w.word(mine).state), uint32_t(ExtentState::Granted), "that of others is left alone");
}

Test(spill_space, outlives_the_broker, .timeout = 60) {
    SpillSession s;
    RawWriter w(s, s.id, 2);
    const wire::Spill held = w.lent(1000);
    cr_assert(w.move(held.segment, ExtentState::Granted, ExtentState::Held));
    const char bytes[] = "a row";
    cr_assert_eq(pwrite(w.file, bytes, sizeof bytes, off_t(held.segment * kSegmentBytes)), ssize_t(sizeof bytes));
    const wire::Spill granted = w.lent(1000);
    const pid_t broker = broker_of(s);
    kill(broker, SIGKILL);
    while (broker_of(s) == broker)
        usleep(2000);
    const wire::Spill again = w.lent(1000);
    cr_assert(again.segment == granted.segment && again.seq == granted.seq, "what is GRANTED stays so");
    cr_assert_eq(uint32_t(w.word(held.segment).state), uint32_t(ExtentState::Held));
    RawWriter second(s, s.id, 2);
    char found[sizeof bytes];
    cr_assert_eq(pread(second.file, found, sizeof found, off_t(held.segment * kSegmentBytes)), ssize_t(sizeof found));
    cr_assert_str_eq(found, bytes, "the file is the same");
    cr_assert_neq(second.lent(1000).segment, granted.segment);
}

Test(spill_space, ends_at_the_limit_with_a_sentence_and_begins_again, .timeout = 60) {
    SpillSession s("24");
    RawWriter w(s, s.id, 2);
    const wire::Spill first = w.lent(2 * kSegmentBytes);
    cr_assert(w.move(first.segment, ExtentState::Granted, ExtentState::Held));
    const auto refused = w.lend(2 * kSegmentBytes);
    cr_assert_eq(refused->header.status, CACHE_EFULL, "%d", refused->header.status);
    cr_assert(strstr(refused->text, "spill_limit"), "%s", refused->text);
    cr_assert_eq(refused->header.full_cause, uint32_t{CACHE_FULL_SPILL_LIMIT});
    cr_assert_eq(w.header().spill_refused.load(), 2);
    cr_assert_eq(w.lent(1000).len, 1, "a smaller one still has room");
    cr_assert_eq(w.lend(2 * kSegmentBytes)->header.status, CACHE_EFULL);
    const std::string log = log_of(s);
    cr_assert_eq(log.find("spill limit"), log.rfind("spill limit"), "said once:\n%s", log.c_str());
    cache_server_stats info{};
    info.size = sizeof info;
    OK(cache_server_info(s.client, &info));
    cr_assert_eq(info.spill_limit_bytes, 24 << 20);
    cr_assert_eq(info.spill_used_bytes, 24 << 20);
    cr_assert(w.move(first.segment, ExtentState::Held, ExtentState::Sealed)); // nothing used: free
    cr_assert_eq(w.lend(2 * kSegmentBytes)->header.status, 0);
}

// The share of the limit that is kept for stubs and index levels, and the part of it that is kept for levels.
Test(spill_space, rows_leave_a_share_of_memory_for_stubs, .timeout = 60) {
    SpillSession s;
    RawWriter w(s, s.id, 2, 16 << 20);
    const uint64_t share = (16 << 20) / libcache::kMostStubShare;
    uint64_t rows = 0, stubs = 0;
    while (const uint64_t bytes = w.take(false))
        rows += bytes;
    cr_assert_leq(rows, (16 << 20) - share);
    cr_assert_geq(rows, (16 << 20) / 8 * 5);
    while (const uint64_t bytes = w.take(true))
        stubs += bytes;
    cr_assert_geq(stubs, share / 2, "%llu bytes for stubs after %llu for rows", (unsigned long long)stubs,
                  (unsigned long long)rows);
    cr_assert_leq(rows + stubs, (16 << 20) - share / libcache::kLevelShare);
    cr_assert_leq(w.header().charged_bytes.load(), 16 << 20);
}

Test(spill_space, is_refused_to_a_cache_that_does_not_spill, .timeout = 60) {
    SpillSession s;
    RawWriter w(s, s.id, 2);
    cr_assert_eq(s.stat().spill_file_bytes, 0);
    Session without(64 << 20);
    const cache_options options = spilling();
    cache *handle = nullptr;
    FAILS(cache_open(without.client, without.id, 9, &options, &handle), CACHE_ENOTSUP, "spill support", "--spilldir");
}
