#pragma once

#include "evenkeel/device.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

namespace support {

// Owns the pool as well: an Eigen::ThreadPoolDevice only points to it.
class ThreadPool {
 public:
  explicit ThreadPool(int threads) : pool_(threads), device_(&pool_, threads) {}
  const Eigen::ThreadPoolDevice& device() const { return device_; }

 private:
  Eigen::ThreadPool pool_;
  Eigen::ThreadPoolDevice device_;
};

inline constexpr int thread_counts[] = {1, 2, 3, 8};

// f(device) on every CPU device and thread count.
template <class F>
void for_each_device(const F& f) {
  f(evenkeel::serial);
  f(Eigen::DefaultDevice{});
  for (int threads : thread_counts) f(ThreadPool(threads).device());
}

}  // namespace support
