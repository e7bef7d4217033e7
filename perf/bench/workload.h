// SPDX-License-Identifier: Apache-2.0
// What is stored and in which order it is asked for. Rows are made from their number, so every store holds the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bench {

struct Workload {
    std::string name;
    size_t rows, row_bytes;
    bool random_ids = false; // 63-bit ones in place of 0..rows-1
    size_t bytes() const { return rows * row_bytes; }
};

// MNIST (28x28 bytes and a label), CIFAR-10, ImageNet crops.
const std::vector<Workload> &training_sets();
// 1e4, 1e5, 1e6 and 1e7 rows of 64 bytes, with ids 0..rows-1 and with 63-bit ids.
const std::vector<Workload> &light_sets();

int64_t id_of(const Workload &w, size_t row); // of the row'th row; different ones are different
void make_row(const Workload &w, size_t row, char *bytes);

// 0..n-1 in an order that is the same in every run.
std::vector<uint32_t> shuffled(size_t n);
// The ids of a workload in that order.
std::vector<int64_t> shuffled_ids(const Workload &w);

} // namespace bench
