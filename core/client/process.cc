// SPDX-License-Identifier: Apache-2.0
#include "core/client/process.h"

#include "core/common/page.h"

#include <atomic>
#include <new>
#include <pthread.h>
#include <sys/mman.h>

namespace libcache {
namespace {

using ProcessWord = std::atomic<Process *>;
ProcessWord *page_word = nullptr;
std::atomic<const Process *> latest{nullptr}; // ours, or before the first call in a child the parent's. Leak checkers
                                              // do not look into the page

struct Kept {
    std::shared_ptr<void> object;
    Kept *next;
};
std::atomic<Kept *> kept{nullptr};

void in_child() {
    // Only where WIPEONFORK is missing (before Linux 4.14) is there anything to wipe.
    if (page_word != nullptr) page_word->store(nullptr, std::memory_order_relaxed);
}

ProcessWord *make_page() {
    void *page = mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::bad_alloc();
    madvise(page, page_bytes(), MADV_WIPEONFORK);
    page_word = new (page) ProcessWord(nullptr);
    pthread_atfork(nullptr, nullptr, in_child);
    return page_word;
}

// When the library is loaded, as a rule before there are threads: a child that another thread forks in the middle of
// this would wait for ever for the thread that does it.
[[maybe_unused]] const Process &made_early = this_process();

} // namespace

Process &this_process() {
    static ProcessWord *const word = make_page();
    // acq pairs with the exchange below: the Process was made before its pointer
    Process *process = word->load(std::memory_order_acquire);
    if (process != nullptr) return *process;
    auto fresh = std::make_unique<Process>();
    fresh->forgotten = latest.load(std::memory_order_relaxed);
    if (word->compare_exchange_strong(process, fresh.get(), std::memory_order_acq_rel, std::memory_order_acquire)) {
        process = fresh.release(); // lives as long as the process
        latest.store(process, std::memory_order_relaxed);
    }
    return *process;
}

void keep_for_ever(std::shared_ptr<void> object) {
    auto *const mine = new Kept{std::move(object), kept.load(std::memory_order_relaxed)};
    while (!kept.compare_exchange_weak(mine->next, mine, std::memory_order_relaxed)) { // nobody follows the links
    }
}

} // namespace libcache
