// SPDX-License-Identifier: Apache-2.0
// fill_and_train DIRECTORY [EPOCHS [PROCESSES]]: reads a directory of files in a loop of epochs, as a trainer does. A
// file comes from the cache, or on a miss from the disk and then into the cache, for the next epoch and for every other
// process that trains on the same files meanwhile: those that this one forks, and any other that is started. The cache
// only ever helps: when it is full, dropped or away, training goes on.
#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <libcache.hpp>
#include <numeric>
#include <sys/wait.h>
#include <unistd.h>

namespace {

namespace fs = std::filesystem;

// Stands for a training step: looks at every byte.
uint64_t train(std::span<const std::byte> data) {
    return std::accumulate(data.begin(), data.end(), uint64_t{0},
                           [](uint64_t sum, std::byte byte) { return sum + std::to_integer<uint64_t>(byte); });
}

// A source that cannot be read ends the training; a cache that cannot be used never does.
void read_file(const fs::path &path, std::span<std::byte> to) {
    std::ifstream file(path, std::ios::binary);
    if (!file.read(reinterpret_cast<char *>(to.data()), static_cast<std::streamsize>(to.size()))) {
        fprintf(stderr, "%s was not read to its end\n", path.c_str());
        exit(1);
    }
}

class Trainer {
  public:
    explicit Trainer(std::vector<fs::path> files) : files_(std::move(files)) { open(); }

    // Every file once. Each process begins elsewhere, so that they share the first epoch's work.
    void run_epoch(int epoch, size_t first) {
        uint64_t sum = 0;
        size_t hits = 0;
        for (size_t i = 0; i < files_.size(); ++i)
            sum += read_row((first + i) % files_.size(), hits);
        printf("epoch %d: %zu rows from the cache, %zu from the disk, sum %llu\n", epoch, hits, files_.size() - hits,
               static_cast<unsigned long long>(sum));
        fflush(stdout);
    }

  private:
    // Whoever names the same session and cache id shares the cache. The id comes from the files' names, sizes and
    // times, so that a changed directory is another cache; the tag, all of the fingerprint, tells two apart with the
    // same id.
    void open() {
        size_t fingerprint = 0;
        for (const fs::path &file : files_) {
            const auto time = fs::last_write_time(file).time_since_epoch().count();
            fingerprint ^= std::hash<std::string>()(file.string() + '|' + std::to_string(fs::file_size(file)) + '|' +
                                                    std::to_string(time)) +
                           (fingerprint << 6) + (fingerprint >> 2);
        }
        full_ = false;
        rows_.reset();
        const auto client = libcache::Client::connect();
        if (!client) return warn(client.error(), "going on without a cache");
        const auto session = client->open_session("fill_and_train");
        if (!session) return warn(session.error(), "going on without a cache");
        auto rows = session->open(static_cast<uint32_t>(fingerprint),
                                  {.expected_rows = files_.size(), .tag = std::to_string(fingerprint), .label = "C++"});
        if (!rows) return warn(rows.error(), "going on without a cache");
        rows_ = std::move(*rows);
    }

    static void warn(const libcache::Error &error, const char *what_next) {
        fprintf(stderr, "%s: %s\n", error.message(), what_next);
    }

    // Decides what a failed call means for the rest of the run.
    void handle(const libcache::Error &error) {
        if (error.is(libcache::Code::full)) { // rows are never evicted: what is in stays, the rest comes from the disk
            full_ = true;
            return warn(error, "the rest is read from the disk");
        }
        const bool gone = error.is(libcache::Code::gone); // somebody dropped the session, perhaps to make room
        warn(error, gone ? "opening a new cache" : "going on without a cache");
        rows_.reset();
        if (gone) open();
    }

    uint64_t read_row(size_t i, size_t &hits) {
        if (rows_) {
            auto row = rows_->get(static_cast<int64_t>(i));
            if (row) {
                ++hits;
                return train(row->column(0).value().bytes()); // where it lies: nothing is copied
            }
            if (!row.error().is(libcache::Code::not_found)) handle(row.error());
        }
        return fill(i);
    }

    // A miss: reads the file straight into the cache's memory if it may, else into memory of its own.
    uint64_t fill(size_t i) {
        const auto bytes = static_cast<int64_t>(fs::file_size(files_[i]));
        if (rows_ && !full_) {
            auto room = rows_->reserve(static_cast<int64_t>(i), {libcache::Spec(CACHE_BYTES, {bytes})});
            if (!room)
                handle(room.error());
            else if (*room) // else another process was faster
                return fill_in_place(i, std::move(**room));
        }
        std::vector<std::byte> own(static_cast<size_t>(bytes));
        read_file(files_[i], own);
        return train(own);
    }

    uint64_t fill_in_place(size_t i, libcache::Reservation room) {
        read_file(files_[i], room.bytes(0));
        const uint64_t sum = train(room.bytes(0));
        if (const auto stored = std::move(room).commit(); !stored) handle(stored.error());
        return sum;
    }

    std::vector<fs::path> files_;
    std::optional<libcache::Cache> rows_; // none: read the files
    bool full_ = false;                   // takes no more rows, but still gives those it has
};

// Sorted, so that row i is the same file for everyone.
std::vector<fs::path> files_of(const char *directory) {
    std::vector<fs::path> files;
    for (const auto &entry : fs::directory_iterator(directory))
        if (entry.is_regular_file()) files.push_back(entry.path());
    std::ranges::sort(files);
    return files;
}

// Returns this process's number; the first one is the parent. What is open stays usable in the children.
int fork_others(int processes) {
    for (int process = 1; process < processes; ++process)
        if (fork() == 0) return process;
    return 0;
}

bool all_ended_well() {
    bool well = true;
    for (int status; wait(&status) > 0;)
        well = well && status == 0;
    return well;
}

int usage(FILE *to, const char *program) {
    fprintf(to,
            "usage: %s DIRECTORY [EPOCHS [PROCESSES]]\n"
            "Reads each file of DIRECTORY in EPOCHS epochs (3, unless given) and PROCESSES processes (1), through a "
            "cache.\n",
            program);
    return to == stdout ? 0 : 2;
}

// Of epochs or processes: at least 1.
int number(const char *program, const char *name, std::string_view text) {
    int n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error == std::errc() && end == text.data() + text.size() && n >= 1) return n;
    const int status = usage(stderr, program);
    fprintf(stderr, "%s: %s is '%s', not a whole number from 1 to %d\n", program, name, text.data(), INT_MAX);
    exit(status);
}

int train_on(const char *directory, int epochs, int processes) {
    const std::vector<fs::path> files = files_of(directory);
    Trainer trainer(files);
    const int process = fork_others(processes);
    for (int epoch = 1; epoch <= epochs; ++epoch)
        trainer.run_epoch(epoch, files.size() * static_cast<size_t>(process) / static_cast<size_t>(processes));
    return process != 0 || all_ended_well() ? 0 : 1;
}

} // namespace

int main(int argc, char **argv) {
    const std::string_view first = argc > 1 ? argv[1] : "";
    if (first == "--help" || first == "-h") return usage(stdout, argv[0]);
    if (argc < 2 || argc > 4) return usage(stderr, argv[0]);
    if (first.starts_with('-')) { // a directory of such a name: ./-name
        const int status = usage(stderr, argv[0]);
        fprintf(stderr, "%s: unknown option %s\n", argv[0], argv[1]);
        return status;
    }
    const int epochs = argc > 2 ? number(argv[0], "EPOCHS", argv[2]) : 3;
    const int processes = argc > 3 ? number(argv[0], "PROCESSES", argv[3]) : 1;
    try {
        return train_on(argv[1], epochs, processes);
    } catch (const fs::filesystem_error &error) { // the directory, or a file that has gone meanwhile
        fprintf(stderr, "%s: %s\n", error.path1().c_str(), error.code().message().c_str());
        return 1;
    }
}
