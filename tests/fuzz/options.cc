// SPDX-License-Identifier: Apache-2.0
// The command lines of cache_admin and cache_server: the input is words, each ended by a 0; its first byte says whose.
#include "core/server/options.h"
#include "capi/admin/arguments.h"
#include "tests/fuzz/input.h"

#include <exception>
#include <string>
#include <vector>

namespace {

std::vector<std::string> words_of(const uint8_t *data, size_t size) {
    std::vector<std::string> words;
    const char *at = reinterpret_cast<const char *>(data), *const end = at + size;
    while (at < end) {
        const char *const stop = std::find(at, end, '\0');
        words.emplace_back(at, stop);
        at = stop + 1;
    }
    return words;
}

void parse_for_server(std::vector<std::string> words) {
    // A folder for spilled rows is tried by making a folder in it: not wherever the input says.
    for (std::string &word : words)
        std::replace(word.begin(), word.end(), '/', ':');
    words.insert(words.begin(), "cache_server");
    std::vector<char *> argv;
    for (std::string &word : words)
        argv.push_back(word.data());
    argv.push_back(nullptr);
    libcache::ServerOptions options;
    int status = -1;
    const bool right = libcache::parse_options(static_cast<int>(words.size()), argv.data(), &options, &status);
    if (right ? options.port < 1025 || options.port > 65535 || options.workers == 0 : status != 0 && status != 1)
        __builtin_trap();
}

void parse_for_admin(const std::vector<std::string> &words) {
    try {
        const admin::Arguments arguments = admin::parse_arguments(words);
        if (arguments.command == admin::Command::None) __builtin_trap();
    } catch (const std::exception &complaint) {
        if (complaint.what()[0] == 0) __builtin_trap(); // refused without a word
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const std::vector<std::string> words = words_of(data + 1, size - 1);
    if (data[0] % 2 == 0)
        parse_for_server(words);
    else if (!words.empty())
        parse_for_admin(words);
    return 0;
}
