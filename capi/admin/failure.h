// SPDX-License-Identifier: Apache-2.0
// How cache_admin gives up: ArgumentError for a command line that is not allowed, Failure for what went wrong at run
// time. Both are caught in main.cc, which prints the sentence on stderr and ends with status 1.
#pragma once

#include <stdexcept>
#include <string>

namespace admin {

struct ArgumentError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Failure : std::runtime_error {
    explicit Failure(const std::string &sentence, int error_code = 0)
        : std::runtime_error(sentence), code(error_code) {}
    int code; // CACHE_E*, or 0 where no call of libcache failed
};

} // namespace admin
