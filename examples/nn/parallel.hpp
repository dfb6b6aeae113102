#pragma once

#include "nn/matrix.hpp"

#include <algorithm>
#include <atomic>
#include <latch>

namespace nn {

/// Calls f(block) for blocks 0 ... blocks-1, each once, on the caller and on the device's threads. What a block is
/// never depends on the number of threads, so neither do results, as long as no two blocks write the same number. Not
/// to be called from inside a block: the pool could be full of callers who wait.
template <class Device, class F>
void for_each_block(const Device& device, Index blocks, const F& f) {
  std::atomic<Index> next{0};
  const auto work = [&] {
    for (Index block = next.fetch_add(1); block < blocks; block = next.fetch_add(1)) f(block);
  };
  if constexpr (ek::PoolDevice<Device>) {
    const Index others = std::min<Index>(device.numThreads(), blocks) - 1;
    if (others > 0) {
      std::latch done(others);
      for (Index i = 0; i < others; ++i) {
        device.getPool()->Schedule([&] {
          work();
          done.count_down();
        });
      }
      work();
      done.wait();
      return;
    }
  }
  work();
}

/// Calls f(begin, count) for consecutive ranges of `count` indices, the last one perhaps shorter.
template <class Device, class F>
void for_each_range(const Device& device, Index size, Index count, const F& f) {
  for_each_block(device, (size + count - 1) / count, [&](Index block) {
    const Index begin = block * count;
    f(begin, std::min(count, size - begin));
  });
}

/// Tokens per task: Eigen packs the weights anew for each product, which 128 rows pay for (97% of the speed of all rows
/// at once at width 128), and a batch of 2048 tokens still feeds 16 threads.
inline constexpr Index token_block = 128;

template <class Device, class F>
void for_each_token_block(const Device& device, Index tokens, const F& f) {
  for_each_range(device, tokens, token_block, f);
}

}  // namespace nn
