// SPDX-License-Identifier: Apache-2.0
// Old caches make room: those that no process has open are dropped, least recently used first, when memory is short,
// or when they have been idle for too long. Never those of sessions that are kept.
#include "capi/libcache.h"
#include "core/common/log.h"
#include "core/server/caches.h"

#include <algorithm>
#include <unordered_set>

namespace libcache {
namespace {

constexpr int64_t kSoonGone =
    1'000'000'000; // ns: a destroyed cache that a process still maps after this is not waited for

} // namespace

int64_t Caches::attached(const CacheRegion &region) const {
    return std::max(readers(region.names().region_id), region.writers());
}

int64_t Caches::idle_ns(const CacheRegion &region) const {
    const auto at = caches_.find(region.names().region_id);
    if (at == caches_.end() || !at->second.entry || attached(region) != 0) return 0;
    const auto since = static_cast<int64_t>(at->second.entry->idle_since_ns);
    return since == 0 ? 0 : now_ns() - since;
}

// Who has left since the last look.
void Caches::note_idle() {
    std::unordered_set<uint64_t> open; // one pass over all who have something open, however many caches there are
    for (size_t i = 0; i <= open_top_; ++i)
        if (server_->open[i].conn_id.load(std::memory_order_relaxed) != 0) open.insert(server_->open[i].region_id);
    for (auto &[id, cache] : caches_)
        if (cache.entry && cache.entry->idle_since_ns == 0 && open.count(id) == 0 && cache.region->writers() == 0)
            cache.entry->idle_since_ns = static_cast<uint64_t>(now_ns());
}

bool Caches::droppable(const Cache &cache) const {
    return cache.entry && cache.region->state() == CacheRegion::State::Live && attached(*cache.region) == 0 &&
           (session_flags(cache.region->names().session_id) & CACHE_SESSION_KEEP) == 0;
}

uint64_t Caches::droppable_bytes() const {
    uint64_t sum = 0;
    for (const auto &[id, cache] : caches_)
        if (droppable(cache)) sum += cache.region->charged();
    return sum;
}

void Caches::drop(Cache &cache, const char *why) {
    const CacheNames &names = cache.region->names();
    log_line(LogLevel::Warning, "cache %u of session %u, %llu bytes, idle for %.1f s, is dropped: %s", names.cache_id,
             names.session_id, static_cast<unsigned long long>(cache.region->charged()),
             static_cast<double>(idle_ns(*cache.region)) / 1e9, why);
    destroy(*cache.region);
}

// A destroyed cache's memory is free a moment later, at the next tick: what is on its way is not asked of another one.
bool Caches::drop_idle(uint64_t bytes, const char *why) {
    note_idle();
    uint64_t coming = 0;
    std::vector<Cache *> idle;
    for (auto &[id, cache] : caches_) {
        if (cache.dying_ns != 0 && now_ns() - cache.dying_ns < kSoonGone) coming += cache.region->charged();
        if (droppable(cache)) idle.push_back(&cache);
    }
    std::sort(idle.begin(), idle.end(),
              [](const Cache *a, const Cache *b) { return a->entry->idle_since_ns < b->entry->idle_since_ns; });
    for (Cache *cache : idle) {
        if (coming >= bytes) break;
        coming += cache->region->charged();
        drop(*cache, why);
    }
    return coming != 0;
}

void Caches::drop_expired(int64_t ttl_ns) {
    note_idle();
    std::vector<Cache *> expired;
    for (auto &[id, cache] : caches_)
        if (droppable(cache) && idle_ns(*cache.region) >= ttl_ns) expired.push_back(&cache);
    for (Cache *cache : expired)
        drop(*cache, "nobody has had it open for --idle_ttl");
}

} // namespace libcache
