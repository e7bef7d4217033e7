// SPDX-License-Identifier: Apache-2.0
// The control connection of one process to one server: requests with a deadline, repeated when a new broker resumes.
// Any thread may call; one request is under way at a time. Belongs to the process that made it (see process.h).
#pragma once

#include "core/client/process.h"
#include "core/control/socket.h"
#include "core/control/wire.h"
#include "core/store/writer.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace libcache {

// Where the server is and how long to wait for it: all that is needed to connect again in a forked child.
struct ClientConfig {
    std::string socket_path;
    unsigned port = 0;
    int64_t timeout_ns = 0;
    bool own_folder = true; // the socket lies in a folder that must belong to this user
};

class OpenUse;

class Connection final : public BrokerLink {
  public:
    // The connection of this process to that server, made if there is none. The caller holds this_process().mutex.
    // 0 or CACHE_E*.
    static int to(const ClientConfig &config, std::shared_ptr<Connection> *connection);
    ~Connection() override;

    // Sends `message` (type and body filled in) and waits for its reply, which replaces it. `fds` (two, or null)
    // receive the reply's descriptors, if any. 0, the reply's status with its text as the error, or a transport error.
    int request(wire::Message &message, int64_t timeout_ns, Fd *fds = nullptr);

    bool send_want(uint64_t region_id, uint32_t slot, uint64_t epoch, Want want, int64_t row_id) override;
    bool alive() override;
    unsigned port() const override { return config_.port; }

    // Waits until the server has closed the connection (cache_server_stop). 0 or CACHE_ETIMEOUT.
    int wait_closed(int64_t timeout_ns);

    const ClientConfig &config() const { return config_; }
    bool of_this_process() const { return process_ == &this_process(); }

    // What this process has open, by region id. Guarded by this_process().mutex.
    std::map<uint64_t, std::weak_ptr<OpenUse>> uses;

  private:
    explicit Connection(ClientConfig config) : config_(std::move(config)), process_(&this_process()) {}
    int connect();
    int check_folder() const;
    int check_server() const;
    int greet(int64_t deadline, bool *again);
    bool keep_witness(const Fd &file);
    void forget_witness();
    int receive(wire::Message *reply, Fd *fds, int64_t deadline);
    int await_reply(wire::Message &message, Fd *fds, int64_t deadline);
    int failed(const char *what) const;
    void drain();
    int send(const wire::Message &message, bool credentials = false);
    int gone();
    int no_answer() const;
    int no_server(int error) const;

    const ClientConfig config_;
    const Process *const process_;
    Fd socket_;
    void *witness_ = nullptr; // mapped as long as this process may write: what the server watches without a pidfd
    std::mutex request_mutex_;
    uint64_t next_number_ = 1;
    std::atomic<uint64_t> generation_{
        0}; // of the broker, as last seen; relaxed: an older value only costs a repetition
    std::atomic<bool> gone_{false};
};

} // namespace libcache
