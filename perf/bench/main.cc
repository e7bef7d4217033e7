// SPDX-License-Identifier: Apache-2.0
// bench: the benchmarks of libcache against a server of their own. Takes the options of Google Benchmark and
// --backing=auto|huge|memfd for the server. The work is done by a child, so that whatever ends it leaves no server and
// no folder behind.
#include "perf/bench/cache_store.h"
#include "perf/bench/register.h"
#include "perf/support/machine.h"
#include "perf/support/own_server.h"

#include <benchmark/benchmark.h>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

void describe_context() {
    const perf::Machine machine = perf::this_machine();
    cache_server_stats server{};
    server.size = sizeof server;
    bench::must(cache_server_info(bench::client(), &server), "cache_server_info");
    benchmark::AddCustomContext("processor", machine.processor);
    benchmark::AddCustomContext("memory", std::to_string(machine.memory_bytes >> 20) + " MiB");
    benchmark::AddCustomContext("kernel", machine.kernel);
    benchmark::AddCustomContext("backing", perf::backing_of(server));
    benchmark::AddCustomContext("libcache", machine.library);
    benchmark::AddCustomContext("build", machine.build);
}

int run_benchmarks() {
    try {
        describe_context();
        bench::register_reading();
        bench::register_writing();
        bench::register_processes();
        bench::register_parts();
        const size_t ran = benchmark::RunSpecifiedBenchmarks();
        benchmark::Shutdown();
        return ran == 0;
    } catch (const std::exception &error) {
        fprintf(stderr, "bench: %s\n", error.what());
        return 1;
    }
}

// Takes --backing out of the arguments.
std::vector<std::string> server_options(int *argc, char **argv) {
    std::vector<std::string> options;
    int kept = 1;
    for (int i = 1; i < *argc; ++i)
        if (strncmp(argv[i], "--backing=", 10) == 0)
            options.insert(options.end(), {"--backing", argv[i] + 10});
        else
            argv[kept++] = argv[i];
    argv[ *argc = kept] = nullptr;
    return options;
}

// Waits for the child; signals that mean "end" end it first. Its status as a shell would say it.
int await(pid_t child, const sigset_t &signals) {
    for (;;) {
        int status = 0, signal = 0;
        if (waitpid(child, &status, WNOHANG) == child)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        sigwait(&signals, &signal);
        if (signal != SIGCHLD) kill(child, SIGKILL);
    }
}

} // namespace

int main(int argc, char **argv) {
    const std::vector<std::string> options = server_options(&argc, argv);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    sigset_t signals, before;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD})
        sigaddset(&signals, signal);
    sigprocmask(SIG_BLOCK, &signals, &before);
    try {
        perf::OwnServer server(options);
        const pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            sigprocmask(SIG_SETMASK, &before, nullptr);
            const int status = run_benchmarks();
            fflush(nullptr);
            _exit(status); // the server is the parent's to stop
        }
        return await(child, signals);
    } catch (const std::exception &error) {
        fprintf(stderr, "bench: %s\n", error.what());
        return 1;
    }
}
