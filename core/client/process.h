// SPDX-License-Identifier: Apache-2.0
// Which process this is, for state that must not be shared with a parent or a child (connections, writers). Costs one
// load and no system call: the word that names the process stands on a MADV_WIPEONFORK page and is 0 in a new child,
// whichever way it was made. Any thread may call; nothing here ever waits for a lock that a parent's thread held.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace libcache {

class Connection;

// Made anew in each process that uses the library; the parent's copy is forgotten in a child, not freed: other threads
// of the parent may have held its mutex when it forked.
struct Process {
    std::mutex mutex; // guards connections and the making of writers; held during requests to the server
    std::map<std::string, std::weak_ptr<Connection>> connections; // by socket path
};

Process &this_process();

// Sockets that a forked child closes at once, so that it does not keep its parent's connection open. At most 64, others
// stay open in children, which does no harm: the server looks at the process, not at the socket.
void close_in_child(int socket);
void forget_in_child(int socket);

} // namespace libcache
