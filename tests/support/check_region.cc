// SPDX-License-Identifier: Apache-2.0
// check_region DIR PORT: walks every cache of a server with region_check() and says what is wrong. Exit status 1 if
// something is. A process of its own, so that tests of libcache.so can use it too; nobody may write meanwhile.
#include "capi/libcache.h"
#include "core/client/internal.h"
#include "core/store/check.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Name {
    uint32_t session_id, cache_id;
};

int note(const cache_list_entry *entry, void *names) {
    if (entry->stats) static_cast<std::vector<Name> *>(names)->push_back({entry->session_id, entry->stats->cache_id});
    return 0;
}

bool check(cache_client *client, Name name) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.flags = CACHE_READ_ONLY | CACHE_NO_CREATE;
    cache *handle = nullptr;
    if (const int code = cache_open(client, name.session_id, name.cache_id, &options, &handle)) {
        if (code == CACHE_EGONE || code == CACHE_ENOSESSION || code == CACHE_ENOTFOUND) return true; // destroyed
        fprintf(stderr, "check_region: opening cache %u of session %u: %s\n", name.cache_id, name.session_id,
                cache_last_error());
        return false;
    }
    std::string report;
    bool right = false;
    // The broker may be making the next index level, which its extent says before the region's header does.
    for (int looks = 0; looks < 100 && !right; ++looks) {
        if (looks != 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        report.clear();
        right = libcache::region_check(libcache::region_of(handle), &report);
    }
    if (!right)
        fprintf(stderr, "check_region: cache %u of session %u:\n%s\n", name.cache_id, name.session_id, report.c_str());
    cache_close(handle);
    return right;
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: check_region DIR PORT\n"), 2;
    setenv("LIBCACHE_DIR", argv[1], 1);
    cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
    options.port = static_cast<uint32_t>(atoi(argv[2]));
    cache_client *client = nullptr;
    std::vector<Name> names;
    if (cache_connect(&options, &client) != 0 || cache_list(client, note, &names) < 0)
        return fprintf(stderr, "check_region: %s\n", cache_last_error()), 1;
    bool right = true;
    for (Name name : names)
        right = check(client, name) && right;
    cache_disconnect(client);
    return right ? 0 : 1;
}
