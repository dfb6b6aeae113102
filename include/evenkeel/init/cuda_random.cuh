/// Random streams that fill device memory: the source to give to any initializer whose weights live on a CUDA device.
///
///     const ek::CudaRandom random(device, ek::RandomStream(42, "layer.0.weight"));
///     ek::kaiming_normal(weight, ek::fans_of_linear(256, 1024), random);      // weight: an Eigen::Map of device memory
///
/// Uniforms are the bits that the host draws. Normals are formed in double and rounded once, as on the host, and differ
/// from the host's by one unit in the last place at most where the two libraries' logarithms and cosines differ. So are
/// truncated normals; of doubles the last bits differ.
#pragma once

#include "evenkeel/cuda_stream.cuh"
#include "evenkeel/detail/weight_math.hpp"
#include "evenkeel/init/random.hpp"

#include <cstddef>
#include <cstdint>

namespace evenkeel {
namespace detail {

enum class Drawn { uniform, normal };

/// A thread writes the values of one Philox block: four floats or two doubles. `a` and `b` are lo and hi, or mean and
/// standard deviation.
template <Drawn Distribution, class T>
__global__ void __launch_bounds__(256)
    random_kernel(T* data, std::int64_t count, RandomStream stream, int lead, double a, double b) {
  constexpr int width = sizeof(T) == 8 ? 2 : 4;
  const std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x) * width - lead;
  for (std::int64_t i = begin < 0 ? 0 : begin; i < begin + width && i < count; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    if constexpr (Distribution == Drawn::uniform)
      data[i] = stream.uniform<T>(index, a, b);
    else
      data[i] = stream.normal<T>(index, a, b);
  }
}

/// A thread writes the values of one Philox block: quantile(u), u in (0, 1).
template <class T, class Quantile>
__global__ void __launch_bounds__(256)
    quantile_kernel(T* data, std::int64_t count, RandomStream stream, int lead, Quantile quantile) {
  constexpr int width = sizeof(T) == 8 ? 2 : 4;
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x, begin = block * width - lead;
  if (begin >= count) return;
  double uniforms[width];
  stream.open_uniforms<T>(static_cast<std::uint64_t>(block), uniforms);
#pragma unroll
  for (int i = 0; i < width; ++i)
    if (begin + i >= 0 && begin + i < count) data[begin + i] = narrowed<T>(quantile(uniforms[i]));
}

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// A RandomStream that fills memory of the device, in the device's stream.
class CudaRandom {
 public:
  CudaRandom(const CudaStream& device, const RandomStream& stream) : device_(device), stream_(stream) {}

  /// Writes data[i] = uniform(i, lo, hi) for i in [0, count).
  template <class T>
  void fill_uniform(T* data, std::ptrdiff_t count, double lo = 0, double hi = 1) const {
    fill<detail::Drawn::uniform>(data, count, lo, hi);
  }
  /// Writes data[i] = normal(i, mean, std) for i in [0, count).
  template <class T>
  void fill_normal(T* data, std::ptrdiff_t count, double mean = 0, double std = 1) const {
    fill<detail::Drawn::normal>(data, count, mean, std);
  }
  /// Writes data[i] = quantile(u), u in (0, 1) being a double that is never 0 or 1. The quantile is a struct that kernels
  /// can call.
  template <class T, class Quantile>
  void fill_by_quantile(T* data, std::ptrdiff_t count, const Quantile& quantile) const {
    put(&detail::quantile_kernel<detail::device_scalar_t<T>, Quantile>, data, count, quantile);
  }

 private:
  template <detail::Drawn Distribution, class T>
  void fill(T* data, std::ptrdiff_t count, double a, double b) const {
    put(&detail::random_kernel<Distribution, detail::device_scalar_t<T>>, data, count, a, b);
  }
  template <class Kernel, class T, class... Distribution>
  void put(Kernel kernel, T* data, std::ptrdiff_t count, const Distribution&... distribution) const {
    if (count <= 0) return;
    constexpr int width = sizeof(T) == 8 ? 2 : 4;
    detail::LaunchShape shape;
    shape.block = 256;
    shape.grid = static_cast<unsigned>(detail::quotient_up(detail::quotient_up(count, width) + 1, 256));
    detail::launch(kernel, shape, device_.stream(), detail::device_pointer(data), static_cast<std::int64_t>(count),
                   stream_, stream_.lead(width), distribution...);
  }

  CudaStream device_;
  RandomStream stream_;
};

}  // namespace EVENKEEL_ISA

namespace detail::inline EVENKEEL_ISA {

template <StreamDevice Device>
void draw_uniforms(const Device& device, const Uniforms& draws) {
  CudaRandom(CudaStream(device.stream(), cuda_facts(device)), draws.stream).fill_uniform(draws.data, draws.count);
}

}  // namespace detail::inline EVENKEEL_ISA
}  // namespace evenkeel
