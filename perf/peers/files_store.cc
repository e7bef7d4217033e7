// SPDX-License-Identifier: Apache-2.0
// A file per row, in folders of 1,000 on tmpfs.
#include "perf/peers/folder.h"
#include "perf/peers/store.h"

#include <fcntl.h>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

namespace peers {
namespace {

constexpr int64_t kPerFolder = 1000;

class Files : public Store {
  public:
    explicit Files(const Workload &w) : Store(w) {
        for (size_t i = 0; i <= w.rows / kPerFolder; ++i)
            std::filesystem::create_directory(folder_.path() + "/" + std::to_string(i));
    }

    void put(Ids ids, Source &source) override {
        for (const int64_t id : ids) {
            const int fd = open_row(id, O_WRONLY | O_CREAT);
            const ssize_t written = write(fd, source.row(id), workload.row_bytes);
            close(fd);
            if (written != static_cast<ssize_t>(workload.row_bytes))
                throw std::runtime_error("a file was not written to its end: tmpfs is full");
        }
    }

    unsigned look_up(Ids ids) override {
        unsigned sum = 0;
        for (const int64_t id : ids) {
            unsigned char first = 0;
            read_row(id, &first, 1);
            sum += first;
        }
        return sum;
    }

    void copy(Ids ids, char *to) override {
        for (size_t i = 0; i < ids.size(); ++i)
            read_row(ids[i], to + i % kBatch * workload.row_bytes, workload.row_bytes);
    }

    // Pages, and what the kernel keeps for names and inodes: the growth of its slabs since the folder was made, which
    // holds what others did meanwhile as well.
    uint64_t memory_bytes() override {
        const uint64_t slab = slab_bytes();
        uint64_t bytes = slab > slab_before_ ? slab - slab_before_ : 0;
        for (const auto &entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
            struct stat status {};
            if (stat(entry.path().c_str(), &status) == 0) bytes += static_cast<uint64_t>(status.st_blocks) * 512;
        }
        return bytes;
    }

  private:
    static uint64_t slab_bytes() {
        std::ifstream file("/proc/meminfo");
        for (std::string line; std::getline(file, line);)
            if (line.starts_with("Slab:")) return std::stoull(line.substr(5)) * 1024;
        return 0;
    }
    int open_row(int64_t id, int flags) const {
        char path[128];
        snprintf(path, sizeof path, "%s/%lld/%lld", folder_.path().c_str(), static_cast<long long>(id / kPerFolder),
                 static_cast<long long>(id));
        const int fd = open(path, flags | O_CLOEXEC, 0600);
        if (fd < 0) throw std::runtime_error(std::string("open ") + path + ": " + strerror(errno));
        return fd;
    }
    void read_row(int64_t id, void *to, size_t bytes) const {
        const int fd = open_row(id, O_RDONLY);
        const ssize_t got = read(fd, to, bytes);
        close(fd);
        if (got != static_cast<ssize_t>(bytes)) missing("the folder of files", id);
    }

    const uint64_t slab_before_ = slab_bytes();
    Folder folder_{folders().on_tmpfs};
};

} // namespace

std::unique_ptr<Store> make_files(const Workload &w) {
    return std::make_unique<Files>(w);
}

} // namespace peers
