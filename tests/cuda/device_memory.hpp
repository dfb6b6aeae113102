#pragma once

// Arrays in a CUDA device's memory, of exactly the size that was asked for, so that AddressSanitizer sees accesses past
// them.

#include "evenkeel/cuda.hpp"

#include <cstddef>
#include <vector>

namespace cuda_test {

template <class T>
class DeviceMemory {
 public:
  // NaN everywhere. `before` elements ahead of it make it misaligned.
  explicit DeviceMemory(std::size_t size, std::size_t before = 0) : size_(size), before_(before) {
    evenkeel::detail::check_cuda(cudaMalloc(reinterpret_cast<void**>(&memory_), (before + size) * sizeof(T)),
                                 "DeviceMemory", "cudaMalloc");
    evenkeel::detail::check_cuda(cudaMemsetAsync(memory_, 0xff, (before + size) * sizeof(T), nullptr), "DeviceMemory",
                                 "cudaMemsetAsync");
  }
  explicit DeviceMemory(const std::vector<double>& values, std::size_t before = 0)
      : DeviceMemory(values.size(), before) {
    std::vector<T> converted;
    for (const double value : values) converted.push_back(static_cast<T>(value));
    evenkeel::detail::check_cuda(
        cudaMemcpyAsync(data(), converted.data(), size_ * sizeof(T), cudaMemcpyHostToDevice, nullptr), "DeviceMemory",
        "cudaMemcpyAsync");
    evenkeel::detail::check_cuda(cudaStreamSynchronize(nullptr), "DeviceMemory", "cudaStreamSynchronize");
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { cudaFree(memory_); }

  T* data() { return memory_ + before_; }
  std::size_t size() const { return size_; }
  std::vector<double> values() const { return read(memory_ + before_, size_); }

  static std::vector<double> read(const T* from, std::size_t size) {
    std::vector<T> host(size);
    evenkeel::detail::check_cuda(cudaMemcpyAsync(host.data(), from, size * sizeof(T), cudaMemcpyDeviceToHost, nullptr),
                                 "DeviceMemory", "cudaMemcpyAsync");
    evenkeel::detail::check_cuda(cudaStreamSynchronize(nullptr), "DeviceMemory", "cudaStreamSynchronize");
    std::vector<double> values;
    for (const T& value : host) values.push_back(static_cast<double>(value));
    return values;
  }

 private:
  T* memory_ = nullptr;
  std::size_t size_, before_;
};

}  // namespace cuda_test
