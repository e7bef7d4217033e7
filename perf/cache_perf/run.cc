// SPDX-License-Identifier: Apache-2.0
#include "perf/cache_perf/run.h"

#include "perf/cache_perf/call_timer.h"
#include "perf/cache_perf/pipelines.h"
#include "perf/cache_perf/report.h"
#include "perf/support/own_server.h"

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <unistd.h>

namespace perf {
namespace {

void must(int result) {
    if (result < 0) throw std::runtime_error(cache_last_error());
}

// This process's own connection, with the session of the run. Both end with it, and say so.
class Session {
  public:
    explicit Session(unsigned port) {
        cache_client_options where = CACHE_CLIENT_OPTIONS_INIT;
        where.port = port;
        must(cache_connect(&where, &client_));
        if (cache_session_create(client_, &id_) < 0) {
            const std::string why = cache_last_error();
            cache_disconnect(client_);
            throw std::runtime_error(why);
        }
    }
    ~Session() {
        if (cache_session_destroy(client_, id_) == 0)
            printf("Session %" PRIu32 " and its cache were dropped.\n", id_);
        else
            fprintf(stderr, "cache_perf: session %" PRIu32 " was not dropped: %s\n", id_, cache_last_error());
        cache_disconnect(client_);
    }
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;

    uint32_t id() const { return id_; }
    cache_client *client() const { return client_; }
    cache_server_stats server() const {
        cache_server_stats stats{};
        stats.size = sizeof stats;
        must(cache_server_info(client_, &stats));
        return stats;
    }
    cache_stats cache(uint32_t cache_id) const {
        cache_options options = CACHE_OPTIONS_INIT;
        options.flags = CACHE_READ_ONLY | CACHE_NO_CREATE;
        ::cache *handle = nullptr;
        must(cache_open(client_, id_, cache_id, &options, &handle));
        cache_stats stats{};
        stats.size = sizeof stats;
        const int rc = cache_stat(handle, &stats);
        cache_close(handle);
        must(rc);
        return stats;
    }

  private:
    cache_client *client_ = nullptr;
    uint32_t id_ = 0;
};

// So that what is in files is read from the disk.
void drop_page_cache() {
    sync();
    FILE *const file = fopen("/proc/sys/vm/drop_caches", "w");
    const bool done = file != nullptr && fputs("1", file) >= 0;
    if (file == nullptr || fclose(file) != 0 || !done)
        throw std::runtime_error(std::string("--drop_page_cache: /proc/sys/vm/drop_caches: ") + strerror(errno));
}

class Run {
  public:
    explicit Run(const Options &options) : plan_(options), board_(options), on_terminal_(isatty(STDERR_FILENO) != 0) {
        facts_.options = options;
    }
    int all(); // the exit status

  private:
    RunFacts facts_;
    const RowPlan plan_;
    const Board board_;
    const bool on_terminal_;
    Signals signals_;

    void start(const Session &session, const Pipelines &pipelines);
    void work(const Session &session, Pipelines &pipelines);
    bool epoch(Pipelines &pipelines, unsigned number, int64_t deadline_ns);
    void show_progress(unsigned number, int64_t start_ns) const;
    void finish();
    int status() const;
};

void Run::start(const Session &session, const Pipelines &pipelines) {
    facts_.machine = this_machine();
    facts_.server = session.server();
    facts_.session_id = session.id();
    facts_.cache_id = std::random_device{}(); // the original makes a random number, and calls it CRC
    facts_.floors = measure_floors(facts_.options, plan_, facts_.server.huge_pages ? Pages::Huge : Pages::Small);
    print_settings(facts_);
    printf("Session: %" PRIu32 "\nCRC: %" PRIu32 "\n", facts_.session_id, facts_.cache_id);
    for (unsigned i = 0; i < facts_.options.pipelines; ++i) {
        const Board::Range range = board_.pipeline_range(i);
        printf("Pipeline %u: process %d, rows %" PRIu64 " to %" PRIu64 "\n", i, pipelines.pid(i), range.first,
               range.last - 1);
    }
    fflush(stdout);
}

void Run::show_progress(unsigned number, int64_t start_ns) const {
    uint64_t done = 0;
    for (unsigned p = 0; p < facts_.options.pipelines; ++p)
        for (unsigned w = 0; w < facts_.options.workers; ++w)
            done += board_.part(p, w).done.load(std::memory_order_relaxed); // of this epoch, or a moment ago
    const double seconds = static_cast<double>(now_ns() - start_ns) / 1e9;
    fprintf(stderr, "\repoch %u: %3.0f %%, %.0f rows/s \033[K", number,
            100.0 * static_cast<double>(done) / static_cast<double>(facts_.options.rows),
            static_cast<double>(done) / seconds);
}

// True if the next one may follow.
bool Run::epoch(Pipelines &pipelines, unsigned number, int64_t deadline_ns) {
    const bool writing = number == 1;
    const int64_t start_ns = now_ns();
    pipelines.run(number, writing, deadline_ns, [&] {
        if (on_terminal_) show_progress(number, start_ns);
    });
    if (on_terminal_) fprintf(stderr, "\r\033[K");
    EpochFigures figures = figures_of(facts_.options, board_, number, writing);
    figures.interrupted = board_.stopped();
    facts_.epochs.push_back(figures);
    print_epoch(facts_, figures);
    if (figures.failed) throw std::runtime_error(figures.failure);
    return !figures.interrupted;
}

void Run::work(const Session &session, Pipelines &pipelines) {
    const bool written = epoch(pipelines, 1, 0);
    facts_.after_writing = session.cache(facts_.cache_id);
    print_statistics(facts_.after_writing);
    if (!written) return;
    const double duration = facts_.options.duration;
    const int64_t deadline_ns = duration > 0 ? now_ns() + static_cast<int64_t>(duration * 1e9) : 0;
    for (unsigned number = 2; deadline_ns != 0 || number <= facts_.options.epochs; ++number) {
        if (facts_.options.drop_page_cache) drop_page_cache();
        if (!epoch(pipelines, number, deadline_ns)) return;
    }
}

void Run::finish() {
    facts_.hindrances = hindrances_of(facts_);
    if (!facts_.hindrances.empty()) printf("\n");
    for (const std::string &sentence : facts_.hindrances)
        printf("Note: %s\n", sentence.c_str());
    if (!facts_.options.json.empty()) write_json(facts_);
}

int Run::status() const {
    for (const EpochFigures &epoch : facts_.epochs)
        if (epoch.wrong != 0) {
            fprintf(stderr, "cache_perf: wrong rows were read: %s\n", epoch.failure.c_str());
            return 1;
        }
    return 0;
}

int Run::all() {
    std::unique_ptr<OwnServer> server;
    if (facts_.options.own_server) {
        std::vector<std::string> words;
        if (!facts_.options.spill_dir.empty()) words = {"--spilldir", facts_.options.spill_dir};
        server = std::make_unique<OwnServer>(words);
    }
    const Session session(facts_.options.port);
    {
        Pipelines pipelines(facts_.options, plan_, board_, signals_);
        start(session, pipelines);
        pipelines.open(session.id(), facts_.cache_id);
        work(session, pipelines);
    }
    finish();
    const int signal = signals_.seen();
    return signal != 0 ? 128 + signal : status();
}

} // namespace

int run(Options options) {
    try {
        return Run(options).all();
    } catch (const std::exception &error) {
        fflush(stdout);
        fprintf(stderr, "cache_perf: %s\n", error.what());
        return 1;
    }
}

} // namespace perf
