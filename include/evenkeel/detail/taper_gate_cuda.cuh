/// Gradients of parameters on a CUDA device where the gate lies in its memory, and those with respect to the gate.
#pragma once

#include "evenkeel/cuda_stream.cuh"
#include "evenkeel/detail/row_kernels.cuh"
#include "evenkeel/detail/row_math.hpp"
#include "evenkeel/detail/row_means_cuda.cuh"
#include "evenkeel/detail/row_pass_cuda.cuh"
#include "evenkeel/detail/taper_gate_math.hpp"
#include "evenkeel/detail/taper_pass.hpp"

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace evenkeel::detail {

/// gradient_kernel where the gate is in that range, and zeros to overwrite what the range leaves nothing of.
template <class A, class Gradients, class Zeros>
__global__ void __launch_bounds__(256)
    range_gradient_kernel(const GateNumbers<A>* gate, GateRange range, const A* sums, std::int64_t parts, int count,
                          std::int64_t pitch, std::int64_t length, Gradients gradients, Zeros zeros, bool accumulates) {
  if (gate != nullptr && gate->range != range) return;
  EVENKEEL_SHARED(A, shared, 256);
  gradient_step(sums, parts, count, pitch, length, gradients, accumulates, shared);
  if (!accumulates) gradient_step(sums, 0, 1, pitch, length, zeros, false, shared);
}

/// What a row adds to the gradients with respect to the gate and the factor, to sums (of_norm | of_scale, rows): a block
/// for each row, in double, which reads it twice where it centres.
template <bool Centres, class Dy, class X, class W, class C>
__global__ void __launch_bounds__(256) gate_sums_kernel(DeviceRows<Dy> dy, DeviceRows<X> x, DeviceGrid grid, W weight,
                                                        C scale_weight, double eps, double* sums) {
  using Reduction = RowReduction<double, 3, RowScope::block, 256>;
  EVENKEEL_SHARED(double, partial, Reduction::scratch);
  Reduction reduction(256, 256, partial, partial, 1);
  const std::int64_t r = blockIdx.x;
  const RowPlace place = grid.place(r);
  const auto* const of_x = row_at(x, place);
  const auto* const of_dy = row_at(dy, place);
  const auto value = [&](std::int64_t i) { return to<double>(of_x[i * x.length_stride]); };
  const auto at = [](const auto& p, std::int64_t i) {
    if constexpr (is_none_v<std::remove_cvref_t<decltype(p)>>)
      return 1.0;
    else
      return to<double>(p[i]);
  };
  Values<double, 3> all;  // square, normed, scaled
  double mean = 0;
  if constexpr (Centres) {
    all[0] = all[1] = all[2] = 0;
    for (std::int64_t i = threadIdx.x; i < grid.length; i += 256) all[0] += value(i);
    reduction.sum(all);
    mean = all[0] / static_cast<double>(grid.length);
  }
  all[0] = all[1] = all[2] = 0;
  for (std::int64_t i = threadIdx.x; i < grid.length; i += 256) {
    const double h = value(i) - mean, flow = to<double>(of_dy[i * dy.length_stride]) * h;
    all[0] += h * h;
    all[1] += flow * at(weight, i);
    all[2] += flow * at(scale_weight, i);
  }
  reduction.sum(all);
  if (threadIdx.x != 0) return;
  const double root = std::sqrt(all[0] / static_cast<double>(grid.length) + eps);
  sums[r] = root > 0 ? all[1] / root : 0;
  sums[grid.rows + r] = all[2];
}

inline namespace EVENKEEL_ISA {

/// The gradients with respect to the gate and the factor to `values`, (gate | factor), and scratch behind them.
template <bool Centres, StreamDevice Device, class Dy, class X, class W, class C>
void put_gate_sums(const Device& device, const GateArguments<Dy, X, W, C>& of, const TaperCall& taper, double* values) {
  const Index rows = of.grid.rows();
  double* const sums = values + 2;
  const auto dy = device_rows(of.dy);
  const auto x = device_rows(of.x);
  const auto weight = device_pointer(of.weight);
  const auto scale_weight = device_pointer(of.scale_weight);
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(rows);
  shape.block = 256;
  if (rows > 0)
    launch(&gate_sums_kernel<Centres, std::remove_pointer_t<decltype(dy.data)>, std::remove_pointer_t<decltype(x.data)>,
                             std::remove_const_t<decltype(weight)>, std::remove_const_t<decltype(scale_weight)>>,
           shape, device.stream(), dy, x, device_grid(of.grid), weight, scale_weight, taper.eps, sums);
  put_means(device, GateTerms{sums, rows}, rows,
            GateGradientsTo{static_cast<double>(rows), taper.gate, taper.factor, values});
}

/// put_gradients and put_zeros of a pass that ran in that range of the gate.
template <GateRange Range, StreamDevice Device, class Gate, class A, class Zero, class... G>
  requires(Gate::in_memory)
void put_range_gradients(const Device& device, const Gate& gate, const A* scratch, const FeatureParts& parts,
                         Index length, GradientMode mode, Zero zero, G... gradients) {
  if constexpr ((is_none_v<Zero> && ... && is_none_v<G>)) return;
  const auto list = make_list(device_pointer(gradients)...);
  const auto zeros = make_list(device_pointer(zero));
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(quotient_up(length, 32));
  shape.block = 256;
  launch(&range_gradient_kernel<A, std::remove_const_t<decltype(list)>, std::remove_const_t<decltype(zeros)>>, shape,
         device.stream(), gate.memory, Range, scratch, static_cast<std::int64_t>(parts.count), parts.terms,
         static_cast<std::int64_t>(parts.pitch), static_cast<std::int64_t>(length), list, zeros,
         mode == GradientMode::accumulate);
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel::detail
