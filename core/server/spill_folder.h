// SPDX-License-Identifier: Apache-2.0
// The folder given with --spilldir: its rules, and the unnamed files in it that spilled rows go to. Used while starting
// and by the broker.
#pragma once

#include "core/control/socket.h"

#include <cstdint>
#include <string>

namespace libcache {

// "" if rows can be spilled there, else why not: a path that is not absolute, no folder that can be written, NFS (where
// a deleted file leaves another behind, and a dead server's would stay).
std::string spill_folder_fault(const std::string &folder);

// "" or what the user should know of this folder: a sentence for the log. By the file system, and by where it lies.
std::string spill_folder_advice(const std::string &folder);

// The same of a file system's number (statfs), for tests.
bool is_network_file_system(long type);

// A fresh file without a name, read-write, made by open(). 0 or CACHE_EIO.
[[nodiscard]] int make_spill_file(const std::string &folder, Fd *file);

// How many segments a spill file's table has room for: what the file system could ever hold, at most 8 TiB.
uint64_t spill_segments_of(const std::string &folder);

// Bytes that the file system of this file has left for us. All bits set: it does not say.
uint64_t file_system_room(int file);

} // namespace libcache
