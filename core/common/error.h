// SPDX-License-Identifier: Apache-2.0
// Result codes with a sentence. fail() stores the sentence for cache_last_error() of this thread and returns the code;
// any thread may call it. A miss is too frequent for a sentence: note_miss() keeps the number, last_error() words it.
#pragma once

#include "capi/libcache.h"

#include <cstdint>

namespace libcache {

[[gnu::format(printf, 2, 3)]] int fail(int code, const char *format, ...);
// Notes what kept a CACHE_EFULL from being a success, for cache_full_cause(); any other code is left as it is. Around
// the fail() that words it: return full_of(CACHE_FULL_SIZE, fail(CACHE_EFULL, ...)).
int full_of(uint32_t cause, int code);
uint32_t full_cause(); // of this thread's last failure: enum cache_cause
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
    uint32_t cause_;
};

const char *code_text(int code);

} // namespace libcache
