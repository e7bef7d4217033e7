// SPDX-License-Identifier: Apache-2.0
// A server whose broker dies where it is told to, and processes that stand still between two steps.
#pragma once

#include "tests/crash/orders.h"
#include "tests/crash/tables.h"

#include <memory>
#include <string>

namespace crash {

struct Doomed {
    Orders orders;
    std::unique_ptr<Arena> arena;
    int64_t sessions, memory; // before the first round
    int held = 0;             // by the keeper
    Tables tables;

    explicit Doomed(const char *const *server_arguments) {
        orders.begin();
        arena = std::make_unique<Arena>(server_arguments);
        orders.end();
        const cache_server_stats info = server_info(arena->client);
        sessions = info.sessions;
        memory = info.memory_used_bytes;
        // The connection by which test_server saw that the server accepts is none that the keeper gets.
        held = descriptors_of(info.keeper_pid);
        tables = tables_of(info.keeper_pid);
    }

    bool died() const { return orders.page->left.load(std::memory_order_acquire) == 0; }
    void kill_broker() {
        until([&] { return broker_of(arena->server) != 0; }, "a broker");
        kill(broker_of(arena->server), SIGKILL);
    }
    void wait_until_as_before() {
        until(
            [&] {
                const cache_server_stats info = server_info(arena->client);
                return info.sessions == sessions && info.caches == 0 && info.memory_used_bytes == memory &&
                       info.spill_used_bytes == 0 && descriptors_of(info.keeper_pid) == held && tables_as_before(info);
            },
            "sessions, caches, charged bytes, file space and what the keeper and the server's tables hold are what "
            "they were before");
    }

    // A living process may be noted as the last to have destroyed a cache.
    bool tables_as_before(const cache_server_stats &info) const {
        const Tables now = tables_of(info.keeper_pid);
        return now.sessions == tables.sessions && now.caches == tables.caches && now.opens == tables.opens &&
               int64_t(now.destroyers) <= info.clients;
    }
};

// A process that does `first`, says so, and does `then` when it is let go on.
struct Helper {
    pid_t pid = 0;
    int said = -1, go = -1;

    Helper(const std::function<void()> &first, const std::function<void()> &then) {
        int up[2], down[2];
        if (pipe(up) != 0 || pipe(down) != 0) test_die("pipe failed");
        pid = spawn([&] {
            char byte = 0;
            close(up[0]), close(down[1]);
            first();
            (void)!write(up[1], &byte, 1);
            (void)!read(down[0], &byte, 1);
            then();
            return 0;
        });
        close(up[1]), close(down[0]);
        said = up[0], go = down[1];
    }
    void wait_ready() const {
        char byte;
        if (read(said, &byte, 1) != 1) test_die("a helper ended before it was ready");
    }
    void go_on() const {
        const char byte = 0; // later helpers have a copy of our end: closing it would not tell
        if (write(go, &byte, 1) != 1) test_die("a helper ended too early");
    }
    int end(bool by_kill) {
        by_kill ? (void)kill(pid, SIGKILL) : go_on();
        return ended();
    }
    int ended() {
        close(go);
        close(said);
        return wait_for(pid);
    }
};

} // namespace crash
