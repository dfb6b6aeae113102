/// CUDA devices as evenkeel's functions take them, and storage in their memory. Include it through evenkeel/cuda.hpp.
#pragma once

#include "evenkeel/detail/launch.cuh"
#include "evenkeel/detail/launch_plan.hpp"
#include "evenkeel/detail/values.hpp"
#include "evenkeel/device.hpp"
#include "evenkeel/scalar.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace evenkeel {

/// CUDA's own types are scalars too: rounding to them is rounding to Eigen's.
template <>
inline constexpr bool is_half_v<__half> = true;
template <>
inline constexpr bool is_half_v<__nv_bfloat16> = true;

namespace detail {

template <StreamDevice D>
inline constexpr bool has_cuda_driver<D> = true;

/// Eigen's half types are CUDA's on the device: the same bits.
template <class T>
struct DeviceScalar {
  using Type = T;
};
template <>
struct DeviceScalar<Eigen::half> {
  using Type = __half;
};
template <>
struct DeviceScalar<Eigen::bfloat16> {
  using Type = __nv_bfloat16;
};
template <class T>
struct DeviceScalar<const T> {
  using Type = const typename DeviceScalar<T>::Type;
};
template <class T>
using device_scalar_t = typename DeviceScalar<T>::Type;
static_assert(sizeof(Eigen::half) == sizeof(__half) && alignof(Eigen::half) == alignof(__half));
static_assert(sizeof(Eigen::bfloat16) == sizeof(__nv_bfloat16) && alignof(Eigen::bfloat16) == alignof(__nv_bfloat16));

template <StreamDevice D, class T>
struct DriverScalar<D, T> {
  using Type = device_scalar_t<T>;
};

/// Kernels take the offset of a weight as a number: each would exist twice.
template <StreamDevice D>
inline constexpr bool offsets_at_run_time<D> = true;

template <class T>
device_scalar_t<T>* device_pointer(T* pointer) {
  return reinterpret_cast<device_scalar_t<T>*>(pointer);
}
inline None device_pointer(None) { return none; }
template <class T, class A>
OffsetParameter<device_scalar_t<T>, A> device_pointer(const OffsetParameter<T, A>& p) {
  return {device_pointer(p.data), p.offset};
}

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// What the current device can do. Asks the device; a CudaStream does so once. Throws CudaError.
inline CudaFacts current_cuda_facts() {
  int device = 0;
  detail::check_cuda(cudaGetDevice(&device), "current_cuda_facts", "cudaGetDevice");
  const auto attribute = [&](cudaDeviceAttr name) {
    int value = 0;
    detail::check_cuda(cudaDeviceGetAttribute(&value, name, device), "current_cuda_facts", "cudaDeviceGetAttribute");
    return value;
  };
  return {attribute(cudaDevAttrMultiProcessorCount), attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
          10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor)};
}

/// A stream of the current device, which stays the caller's, and the facts of that device. Functions put their work into
/// the stream and return: none of them allocates, waits or asks the device, so all may be captured in a CUDA graph.
///
///     ek::CudaStream device(stream);
///     norm.saved.reserve(device, x);     // x: an Eigen::TensorMap or Map of device memory
///     norm.forward(device, x, y);
class CudaStream {
 public:
  explicit CudaStream(cudaStream_t stream = nullptr) : CudaStream(stream, current_cuda_facts()) {}
  /// With facts from elsewhere: fewer multiprocessors than there are leave room for other streams, and equal facts make
  /// equal bits on unequal devices.
  CudaStream(cudaStream_t stream, const CudaFacts& facts) : stream_(stream), facts_(facts) {}
  cudaStream_t stream() const { return stream_; }
  const CudaFacts& facts() const { return facts_; }

 private:
  cudaStream_t stream_;
  CudaFacts facts_;
};

}  // namespace EVENKEEL_ISA

namespace detail::inline EVENKEEL_ISA {

inline const CudaFacts& cuda_facts(const CudaStream& device) { return device.facts(); }
/// Of a device without facts of its own, such as Eigen::GpuDevice: asked for once for each ordinal.
template <StreamDevice Device>
const CudaFacts& cuda_facts(const Device&) {
  constexpr int most = 64;
  static std::array<CudaFacts, most> facts;
  static std::array<std::once_flag, most> asked;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cuda_facts", "cudaGetDevice");
  const auto i = static_cast<std::size_t>(std::min(device, most - 1));
  std::call_once(asked[i], [&] { facts[i] = current_cuda_facts(); });
  return facts[i];
}

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// Memory of the current device that grows and never shrinks; zero at first.
template <class T>
class CudaBuffer {
 public:
  CudaBuffer() = default;
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer(CudaBuffer&& other) noexcept { swap(other); }
  CudaBuffer& operator=(const CudaBuffer&) = delete;
  CudaBuffer& operator=(CudaBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~CudaBuffer() { cudaFree(data_); }

  /// Makes room for `size` values. Allocates, and waits for the device, only when the buffer was smaller.
  void reserve(Index size) {
    if (size <= size_) return;
    const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(T);
    detail::check_cuda(cudaFree(data_), "CudaBuffer", "cudaFree");
    data_ = nullptr;
    size_ = 0;
    detail::check_cuda(cudaMalloc(reinterpret_cast<void**>(&data_), bytes), "CudaBuffer", "cudaMalloc");
    size_ = size;
    detail::check_cuda(cudaMemsetAsync(data_, 0, bytes, nullptr), "CudaBuffer", "cudaMemsetAsync");
    detail::check_cuda(cudaStreamSynchronize(nullptr), "CudaBuffer", "cudaStreamSynchronize");
  }
  /// Throws CudaError unless there is room: what runs in a stream must not allocate.
  void ensure(Index size) const {
    if (size > size_)
      throw CudaError("saved has room for " + std::to_string(size_) + " values, this call needs " +
                      std::to_string(size) + "; call saved.reserve(device, x) before the forward");
  }
  Index size() const { return size_; }
  T* data() { return data_; }
  const T* data() const { return data_; }

 private:
  void swap(CudaBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  T* data_ = nullptr;
  Index size_ = 0;
};

/// Storage policy of layers and saved statistics in the memory of the device that was current when they were made.
///
///     ek::LayerNorm<float, ek::CudaStorage> norm(width);
struct CudaStorage {
  static constexpr bool on_host = false;
  template <class T>
  using Buffer = CudaBuffer<T>;

  /// Waits for the device.
  template <class T>
  static void fill(T* data, Index size, T value) {
    const std::vector<T> values(static_cast<std::size_t>(size), value);
    upload(values.data(), data, size);
  }
  /// From the host's memory. Waits for the device.
  template <class T>
  static void upload(const T* from, T* to, Index size) {
    detail::check_cuda(
        cudaMemcpyAsync(to, from, static_cast<std::size_t>(size) * sizeof(T), cudaMemcpyHostToDevice, nullptr),
        "CudaStorage", "cudaMemcpyAsync");
    detail::check_cuda(cudaStreamSynchronize(nullptr), "CudaStorage", "cudaStreamSynchronize");
  }

  /// From buffer to buffer: after all that any stream of the device was given before, and done on return. Throws
  /// CudaError while a stream is captured.
  template <class T>
  static void copy(const T* from, T* to, Index size) {
    transfer(from, to, size, cudaMemcpyDeviceToDevice);
  }
  /// The same from a buffer to host memory.
  template <class T>
  static void read(const T* from, T* host, Index size) {
    transfer(from, host, size, cudaMemcpyDeviceToHost);
  }
  /// The same from host memory to a buffer.
  template <class T>
  static void write(const T* host, T* to, Index size) {
    transfer(host, to, size, cudaMemcpyHostToDevice);
  }

 private:
  template <class T>
  static void transfer(const T* from, T* to, Index size, cudaMemcpyKind kind) {
    detail::check_cuda(cudaDeviceSynchronize(), "CudaStorage", "cudaDeviceSynchronize");
    detail::check_cuda(cudaMemcpyAsync(to, from, static_cast<std::size_t>(size) * sizeof(T), kind, nullptr),
                       "CudaStorage", "cudaMemcpyAsync");
    detail::check_cuda(cudaStreamSynchronize(nullptr), "CudaStorage", "cudaStreamSynchronize");
  }
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
