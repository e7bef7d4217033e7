// SPDX-License-Identifier: Apache-2.0
// Where the rows come from: MNIST's files if there are any, else a set in the same format that is generated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace demo {

struct Dataset {
    std::string from; // for people: which files, or that it was generated
    int64_t rows = 0;
    int64_t height = 0;
    int64_t width = 0;
    std::vector<uint8_t> images; // rows x height x width
    std::vector<uint8_t> labels; // rows

    size_t image_bytes() const { return static_cast<size_t>(height * width); }
    const uint8_t *image(int64_t row) const { return images.data() + static_cast<size_t>(row) * image_bytes(); }
};

// Looks in `folder`, else in $MNIST_DIR, else in ../shared/data/mnist beside the current folder and beside a checkout
// that holds the program; none: generates. max_rows 0: all. Throws std::runtime_error.
Dataset find_dataset(const std::string &folder, int64_t max_rows);

// 28x28 pictures of digits in a noise that makes each one unique, always the same ones. rows 0: 60,000.
Dataset generate_dataset(int64_t rows);

} // namespace demo
