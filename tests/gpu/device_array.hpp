/// Device memory for the programs that run on a GPU, or in the emulator.
#pragma once

#include "evenkeel/cuda_stream.cuh"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpu {

inline void check(cudaError_t status, const char* call) { evenkeel::detail::check_cuda(status, "gpu", call); }
inline void wait() { check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize"); }

/// `size` values of device memory behind `lead` more, so that data + lead is as misaligned as a test wants it. Every
/// byte is 0xff at first, which is NaN in all types.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::int64_t size, int lead = 0) : size_(size), lead_(lead) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()), "cudaMalloc");
    poison();
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  void poison() {
    check(cudaMemsetAsync(data_, 0xff, bytes(), nullptr), "cudaMemsetAsync");
    wait();
  }
  T* data() const { return data_ + lead_; }
  std::int64_t size() const { return size_; }
  std::vector<T> host() const {
    std::vector<T> values(static_cast<std::size_t>(size_));
    check(cudaMemcpyAsync(values.data(), data(), values.size() * sizeof(T), cudaMemcpyDeviceToHost, nullptr),
          "cudaMemcpyAsync");
    wait();
    return values;
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(size_ + lead_) * sizeof(T); }
  T* data_ = nullptr;
  std::int64_t size_;
  int lead_;
};

/// Runs `count` threads of the kernel, 256 a block.
template <class... P, class... A>
void run(void (*kernel)(P...), std::int64_t count, const A&... arguments) {
  evenkeel::detail::LaunchShape shape;
  shape.block = 256;
  shape.grid = static_cast<unsigned>((count + 255) / 256);
  evenkeel::detail::launch(kernel, shape, nullptr, arguments...);
}

EVENKEEL_DEVICE std::int64_t thread_number() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

}  // namespace gpu
