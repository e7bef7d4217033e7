// SPDX-License-Identifier: Apache-2.0
#include "perf/peers/peer_server.h"
#include "perf/peers/store.h"

#include <hiredis/hiredis.h>

namespace peers {
namespace {

struct Free {
    void operator()(redisContext *context) const { redisFree(context); }
    void operator()(redisReply *reply) const { freeReplyObject(reply); }
};
using Context = std::unique_ptr<redisContext, Free>;
using Reply = std::unique_ptr<redisReply, Free>;

Context connect(const std::string &socket) {
    Context context(redisConnectUnix(socket.c_str()));
    return context && context->err == 0 ? std::move(context) : nullptr;
}

class Redis : public Store {
  public:
    explicit Redis(const Workload &w) : Store(w) { attach({0, 1}); }

    void attach(Place) override {
        (void)context_.release(); // its descriptor is the parent's, too: closing this copy says nothing to the server
        context_ = connect(server_.socket());
        if (!context_) throw std::runtime_error("cannot connect to Redis on " + server_.socket());
    }

    void put(Ids ids, Source &source) override {
        in_batches(ids, [&](Ids batch) {
            for (const int64_t &id : batch)
                send({{"SET", 3}, key(id), {source.row(id), workload.row_bytes}});
            for (size_t i = 0; i < batch.size(); ++i)
                receive(REDIS_REPLY_STATUS, batch[i]);
        });
    }

    unsigned look_up(Ids ids) override {
        unsigned sum = 0;
        in_batches(ids, [&](Ids batch) {
            for (const int64_t &id : batch)
                send({{"GETRANGE", 8}, key(id), {"0", 1}, {"0", 1}});
            for (const int64_t id : batch) {
                const Reply reply = receive(REDIS_REPLY_STRING, id);
                if (reply->len != 1) missing("Redis", id);
                sum += static_cast<unsigned char>(reply->str[0]);
            }
        });
        return sum;
    }

    void copy(Ids ids, char *to) override {
        in_batches(ids, [&](Ids batch) {
            for (const int64_t &id : batch)
                send({{"GET", 3}, key(id)});
            for (size_t i = 0; i < batch.size(); ++i) {
                const Reply reply = receive(REDIS_REPLY_STRING, batch[i]);
                if (reply->len != workload.row_bytes) missing("Redis", batch[i]);
                memcpy(to + i * workload.row_bytes, reply->str, workload.row_bytes);
            }
        });
    }

    uint64_t memory_bytes() override { return server_.resident_bytes(); }

  private:
    struct Word {
        const char *data;
        size_t bytes;
    };
    static Word key(const int64_t &id) { return {reinterpret_cast<const char *>(&id), sizeof id}; }

    void send(std::initializer_list<Word> words) {
        const char *data[4];
        size_t bytes[4], n = 0;
        for (const Word &word : words)
            data[n] = word.data, bytes[n++] = word.bytes;
        if (redisAppendCommandArgv(context_.get(), static_cast<int>(n), data, bytes) != REDIS_OK) fail();
    }
    Reply receive(int type, int64_t id) {
        void *got = nullptr;
        if (redisGetReply(context_.get(), &got) != REDIS_OK) fail();
        Reply reply(static_cast<redisReply *>(got));
        if (reply->type == REDIS_REPLY_ERROR) throw std::runtime_error(std::string("Redis: ") + reply->str);
        if (reply->type != type) missing("Redis", id);
        return reply;
    }
    [[noreturn]] void fail() const { throw std::runtime_error(std::string("Redis: ") + context_->errstr); }

    PeerServer server_{{"redis-server", "--port", "0", "--unixsocket", "SOCKET", "--save", "", "--appendonly", "no",
                        "--dir", "FOLDER"},
                       [](const std::string &socket) { return connect(socket) != nullptr; }};
    Context context_;
};

} // namespace

std::unique_ptr<Store> make_redis(const Workload &w) {
    return std::make_unique<Redis>(w);
}

} // namespace peers
