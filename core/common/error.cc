// SPDX-License-Identifier: Apache-2.0
#include "core/common/error.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace libcache {
namespace {

struct LastError {
    char text[640] = "";
    int64_t missed_row = -1; // >= 0: the last failure was a miss, not yet worded
    uint32_t session_id = 0, cache_id = 0;
    uint32_t cause = CACHE_FULL_UNKNOWN;
};
thread_local constinit LastError last;

} // namespace

int fail(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last.text, sizeof last.text, format, arguments);
    va_end(arguments);
    last.missed_row = -1;
    last.cause = CACHE_FULL_UNKNOWN;
    return code;
}

int full_of(uint32_t cause, int code) {
    if (code == CACHE_EFULL && cause <= CACHE_FULL_SPILL_LIMIT) last.cause = cause; // it may come from another process
    return code;
}

uint32_t full_cause() {
    return last.missed_row < 0 ? last.cause : uint32_t{CACHE_FULL_UNKNOWN};
}

int note_miss(int64_t row_id, uint32_t session_id, uint32_t cache_id) {
    last.missed_row = row_id;
    last.session_id = session_id;
    last.cache_id = cache_id;
    return CACHE_ENOTFOUND;
}

KeepError::KeepError() : missed_row_(last.missed_row), cause_(last.cause) {
    memcpy(text_, last.text, sizeof text_);
}

KeepError::~KeepError() {
    memcpy(last.text, text_, sizeof text_);
    last.missed_row = missed_row_;
    last.cause = cause_;
}

const char *last_error() {
    if (last.missed_row >= 0) {
        snprintf(last.text, sizeof last.text, "row %lld is not in cache %u of session %u",
                 static_cast<long long>(last.missed_row), last.cache_id, last.session_id);
        last.missed_row = -1;
        last.cause = CACHE_FULL_UNKNOWN;
    }
    return last.text;
}

const char *code_text(int code) {
    switch (code) {
    case CACHE_OK: return "success";
    case CACHE_EINVAL: return "an argument is not allowed";
    case CACHE_ENOTFOUND: return "not found: a miss";
    case CACHE_EFULL: return "the memory limit is used up";
    case CACHE_EGONE: return "the session or the cache was destroyed";
    case CACHE_ESERVER: return "no server is reachable, or it has ended";
    case CACHE_EVERSION: return "the other side is of another version";
    case CACHE_ECONFLICT: return "the cache exists with other contents (tag or schema)";
    case CACHE_EBUILDING: return "another process is building this cache";
    case CACHE_ECORRUPT: return "shared memory is damaged";
    case CACHE_EIO: return "a system call failed";
    case CACHE_ENOSESSION: return "no session has this id";
    case CACHE_ENOMEM: return "this process is out of memory";
    case CACHE_EPERM: return "not permitted";
    case CACHE_ETIMEOUT: return "no answer before the deadline";
    case CACHE_ENOTSUP: return "not supported";
    case CACHE_ELIMIT: return "a fixed limit is reached";
    default: return code >= 0 ? "success" : "unknown error code";
    }
}

} // namespace libcache
