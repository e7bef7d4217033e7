// SPDX-License-Identifier: Apache-2.0
// Result codes with a sentence. fail() stores the sentence for cache_last_error() of this thread and returns the code;
// any thread may call it. A miss is too frequent for a sentence: note_miss() keeps the number, last_error() words it.
#pragma once

#include "capi/libcache.h"

#include <cstdint>

namespace libcache {

[[gnu::format(printf, 2, 3)]] int fail(int code, const char *format, ...);
int note_miss(int64_t row_id, uint32_t session_id, uint32_t cache_id); // returns CACHE_ENOTFOUND
const char *last_error();

// Keeps this thread's last failure over a clean-up that may fail too.
class KeepError {
  public:
    KeepError();
    ~KeepError();
    KeepError(const KeepError &) = delete;
    KeepError &operator=(const KeepError &) = delete;

  private:
    char text_[640];
    int64_t missed_row_;
};

const char *code_text(int code);

} // namespace libcache
