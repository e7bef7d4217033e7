// SPDX-License-Identifier: Apache-2.0
// Reads a benchmark's command line: --help ends with status 0, a wrong argument with 2, as other programs do.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

namespace perf {

inline void read_arguments(CLI::App &app, const char *program, int argc, char **argv) {
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp &asked) {
        exit(app.exit(asked));
    } catch (const CLI::Error &error) {
        fprintf(stderr, "%s: %s\nRun %s --help for the options.\n", program, error.what(), program);
        exit(2);
    }
}

} // namespace perf
