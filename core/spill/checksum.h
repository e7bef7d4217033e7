// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli) as iSCSI and others compute it, by ISA-L, at the speed of memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <isa-l/crc.h>

namespace libcache {

class Crc32c {
  public:
    void add(const void *data, uint64_t bytes) {
        const auto *at = static_cast<const unsigned char *>(data);
        while (bytes != 0) {
            const int n = static_cast<int>(std::min<uint64_t>(bytes, 1 << 30)); // ISA-L counts in int
            state_ = crc32_iscsi(const_cast<unsigned char *>(at), n, state_);
            at += n;
            bytes -= static_cast<uint64_t>(n);
        }
    }
    uint32_t value() const { return ~state_; }

  private:
    uint32_t state_ = 0xffffffff;
};

inline uint32_t crc32c(const void *data, uint64_t bytes) {
    Crc32c crc;
    crc.add(data, bytes);
    return crc.value();
}

} // namespace libcache
