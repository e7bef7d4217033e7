// SPDX-License-Identifier: Apache-2.0
// libcache.h for C++: handles that close themselves, and result codes as exceptions that carry the library's sentence.
#pragma once

#include "capi/libcache.h"

#include <memory>
#include <stdexcept>
#include <string>

namespace demo {

// Passes a result of 0 or more on; throws for a CACHE_E* code.
template <typename Result> Result check(Result result) {
    if (result < 0) throw std::runtime_error(cache_last_error());
    return result;
}

struct Close {
    void operator()(cache_client *client) const { cache_disconnect(client); }
    void operator()(cache *handle) const { cache_close(handle); }
};
using Client = std::unique_ptr<cache_client, Close>;
using Cache = std::unique_ptr<cache, Close>;

inline Client connect(unsigned port) {
    cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
    options.port = port;
    options.timeout_ms = 20'000; // of a server of our own, on this machine: longer than this it hangs
    cache_client *client = nullptr;
    check(cache_connect(&options, &client));
    return Client(client);
}

inline Cache open_cache(const Client &client, uint32_t session, uint32_t cache_id, const cache_options &options) {
    cache *handle = nullptr;
    check(cache_open(client.get(), session, cache_id, &options, &handle));
    return Cache(handle);
}

} // namespace demo
