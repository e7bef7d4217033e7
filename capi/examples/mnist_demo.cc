// SPDX-License-Identifier: Apache-2.0
// mnist_demo: all rows of MNIST through the cache. Processes that share one cache put them in; other processes read
// them back for several epochs, each in a new order, and compare every byte with the source. Read on with
// mnist_demo_rows.cc (rows in and out); beside it _source and _idx (where rows come from), _server (cache_admin),
// _crew (worker processes), _signals (Ctrl-C) and _screen (what is printed).
#include "capi/examples/mnist_demo_cache.h"
#include "capi/examples/mnist_demo_crew.h"
#include "capi/examples/mnist_demo_rows.h"
#include "capi/examples/mnist_demo_screen.h"
#include "capi/examples/mnist_demo_server.h"
#include "capi/examples/mnist_demo_signals.h"
#include "capi/examples/mnist_demo_source.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <zlib.h>

namespace demo {
namespace {

struct Options {
    int loaders = 2;
    int readers = 2;
    int epochs = 3;
    int64_t batch = 64;
    int64_t rows = 0;
    uint64_t seed = 1;
    std::string folder;
    bool generate = false;
};

constexpr uint32_t kCacheId = 1;
const std::vector<Table::Column> kColumns = {{"phase", 9},  {"call", 15},  {"seed", 4},    {"rows", 10},
                                             {"bytes", 12}, {"ns/row", 7}, {"rows/s", 12}, {"messages", 8}};

// Requests that the server has answered so far, without those by which this function asks.
class Messages {
  public:
    explicit Messages(const Client &client) : client_(client), last_(ask()) {}
    // Since the last call.
    int64_t take() {
        const int64_t before = last_;
        last_ = ask();
        return last_ - before - 1;
    }

  private:
    int64_t ask() const {
        cache_server_stats stats{};
        stats.size = sizeof stats;
        check(cache_server_info(client_.get(), &stats));
        return stats.messages;
    }
    const Client &client_;
    int64_t last_;
};

std::vector<Totals> run_phase(Crew &crew, const Order &order, const std::string &phase, int64_t rows) {
    ProgressLine progress(phase, rows);
    return crew.run(order, progress);
}

// One line of the table: what all workers together did in one phase.
void report(const Table &table, const std::string &phase, const char *call, const std::string &seed,
            const std::vector<Totals> &workers, int64_t messages) {
    Totals all{};
    int64_t slowest_ns = 1;
    for (const Totals &one : workers) {
        all.rows += one.rows;
        all.bytes += one.bytes;
        all.nanoseconds += one.nanoseconds;
        slowest_ns = std::max(slowest_ns, one.nanoseconds);
    }
    const double rate = 1e9 * static_cast<double>(all.rows) / static_cast<double>(slowest_ns);
    table.line({phase, call, seed, with_commas(all.rows), with_commas(all.bytes),
                with_commas(all.nanoseconds / std::max<int64_t>(all.rows, 1)), with_commas(static_cast<int64_t>(rate)),
                with_commas(messages)});
}

// The parent's own handle: makes the cache, says what its rows are, and later counts them.
Cache make_cache(const Client &client, uint32_t session, const Dataset &data) {
    uLong sum = crc32_z(0, data.images.data(), data.images.size());
    sum = crc32_z(sum, data.labels.data(), data.labels.size());
    // Whoever opens the cache for rows made from other files is refused instead of getting these.
    const std::string tag = "mnist crc32 " + std::to_string(sum);
    cache_options options = CACHE_OPTIONS_INIT;
    options.expected_rows = static_cast<uint64_t>(data.rows);
    options.tag = tag.c_str();
    options.label = "MNIST, training set";
    Cache rows = open_cache(client, session, kCacheId, options);
    check(cache_schema_set(rows.get(), kColumnNames, std::size(kColumnNames)));
    return rows;
}

void check_count(const Cache &cache, int64_t rows) {
    cache_stats stats{};
    stats.size = sizeof stats;
    check(cache_stat(cache.get(), &stats));
    if (stats.rows_in_memory != rows)
        throw std::runtime_error("the cache holds " + with_commas(stats.rows_in_memory) + " rows after " +
                                 with_commas(rows) + " were put");
}

void check_all_read(const std::vector<Totals> &workers, int64_t rows) {
    for (const Totals &one : workers)
        rows -= one.rows;
    if (rows != 0) throw std::runtime_error(with_commas(rows) + " rows were not read in this epoch");
}

void write_and_read(const Options &options, const Dataset &data, const Signals &signals, const Client &client,
                    unsigned port) {
    uint32_t session = 0;
    check(cache_session_create(client.get(), &session));
    const Cache cache = make_cache(client, session, data);
    const auto job = [&](int rank, int size) { return Job{data, port, session, kCacheId, options.batch, rank, size}; };
    const Table table(kColumns);
    Messages messages(client);

    Crew loaders(
        "loader", options.loaders, [&](int rank) { return make_loader(job(rank, options.loaders)); }, signals);
    const std::vector<Totals> written = run_phase(loaders, {0, 0}, "write", data.rows);
    loaders.finish();
    report(table, "write", "cache_put", "", written, messages.take());
    check_count(cache, data.rows);

    Crew readers(
        "reader", options.readers, [&](int rank) { return make_reader(job(rank, options.readers)); }, signals);
    for (int epoch = 1; epoch <= options.epochs; ++epoch) {
        const Order order{epoch, options.seed + static_cast<uint64_t>(epoch) - 1};
        const std::string phase = "epoch " + std::to_string(epoch);
        const std::vector<Totals> read = run_phase(readers, order, phase, data.rows);
        report(table, phase, read_call(epoch), std::to_string(order.seed), read, messages.take());
        check_all_read(read, data.rows);
    }
    readers.finish();
    table.rule();
    std::printf("ns/row, rows/s: until the bytes are in place; comparing them with the source is not counted\n"
                "messages: requests to the server, to connect, to open, to lend memory; none is about a row\n");
}

void describe(const Options &options, const Dataset &data, const Client &client, unsigned port) {
    cache_server_stats stats{};
    stats.size = sizeof stats;
    check(cache_server_info(client.get(), &stats));
    std::printf("%s rows of %lldx%lld bytes and a label: %s\n", with_commas(data.rows).c_str(),
                static_cast<long long>(data.height), static_cast<long long>(data.width), data.from.c_str());
    std::printf("cache server on port %u, %s pages; %d loaders write, %d readers read in batches of %lld\n\n", port,
                stats.huge_pages ? "huge" : "small", options.loaders, options.readers,
                static_cast<long long>(options.batch));
}

void run(const Options &options) {
    const Dataset data = options.generate ? generate_dataset(options.rows) : find_dataset(options.folder, options.rows);
    const Signals signals;
    Server server;
    signals.check();
    {
        const Client client = connect(server.port());
        describe(options, data, client, server.port());
        write_and_read(options, data, signals, client, server.port());
    }
    std::printf("\n$ cache_admin --list_sessions -p %u\n%s\n", server.port(), server.list_sessions().c_str());
    server.stop();
    std::printf("All %s rows read were right, byte for byte. The server is stopped.\n",
                with_commas(data.rows * options.epochs).c_str());
    if (std::fflush(stdout) != 0)
        throw std::runtime_error(std::string("cannot write to stdout: ") + std::strerror(errno));
}

void add_options(CLI::App &app, Options &options) {
    const auto number = [&app](const char *name, auto &value, int64_t least, int64_t most, const char *text) {
        // Without a description, as the help would show the range in place of what the option is for.
        app.add_option(name, value, text)->type_name("N")->check(CLI::Range(least, most).description(""));
    };
    app.option_defaults()->always_capture_default();
    number("--loaders", options.loaders, 1, 256, "Processes that write");
    number("--readers", options.readers, 1, 256, "Processes that read");
    number("--epochs", options.epochs, 1, 1'000'000, "How often all rows are read");
    number("--batch", options.batch, 1, 65'536, "Rows read at a time");
    number("--rows", options.rows, 0, 10'000'000, "Use this many rows only; 0: all");
    app.add_option("--seed", options.seed, "Seed of the first epoch's order; each later one takes the next number")
        ->type_name("N");
    app.option_defaults()->always_capture_default(false);
    CLI::Option *folder =
        app.add_option("--data", options.folder,
                       "Folder of train-images-idx3-ubyte and train-labels-idx1-ubyte, plain or .gz;\n"
                       "if not given $MNIST_DIR, else ../shared/data/mnist, else as --generate")
            ->type_name("DIR");
    app.add_flag("--generate", options.generate, "Generate a data set in the same format")->excludes(folder);
    app.get_formatter()->column_width(20);
}

} // namespace
} // namespace demo

int main(int argc, char **argv) {
    std::signal(SIGPIPE, SIG_IGN); // `mnist_demo | head` must not leave a server behind
    try {
        demo::Options options;
        CLI::App app("Puts MNIST into a cache from some processes, reads it back in others, and checks every byte.\n"
                     "Exit status 0: every row was right.",
                     "mnist_demo");
        demo::add_options(app, options);
        CLI11_PARSE(app, argc, argv);
        demo::run(options);
        return 0;
    } catch (const demo::Interrupted &interrupted) {
        std::fprintf(stderr, "mnist_demo: ended by signal %d (%s)\n", interrupted.signal,
                     strsignal(interrupted.signal));
        std::signal(interrupted.signal, SIG_DFL);
        std::raise(interrupted.signal); // so that the caller sees what ended us
    } catch (const std::exception &error) {
        std::fprintf(stderr, "mnist_demo: %s\n", error.what());
    }
    return 1;
}
