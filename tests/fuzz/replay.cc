// SPDX-License-Identifier: Apache-2.0
// The main of a fuzz harness without libFuzzer: fuzz_NAME [MUTATIONS [SEED]]. Runs every input of
// tests/fuzz/corpus/NAME and as many mutations of them. What an input that fails holds is printed in hexadecimal.
#include "tests/fuzz/input.h"
#include "tests/support/server.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

using Bytes = std::vector<uint8_t>;

constexpr size_t kLongest = 1024;
constexpr unsigned kWatchdogSeconds = 240;

Bytes current; // what runs, for the signal handler

void say_input() {
    static const char kDigits[] = "0123456789abcdef";
    char line[2 * kLongest + 2];
    size_t n = 0;
    for (uint8_t byte : current) {
        line[n++] = kDigits[byte >> 4];
        line[n++] = kDigits[byte & 15];
    }
    line[n++] = '\n';
    (void)!write(STDERR_FILENO, "input: ", 7);
    (void)!write(STDERR_FILENO, line, n);
}

void die(int signal) {
    say_input();
    std::signal(signal, SIG_DFL);
    raise(signal);
}

// Where no sanitizer looks after a signal, we do.
void say_input_at_death() {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_set_death_callback(say_input);
#endif
    for (int signal : {SIGABRT, SIGILL, SIGTRAP, SIGBUS, SIGSEGV})
        if (const auto before = std::signal(signal, die); before != SIG_DFL) std::signal(signal, before);
}

Bytes read_file(const std::filesystem::path &path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<Bytes> corpus(const std::filesystem::path &folder) {
    std::vector<std::filesystem::path> paths;
    for (const auto &entry : std::filesystem::directory_iterator(folder))
        paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end()); // the same order everywhere
    std::vector<Bytes> inputs;
    for (const auto &path : paths)
        inputs.push_back(read_file(path));
    return inputs;
}

Bytes mutate(const std::vector<Bytes> &inputs, std::mt19937 &random) {
    Bytes bytes = inputs[random() % inputs.size()];
    for (unsigned times = 1 + random() % 6; times != 0; times--) {
        const size_t at = bytes.empty() ? 0 : random() % bytes.size();
        switch (random() % 4) {
        case 0: bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), static_cast<uint8_t>(random())); break;
        case 1:
            for (unsigned more = random() % 40; more != 0; more--)
                bytes.push_back(static_cast<uint8_t>(random()));
            break;
        case 2: // the tail of another
        {
            const Bytes &other = inputs[random() % inputs.size()];
            bytes.resize(at);
            bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(std::min(at, other.size())),
                         other.end());
            break;
        }
        default:
            if (!bytes.empty()) bytes[at] = static_cast<uint8_t>(random());
        }
    }
    bytes.resize(std::min(bytes.size(), kLongest));
    return bytes;
}

void run(const Bytes &bytes) {
    current = bytes;
    // Of exactly this length, so that a sanitizer sees a read behind it.
    const Bytes copy(bytes);
    LLVMFuzzerTestOneInput(copy.data(), copy.size());
}

} // namespace

int main(int argc, char **argv) {
    const std::string name = std::filesystem::path(argv[0]).filename().string().substr(5); // after fuzz_
    const unsigned long mutations = argc > 1 ? strtoul(argv[1], nullptr, 10) : FUZZ_MUTATIONS;
    const unsigned long seed = argc > 2 ? strtoul(argv[2], nullptr, 10) : 1;
    test_watchdog(kWatchdogSeconds);
    say_input_at_death();
    if (argc > 1 && std::filesystem::is_regular_file(argv[1])) return run(read_file(argv[1])), 0;
    const std::vector<Bytes> inputs = corpus("tests/fuzz/corpus/" + name);
    if (inputs.empty()) test_die("no corpus for %s: run from the folder of the repository", name.c_str());
    for (const Bytes &input : inputs)
        run(input);
    std::mt19937 random(static_cast<std::mt19937::result_type>(seed));
    for (unsigned long i = 0; i < mutations; i++)
        run(mutate(inputs, random));
    printf("%zu inputs and %lu mutations, seed %lu\n", inputs.size(), mutations, seed);
}
