// SPDX-License-Identifier: Apache-2.0
// A cache opened and attached by hand: for tests of what a client says about its slot.
#pragma once

#include "core/shm/layout.h"
#include "tests/support/fake_server.h"

#include <sys/mman.h>

// Cache `cache_id` on this connection, with its header and slots mapped for writing.
class RawRegion {
  public:
    RawRegion(int fd, uint64_t generation, uint32_t session_id, uint32_t cache_id = 1) {
        const auto open = message(wire::Type::Open, 1000);
        open->u.open.session_id = session_id;
        open->u.open.cache_id = cache_id;
        const uint64_t region_id = ask(fd, generation, *open).message.u.opened.region_id;
        const auto attach = message(wire::Type::Attach, 1001);
        attach->u.region = {region_id, session_id, cache_id};
        const Packet answer = ask(fd, generation, *attach);
        attached = answer.message.u.attached;
        cr_assert(!answer.fds.empty(), "no descriptor for writing");
        at_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, answer.fds[0], 0);
        cr_assert_neq(at_, MAP_FAILED);
    }
    RawRegion(const RawClient &client, uint32_t session_id, uint32_t cache_id = 1)
        : RawRegion(client.fd(), client.generation(), session_id, cache_id) {}
    RawRegion(const RawRegion &) = delete;
    RawRegion &operator=(const RawRegion &) = delete;
    ~RawRegion() { munmap(at_, kBytes); }

    wire::Attached attached{};
    libcache::RegionHeader &header() const { return *static_cast<libcache::RegionHeader *>(at_); }
    libcache::Slot &slot() const {
        return reinterpret_cast<libcache::Slot *>(static_cast<char *>(at_) + header().slots_offset)[attached.slot];
    }
    wire::Want want(libcache::Want want, int64_t row_id = 1) const {
        return {attached.region_id, attached.epoch, want.pack(), row_id, attached.slot, 0};
    }

  private:
    static constexpr size_t kBytes = libcache::kHeaderBytes + libcache::kMaxSlots * sizeof(libcache::Slot);
    void *at_;

    static Packet ask(int fd, uint64_t generation, wire::Message &request) {
        request.header.generation = generation;
        cr_assert(send_all(fd, &request, sizeof request));
        Packet answer;
        cr_assert(answer.receive(fd), "request %u is not answered", request.header.type);
        cr_assert_eq(answer.message.header.status, 0, "%s", answer.message.text);
        return answer;
    }
};
