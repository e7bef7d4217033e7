// SPDX-License-Identifier: Apache-2.0
// A cache that is full, and does not spill: what one process is refused is its own affair.
#include "tests/support/session.h"

#include <sys/wait.h>
#include <unistd.h>
#include <vector>

// One asks again and again for more than the limit allows: for the others there is room all the time. Their rows are so
// large that each has to be asked for.
Test(full, of_one_client_stops_no_other, .timeout = 60) {
    constexpr int64_t kRows = 6;
    const std::vector<unsigned char> bytes(80 << 20);
    const Bytes too_large(bytes.data(), bytes.size()), large(bytes.data(), 8 << 20);
    Session s(64 << 20);
    int told[2];
    cr_assert_eq(pipe(told), 0);
    const pid_t child = fork();
    if (child == 0) {
        close(told[0]);
        for (int64_t id = kRows;; id++) {
            if (cache_put(s.rows, id, &too_large.column, 1) != CACHE_EFULL) _exit(1);
            if (write(told[1], "x", 1) != 1) _exit(0); // SIGPIPE as a rule: the parent has ended its part
        }
    }
    close(told[1]);
    char byte = 0;
    for (int64_t id = 0; id < kRows; id++) {
        cr_assert_eq(read(told[0], &byte, 1), 1, "the other one was not refused");
        OK(cache_put(s.rows, id, &large.column, 1));
    }
    close(told[0]);
    int status = -1;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(!WIFEXITED(status) || WEXITSTATUS(status) == 0, "a row larger than the limit was not refused");
}
