// SPDX-License-Identifier: Apache-2.0
// The broker process: sessions, budgets and extents, served from one epoll loop by one thread, which alone changes
// words in regions; a second thread makes pages. It may die at any instruction: the keeper starts another, which takes
// over what the keeper holds (PROTOCOL section 3).
//
// Parts: broker.cc start, loop and end. connections.cc accepting, handshake, hang-ups and deaths. witness.cc deaths
// where there is no pidfd. group.cc other users. holders.cc who has what open. requests.cc the rest.
#pragma once

#include "core/control/wire.h"
#include "core/server/caches.h"
#include "core/server/folder.h"

#include <memory>
#include <optional>
#include <sys/socket.h>
#include <vector>

namespace libcache {

class Broker {
  public:
    explicit Broker(Fd link) : keeper_(std::move(link)) {}

    // Serves until the server ends; the exit status of the process.
    int run();

  private:
    enum class Stage { Hello, Prove, Up, HungUp };
    struct Connection {
        uint64_t id = 0;
        Fd socket, pidfd;
        Fd witness; // where no pidfd is to be had: witness.cc
        int32_t pid = 0;
        uint64_t start_time = 0;
        Stage stage = Stage::Hello;
        int64_t since_ns = 0;
        uint64_t hello_number = 0;
        bool resume_owed = false; // it has not read what former brokers sent: told when it speaks
    };
    struct Waiting { // for a cache that is being made, or for file space: one for each connection
        uint64_t conn_id, region_id;
        wire::Message request;
    };

    KeeperLink keeper_;
    ServerRegion server_;
    Backing backing_;
    std::unique_ptr<Ledger> ledger_;
    SpillLedger spill_;
    std::unique_ptr<Populator> populator_, disk_;
    std::optional<Shop> shop_;
    std::unique_ptr<Caches> caches_;
    ServerSocket socket_;
    uint64_t listener_id_ = 0;
    Fd tcp_, epoll_, signals_;
    std::map<uint64_t, Connection> connections_;
    std::vector<Waiting> waiting_opens_, waiting_spills_;
    std::vector<uint64_t> deaf_;                 // connections to hang up on once what is being done is done
    std::vector<wire::Entry> destroyed_;         // of the listing under way
    std::vector<uint64_t> keeper_old_listeners_; // that the keeper still holds
    std::optional<std::pair<uint64_t, wire::Message>> stop_request_; // connection, what it asked
    uint64_t generation_ = 0, max_fds_ = 0;
    int64_t messages_ = 0;
    int64_t next_check_ns_ = 0;
    bool ending_ = false;
    bool short_of_memory_ = false; // and the log says so
    bool crowd_told_ = false;      // the same of descriptors
    bool listening_ = false;       // the loop hears of new connections

    // broker.cc
    [[nodiscard]] int take_over();
    [[nodiscard]] int start_services();
    void watch(int fd, uint64_t what, uint64_t id);
    void unwatch(int fd);
    void start_listening();
    void stop_listening();
    void watch_socket(const Connection &connection);
    void watch_process(const Connection &connection);
    void loop();
    bool abandoned() const; // its keeper has gone, and it is not to go on without one
    void handle_event(uint64_t tag);
    void read_signals();
    void collect_jobs(Populator &populator);
    void housekeeping();
    void check_socket();
    bool reclaim(uint64_t bytes, uint64_t except_region);
    void mind_headroom();
    void end();

    // connections.cc
    void accept_all();
    void accept_one(Fd socket);
    [[nodiscard]] bool crowded(size_t connections) const;
    void drop_oldest_silent();
    void read_connection(uint64_t conn_id);
    bool handle_packet(Connection &connection, const wire::Message &message, int peer_pid);
    bool hello(Connection &connection, const wire::Message &message);
    bool check_hello(Connection &connection, const wire::Message &message);
    bool find_process(Connection &connection);
    bool prove(Connection &connection, const wire::Message &message, int peer_pid);
    bool welcome(Connection &connection);
    void fill_welcome(const Connection &connection, wire::Message *message) const;
    void close_socket(Connection &connection);
    void hang_up(uint64_t conn_id);
    void hang_up_on_the_deaf();
    void process_died(uint64_t conn_id);
    void drop(uint64_t conn_id);
    bool has_slots(uint64_t conn_id) const;
    void drop_idle();
    void find_lost_writers();
    void resume_all();
    bool resume(Connection &connection);
    Io transmit(const Connection &connection, wire::Message *message, int fd = -1, int second_fd = -1);
    // False: the connection cannot take it; the caller hangs up.
    bool send(Connection &connection, wire::Message *message, int fd = -1, int second_fd = -1);
    bool reply(Connection &connection, const wire::Message &request, wire::Message *answer, int status, int fd = -1,
               int second_fd = -1);

    // requests.cc
    bool handle_request(Connection &connection, const wire::Message &request);
    int session_request(const Connection &connection, const wire::Message &request, wire::Message *answer);
    bool open(Connection &connection, const wire::Message &request);
    int open_new(Connection &connection, const wire::Message &request, CacheRegion **region);
    int check_open(const wire::Message &request) const;
    int join(const wire::Message &request, const CacheRegion &region) const;
    bool lend_spill(Connection &connection, const wire::Message &request);
    void lend_spill_again(uint64_t region_id);
    static void wait(std::vector<Waiting> &queue, const Waiting &fresh);
    bool reply_opened(Connection &connection, const wire::Message &request, CacheRegion &region);
    void cache_made(CacheRegion &region, int result);
    bool attach(Connection &connection, const wire::Message &request);
    void stock(Connection &connection, const wire::Message &request);
    int close(Connection &connection, const wire::Message &request);
    int build(const Connection &connection, const wire::Message &request, wire::Message *answer);
    int destroy(const Connection &connection, const wire::Message &request);
    int list(const wire::Message &request, wire::Message *answer);
    void fill_entry(const Caches::Listed &listed, wire::Entry *entry) const;

    // witness.cc
    bool send_witness(Connection &connection, wire::Message *answer);
    static bool is_witness(const Fd &file);
    void look_at_witnesses();

    // group.cc
    bool admits(const Connection &connection, const ucred &peer) const;
    int check_member(const Connection &connection, wire::Message *request) const;

    // holders.cc
    void fill_openers(const CacheRegion &region, wire::Entry *entry) const;
    void note_destroyed();
    bool fill_destroyed(uint32_t told, wire::Entry *entry);
    static void fill_pids(const std::vector<int32_t> &pids, wire::Entry *entry);

    // requests.cc
    void server_info(wire::Info *info) const;
    int64_t clients() const;
};

} // namespace libcache
