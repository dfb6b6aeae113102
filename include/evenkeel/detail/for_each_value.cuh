/// A few values, one by one, on a CUDA device.
#pragma once

#include "evenkeel/cuda_stream.cuh"

#include <cstdint>

namespace evenkeel::detail {

template <class F>
__global__ void __launch_bounds__(128) value_kernel(F f, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 128 + threadIdx.x;
  if (i < count) f(i);
}

inline namespace EVENKEEL_ISA {

/// f(i) for 0 <= i < count, each on its own. f is a struct that kernels can call.
template <StreamDevice Device, class F>
void for_each_value(const Device& device, Index count, const F& f) {
  if (count == 0) return;
  LaunchShape shape;
  shape.grid = static_cast<unsigned>((count + 127) / 128);
  shape.block = 128;
  launch(&value_kernel<F>, shape, device.stream(), f, static_cast<std::int64_t>(count));
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel::detail
