// SPDX-License-Identifier: Apache-2.0
// A crew: worker processes that the parent forks, gives one order at a time, watches, and never leaves behind.
#pragma once

#include "capi/examples/mnist_demo_screen.h"
#include "capi/examples/mnist_demo_signals.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <sys/types.h>
#include <vector>

namespace demo {

struct Order {
    int32_t epoch; // 0: write
    uint64_t seed;
};

// What one worker did in one order.
struct Totals {
    int64_t rows;
    int64_t bytes;
    int64_t nanoseconds; // inside the calls into libcache
};

// Lives in a process of its own. Throws std::runtime_error, which ends the crew with that text.
class Worker {
  public:
    using Progress = std::function<void(const Totals &so_far)>;
    virtual ~Worker() = default;
    virtual Totals run(const Order &order, const Progress &progress) = 0;
};

class Crew {
  public:
    using Make = std::function<std::unique_ptr<Worker>(int rank)>; // called in the new process
    Crew(std::string name, int size, const Make &make, const Signals &signals);
    ~Crew();
    Crew(const Crew &) = delete;
    Crew &operator=(const Crew &) = delete;

    // Gives the order to all, returns when all have done it. Throws std::runtime_error when a worker fails or dies, and
    // Interrupted.
    std::vector<Totals> run(const Order &order, ProgressLine &progress);
    void finish(); // each worker closes what it holds open and ends; throws as run()

  private:
    struct Member {
        pid_t pid;
        int socket;
    };
    void fork_member(int rank, const Make &make);
    std::vector<size_t> wait_for(const std::vector<bool> &done) const; // who has something to say
    void end_all();                                                    // kills and reaps those who are still there
    [[noreturn]] void fail(size_t rank, const std::string &what) const;
    std::string reap(size_t rank); // how the process ended, "" for well

    std::string name_;
    const Signals &signals_;
    std::vector<Member> members_;
};

} // namespace demo
