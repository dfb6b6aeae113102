/// One loop over fixed blocks, on the calling thread or over a pool.
#pragma once

#include "evenkeel/config.hpp"
#include "evenkeel/device.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <type_traits>

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// A loop that several threads take blocks from. Jobs live in static slots, not on the caller's stack: a pool task that
/// starts late, after its job is done, still finds it and leaves. So the caller waits for blocks, never for tasks to
/// start, and a call from inside a pool task whose pool is busy cannot deadlock.
struct BlockJob {
  std::atomic<int> users{0};  // 0: the slot is free
  std::atomic<Index> next{0};
  std::atomic<Index> finished{0};
  Index count = 0;
  void (*run)(const void* body, Index block) = nullptr;
  const void* body = nullptr;

  void work() {
    for (Index block; (block = next.fetch_add(1)) < count;) {
      run(body, block);
      if (finished.fetch_add(1) + 1 == count) finished.notify_all();
    }
  }
  void wait() const {
    for (int spin = 0; spin < 4096; ++spin)
      if (finished.load() == count) return;
    for (Index seen; (seen = finished.load()) != count;) finished.wait(seen);
  }
};

/// A free slot with `users` users, or null when all are taken.
inline BlockJob* claim_job(int users) {
  constexpr int slots = 64;
  static BlockJob jobs[slots];
  for (BlockJob& job : jobs) {
    int free = 0;
    if (job.users.compare_exchange_strong(free, users)) return &job;
  }
  return nullptr;
}

/// Parts of a loop that the device's threads need to be busy, where `others` parts are there anyhow.
template <class Device>
Index parts_for(const Device& device, Index others) {
  if constexpr (PoolDevice<Device>)
    return std::max<Index>(1, static_cast<Index>(device.numThreads()) / std::max<Index>(others, 1));
  return 1;
}

/// Calls body(block) for block = 0 .. blocks-1, each once, in no particular order. `bytes` is the traffic of the whole
/// loop: below EVENKEEL_PARALLEL_BYTES it stays on the calling thread. Allocates nothing: a task captures one pointer,
/// which std::function keeps in itself. after() is called on the same thread behind each block, or behind several.
template <class Device, class Body, class After = void (*)()>
void for_each_block(
    const Device& device, Index blocks, double bytes, const Body& body, const After& after = [] {}) {
  static_assert(CpuDevice<Device>);
  if constexpr (PoolDevice<Device>) {
    const Index threads = static_cast<Index>(device.numThreads());
    const int helpers = static_cast<int>(std::min(threads, blocks) - 1);
    BlockJob* const job = helpers > 0 && bytes >= EVENKEEL_PARALLEL_BYTES ? claim_job(helpers + 1) : nullptr;
    if (job) {
      job->count = blocks;
      const auto whole = [&](Index block) { body(block), after(); };
      job->run = [](const void* b, Index block) { (*static_cast<decltype(&whole)>(b))(block); };
      job->body = std::addressof(whole);
      job->finished.store(0);
      job->next.store(0);
      for (int i = 0; i < helpers; ++i)
        device.getPool()->Schedule([job] {
          job->work();
          job->users.fetch_sub(1);
        });
      job->work();
      job->wait();
      job->users.fetch_sub(1);
      return;
    }
  }
  for (Index block = 0; block < blocks; ++block) body(block);
  after();
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
