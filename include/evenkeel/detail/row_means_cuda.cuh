/// Means over rows on a CUDA device, from and to its memory.
#pragma once

#include "evenkeel/cuda_stream.cuh"
#include "evenkeel/detail/row_kernels.cuh"
#include "evenkeel/detail/row_means_math.hpp"

#include <cstdint>

namespace evenkeel::detail {

/// The means of all terms, in one block and always in the same order, to where `to` puts them; 0 without rows.
template <class Terms, class To>
__global__ void __launch_bounds__(256) row_means_kernel(Terms terms, std::int64_t rows, To to) {
  using Reduction = RowReduction<double, Terms::count, RowScope::block, 256>;
  EVENKEEL_SHARED(double, partial, Reduction::scratch);
  Reduction reduction(256, 256, partial, partial, 1);
  Values<double, Terms::count> means;
  each<Terms::count>([&](auto k) { means[k] = 0; });
  for (std::int64_t r = threadIdx.x; r < rows; r += 256) {
    const Values<double, Terms::count> of_row = terms.of(r);
    each<Terms::count>([&](auto k) { means[k] += of_row[k]; });
  }
  reduction.sum(means);
  if (threadIdx.x != 0) return;
  each<Terms::count>([&](auto k) { means[k] = rows > 0 ? means[k] / static_cast<double>(rows) : 0; });
  to.put(means);
}

inline namespace EVENKEEL_ISA {

/// Puts it into the stream.
template <StreamDevice Device, class Terms, class To>
void put_means(const Device& device, const Terms& terms, Index rows, const To& to) {
  LaunchShape shape;
  shape.block = 256;
  launch(&row_means_kernel<Terms, To>, shape, device.stream(), terms, static_cast<std::int64_t>(rows), to);
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel::detail
