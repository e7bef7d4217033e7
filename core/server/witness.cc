// SPDX-License-Identifier: Apache-2.0
// Clients for which no pidfd is to be had: on Linux before 5.3, and before 6.5 in a pid namespace that is not ours.
// Such a client maps a file of one page, its witness, by a description of its own, not inherited by its children, and
// keeps nothing else of it. When the kernel grants a write lease on ours, that mapping is gone, and so is the process,
// or its connection was closed for good. The lease has to be asked for: that costs a system call for each such client
// every two seconds, and a death is noticed so much later.
#include "core/common/error.h"
#include "core/common/log.h"
#include "core/server/broker.h"
#include "core/shm/backing.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace libcache {

bool Broker::send_witness(Connection &connection, wire::Message *answer) {
    if (make_memfd("libcache witness", static_cast<uint64_t>(sysconf(_SC_PAGESIZE)), &connection.witness) == 0)
        if (const Fd theirs = open_again(connection.witness.get(), O_RDONLY))
            return send(connection, answer, theirs.get());
    log_line(LogLevel::Error, "process %d cannot be watched: %s", connection.pid, last_error());
    return false;
}

// What the keeper hands over beside a connection's socket. A pidfd has no seals.
bool Broker::is_witness(const Fd &file) {
    return fcntl(file.get(), F_GET_SEALS) >= 0;
}

void Broker::look_at_witnesses() {
    std::vector<uint64_t> dead;
    for (const auto &[id, connection] : connections_) {
        if (!connection.witness || connection.stage == Stage::Hello || connection.stage == Stage::Prove) continue;
        if (fcntl(connection.witness.get(), F_SETLEASE, F_WRLCK) == 0) {
            fcntl(connection.witness.get(), F_SETLEASE, F_UNLCK);
            dead.push_back(id);
        } else if (errno != EAGAIN) {
            log_line(LogLevel::Warning, "the lease that tells whether process %d lives failed: %s", connection.pid,
                     strerror(errno));
        }
    }
    for (uint64_t id : dead)
        process_died(id);
}

} // namespace libcache
