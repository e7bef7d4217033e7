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
    const Process *forgotten = nullptr;                           // the parent's
};

Process &this_process();

// Never frees this: a parent's object in a forked child, whose destructor would act on what is the parent's. Stays
// reachable, so that leak checkers know that it is meant.
void keep_for_ever(std::shared_ptr<void> object);

} // namespace libcache
