// SPDX-License-Identifier: Apache-2.0
// A folder of one peer, gone with this object.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace peers {

class Folder {
  public:
    explicit Folder(std::string base) : path_(std::move(base) + "/lcp-XXXXXX") {
        if (!mkdtemp(path_.data())) throw std::runtime_error("mkdtemp " + path_ + ": " + strerror(errno));
    }
    ~Folder() {
        std::error_code ignored; // what stays is found by its name
        std::filesystem::remove_all(path_, ignored);
    }
    Folder(const Folder &) = delete;
    Folder &operator=(const Folder &) = delete;
    const std::string &path() const { return path_; }

  private:
    std::string path_;
};

// Where the peers make theirs: folders of the process that outlives the work, so that nothing is left behind.
struct Folders {
    std::string on_tmpfs, for_sockets;
};
inline Folders &folders() {
    static Folders set;
    return set;
}

} // namespace peers
