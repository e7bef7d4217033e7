// SPDX-License-Identifier: Apache-2.0
// Control replies as the client gets them: damaged, of another length, with descriptors of anything, late, twice, or
// missing. Every call comes back at its deadline at the latest, with a result or a sentence.
#include "capi/libcache.h"
#include "core/control/wire.h"
#include "tests/fuzz/image.h"
#include "tests/fuzz/peer.h"
#include "tests/support/rows.h"
#include "tests/support/server.h"

#include <cstring>
#include <fcntl.h>
#include <memory>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

using namespace libcache;
using fuzz::Image;
using fuzz::Input;

constexpr int64_t kTimeoutMs = 10; // a call that hears nothing takes so long

// Runs on the peer's thread alone.
class Liar {
  public:
    explicit Liar(Input input) : input_(input) {}

    bool operator()(int socket, const wire::Message &, wire::Message &answer, int &fd) {
        if (!input_.more()) return true;
        switch (input_.byte() % 8) {
        case 0: input_.patch(&answer, sizeof answer, 1 + input_.byte() % 8); break;
        case 1: junk(socket); break;
        case 2: return false;
        case 3: answer.header.status = -1000 - input_.byte() % 18; break;
        case 4: other_descriptor(fd); break;
        case 5: resume(socket, answer); break;
        case 6: (void)send_packet(socket, &answer, sizeof answer, &fd, fd < 0 ? 0 : 1); break; // and once more
        default: break;
        }
        return true;
    }

  private:
    Input input_;
    Fd given_;

    void junk(int socket) {
        size_t bytes = 0;
        const uint8_t *const data = input_.bytes(input_.number<uint16_t>() % 3000, &bytes);
        (void)send(socket, data, bytes, MSG_NOSIGNAL);
    }
    void resume(int socket, const wire::Message &answer) {
        wire::Message m = answer;
        m.header.type = static_cast<uint32_t>(wire::Type::Resume);
        m.header.generation = input_.number<uint16_t>();
        (void)send_packet(socket, &m, sizeof m);
    }
    void other_descriptor(int &fd) {
        switch (input_.byte() % 5) {
        case 0: given_ = Fd(open("/dev/null", O_RDWR | O_CLOEXEC)); break;
        case 1: given_ = Fd(memfd_create("short", MFD_CLOEXEC)); break;
        case 2: given_ = Fd(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC)); break;
        case 3: given_ = Image::get().copy(); break; // a region, but not the one that is open
        default: given_.reset(); break;
        }
        fd = given_.get();
    }
};

int stop_at_hundred(const cache_list_entry *entry, void *seen) {
    if (entry->session_name == nullptr || (entry->stats != nullptr && entry->stats->size != sizeof(cache_stats)))
        test_die("an entry of a listing is not as it should be");
    return ++*static_cast<int *>(seen) == 100;
}

void call_all(cache_client *client) {
    uint32_t session = 0;
    int seen = 0;
    int64_t next = 0;
    (void)cache_session_create(client, &session);
    (void)cache_session_open(client, "name", &session);
    cache_server_stats info{};
    info.size = sizeof info;
    (void)cache_server_info(client, &info);
    (void)cache_list(client, stop_at_hundred, &seen);
    cache *handle = nullptr;
    if (cache_open(client, session, 1, nullptr, &handle) >= 0) { // 1: it is not as it was asked for
        (void)rows::check(handle, 1, 300);
        (void)rows::put(handle, 700, 300);
        (void)rows::put(handle, 701, 300);
        (void)rows::check(handle, 700, 300);
        (void)cache_build_begin(handle, &next);
        (void)cache_close(handle);
    }
    (void)cache_destroy(client, session, 1);
    (void)cache_session_destroy(client, session);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const Fd file = Image::get().copy();
    const fuzz::Mapping region(file.get());
    fuzz::Peer peer(file.get(), region);
    auto liar = std::make_shared<Liar>(Input(data, size));
    peer.answer_with([liar](int socket, const wire::Message &request, wire::Message &answer, int &fd) {
        return (*liar)(socket, request, answer, fd);
    });
    cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
    options.socket_path = peer.path().c_str();
    options.timeout_ms = kTimeoutMs;
    cache_client *client = nullptr;
    if (cache_connect(&options, &client) != 0) {
        if (strlen(cache_last_error()) < 10) test_die("cache_connect fails without a sentence");
        return 0;
    }
    call_all(client);
    cache_disconnect(client);
    return 0;
}
