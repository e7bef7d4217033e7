// SPDX-License-Identifier: Apache-2.0
// Reads IDX files, the format MNIST comes in, gzip or plain. An IDX file is a big-endian header {0, 0, type of element,
// number of dimensions, then 4 bytes for each extent} and the elements, the last dimension running fastest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace demo {

struct IdxArray {
    std::vector<uint32_t> shape; // as the header announces it
    std::vector<uint8_t> bytes;  // the elements of the items read, an item being one index of the first dimension
    bool gzip = false;
};

// Reads the first `max_items` items (0: all) of a file of unsigned bytes with this number of dimensions. Throws
// std::runtime_error that names the file and the position of what is wrong there.
IdxArray read_idx(const std::string &path, unsigned dimensions, uint64_t max_items);

// The same from an open file at its current position; closes it. `name` stands for the path in messages.
IdxArray read_idx(int fd, const std::string &name, unsigned dimensions, uint64_t max_items);

} // namespace demo
