// SPDX-License-Identifier: Apache-2.0
// The bytes of a fuzz input, eaten from the front. An input that has ended gives zeros, so that every prefix of an
// input means something.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace fuzz {

class Input {
  public:
    Input(const uint8_t *data, size_t size) : at_(data), left_(size) {}

    bool more() const { return left_ != 0; }
    template <typename T> T number() {
        T value{};
        const size_t n = std::min(sizeof value, left_);
        if (n != 0) memcpy(&value, take(n), n);
        return value;
    }
    uint8_t byte() { return number<uint8_t>(); }
    // Up to `most` bytes; *bytes says how many.
    const uint8_t *bytes(size_t most, size_t *bytes) {
        *bytes = std::min(most, left_);
        return take(*bytes);
    }
    // Some bytes of an object, each at a place that the input chooses.
    void patch(void *object, size_t size, unsigned times) {
        for (; times != 0 && more(); times--) {
            const size_t place = number<uint16_t>() % size;
            static_cast<uint8_t *>(object)[place] = byte();
        }
    }

  private:
    const uint8_t *at_;
    size_t left_;

    const uint8_t *take(size_t n) {
        const uint8_t *const from = at_;
        at_ += n;
        left_ -= n;
        return from;
    }
};

} // namespace fuzz
