// SPDX-License-Identifier: Apache-2.0
#include "perf/cache_perf/pipeline.h"

#include "perf/cache_perf/worker.h"

#include <cstdio>
#include <exception>
#include <thread>
#include <unistd.h>
#include <vector>

namespace perf {
namespace {

Answer answer_of(int result) {
    Answer answer{result < 0 ? result : 0, {}};
    if (result < 0) snprintf(answer.message, sizeof answer.message, "%s", cache_last_error());
    return answer;
}

struct Opened {
    cache_client *client = nullptr;
    cache *handle = nullptr;
    ~Opened() {
        cache_close(handle);
        cache_disconnect(client);
    }
};

int open_cache(const Options &options, const Command &command, Opened *opened) {
    cache_client_options where = CACHE_CLIENT_OPTIONS_INIT;
    where.port = options.port;
    if (const int rc = cache_connect(&where, &opened->client); rc != 0) return rc;
    cache_options how = CACHE_OPTIONS_INIT;
    how.memory_limit_bytes = options.cache_size_mb << 20;
    how.expected_rows = options.random_ids ? 0 : options.rows;
    how.spill = options.spill;
    how.label = "cache_perf";
    return cache_open(opened->client, command.session_id, command.cache_id, &how, &opened->handle);
}

void run_epoch(const Options &options, const RowPlan &plan, const Board &board, unsigned number, const Command &command,
               cache *handle) {
    const auto work = [&](unsigned worker) {
        const WorkerPlace place{options, plan, board, handle, number, worker};
        if (command.writing)
            write_rows(place);
        else
            read_rows(place, command.epoch);
    };
    for (unsigned i = 0; i < options.workers; ++i)
        board.provide_samples(number, i);
    std::vector<std::thread> others;
    for (unsigned i = 1; i < options.workers; ++i)
        others.emplace_back(work, i);
    work(0);
    for (std::thread &other : others)
        other.join();
}

} // namespace

void be_pipeline(const Options &options, const RowPlan &plan, const Board &board, unsigned number, int socket) {
    int status = 1;
    try {
        Opened opened;
        for (Command command; read(socket, &command, sizeof command) == sizeof command;) {
            int result = 0;
            if (command.epoch == 0)
                result = open_cache(options, command, &opened);
            else
                run_epoch(options, plan, board, number, command, opened.handle);
            const Answer answer = answer_of(result);
            if (write(socket, &answer, sizeof answer) != sizeof answer) break; // cache_perf has ended
        }
        status = 0;
    } catch (const std::exception &error) {
        fprintf(stderr, "cache_perf: pipeline %u: %s\n", number, error.what());
    }
    _exit(status); // nothing of what was inherited is ours to clean up
}

} // namespace perf
