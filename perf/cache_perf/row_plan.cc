// SPDX-License-Identifier: Apache-2.0
#include "perf/cache_perf/row_plan.h"

#include <algorithm>
#include <cstring>

namespace perf {
namespace {

constexpr uint64_t kMask = ~uint64_t{0} >> 1; // ids are not negative
constexpr size_t kWord = sizeof(uint64_t);

// A bijection of 63 bits: odd factors and shifts.
uint64_t scramble(uint64_t x) {
    x = x * 0x9e3779b97f4a7c15ULL & kMask;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ULL & kMask;
    return x ^ x >> 32;
}

} // namespace

int64_t RowPlan::id(uint64_t row) const {
    return static_cast<int64_t>(random_ids_ ? scramble(row + 1) : row);
}

size_t RowPlan::bytes(uint64_t row) const {
    return min_ == max_ ? min_ : min_ + scramble(row + 0x5eed) % (max_ - min_ + 1);
}

uint64_t RowPlan::first_word(uint64_t row) const {
    return scramble(row + 0xb17e5) << 1;
}

void RowPlan::make(uint64_t row, char *data) const {
    const uint64_t first = first_word(row);
    const size_t size = bytes(row), words = size / kWord;
    for (size_t i = 0; i < words; ++i) {
        const uint64_t word = first + i;
        memcpy(data + i * kWord, &word, kWord);
    }
    const uint64_t last = first + words;
    memcpy(data + words * kWord, &last, size % kWord);
}

void RowPlan::stamp(uint64_t row, char *data) const {
    const uint64_t first = first_word(row);
    memcpy(data, &first, std::min(bytes(row), kWord));
}

size_t RowPlan::first_difference(uint64_t row, const char *data) const {
    const uint64_t first = first_word(row);
    const size_t size = bytes(row);
    for (size_t at = 0; at < size; at += kWord) {
        const uint64_t word = first + at / kWord;
        const size_t length = std::min(kWord, size - at);
        if (memcmp(data + at, &word, length) != 0) {
            const char *const right = reinterpret_cast<const char *>(&word);
            return at + static_cast<size_t>(std::mismatch(right, right + length, data + at).first - right);
        }
    }
    return size;
}

} // namespace perf
