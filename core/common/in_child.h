// SPDX-License-Identifier: Apache-2.0
// What a child of fork() gets rid of before anything else happens there. Any thread may call; nothing here waits.
#pragma once

#include <cstdint>

namespace libcache {

// Descriptors that a forked child closes at once, since nothing there may use them: sockets, so that it does not keep
// its parent's connection open; spill files for writing, so that it does not keep the disk space of a destroyed cache;
// rings, whose memory is not mapped there. At most 128. Others stay open in children, as all do in a child that was
// made past the handlers of fork(): that does no other harm, for the server looks at the process, not at the socket.
void close_in_child(int fd);
void forget_in_child(int fd); // before it is closed

// How many fork()s led to this process since the library was loaded.
uint64_t forks_so_far();

} // namespace libcache
