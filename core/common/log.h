// SPDX-License-Identifier: Apache-2.0
// The server's log: one line an event, to a file and, in the foreground, to stderr. Any thread may write; opening is
// done before threads exist. After fork both processes write to the same file, whole lines at a time.
#pragma once

#include <string>

namespace libcache {

enum class LogLevel { Debug = 0, Info = 1, Warning = 2, Error = 3, Exception = 4 };

// Opens the file for appending. 0, or CACHE_EIO with a sentence.
[[nodiscard]] int log_open(const std::string &path, LogLevel level, bool also_stderr);

// Opens the same path again if somebody has deleted the file. Errors are ignored: the old file goes on.
void log_reopen();

[[gnu::format(printf, 2, 3)]] void log_line(LogLevel level, const char *format, ...);

} // namespace libcache
