// SPDX-License-Identifier: Apache-2.0
#include "core/common/log.h"

#include "core/common/error.h"

#include <cstdarg>
#include <cstdio>
#include <memory>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

namespace libcache {
namespace {

struct Log {
    std::shared_ptr<spdlog::logger> logger;
    std::string path;
    LogLevel level = LogLevel::Info;
    bool also_stderr = false;
};
Log &current() {
    static Log log; // not a plain global: lines may come before and after everything else
    return log;
}

constexpr spdlog::level::level_enum spdlog_level(LogLevel level) {
    switch (level) {
    case LogLevel::Debug: return spdlog::level::debug;
    case LogLevel::Info: return spdlog::level::info;
    case LogLevel::Warning: return spdlog::level::warn;
    case LogLevel::Error: return spdlog::level::err;
    default: return spdlog::level::critical;
    }
}

} // namespace

int log_open(const std::string &path, LogLevel level, bool also_stderr) try {
    auto logger = std::make_shared<spdlog::logger>("cache_server");
    logger->sinks().push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(path));
    if (also_stderr) logger->sinks().push_back(std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %P %l: %v");
    logger->set_level(spdlog_level(level));
    logger->flush_on(spdlog::level::debug); // each line at once: whoever dies next has said what it knew
    current() = {std::move(logger), path, level, also_stderr};
    return 0;
} catch (const spdlog::spdlog_ex &e) {
    return fail(CACHE_EIO, "cannot open the log file %s: %s", path.c_str(), e.what());
}

void log_reopen() {
    struct stat status;
    const Log &log = current();
    if (!log.logger || lstat(log.path.c_str(), &status) == 0) return;
    const Log old = log;
    (void)log_open(old.path, old.level, old.also_stderr); // if it fails the old one stays
}

void log_line(LogLevel level, const char *format, ...) {
    const Log &log = current();
    if (!log.logger || level < log.level) return;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    log.logger->log(spdlog_level(level), spdlog::string_view_t(text));
}

} // namespace libcache
