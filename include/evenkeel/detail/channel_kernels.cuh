/// The kernels of a pass over channels: sums, what lies between, and the writing. See channel_plan.hpp.
///
/// No kernel but those between computes in double, of which each channel takes a few values.
#pragma once

#include "evenkeel/detail/channel_device.cuh"
#include "evenkeel/detail/running_math.hpp"
#include "evenkeel/detail/standardize_math.hpp"
#include "evenkeel/moments.hpp"

namespace evenkeel::detail {

/// Each part's values, from its sums, to pass.kept.
template <class Pass, ChannelLayout Layout, int V>
__global__ void __launch_bounds__(channel_threads, 2) channel_sums_kernel(Pass pass, ChannelPlan plan) {
  using Steps = ChannelSteps<Pass, Layout, V>;
  using Math = decltype(pass.math);
  using A = typename Steps::A;
  constexpr int channels = Steps::channels, in_flight = Steps::in_flight;
  constexpr int values = channels * (Steps::seeks_shift && Math::sums < 2 ? 2 : Math::sums);
  EVENKEEL_SHARED(A, shared, channel_warps * values * (Steps::along ? 1 : 32));
  EVENKEEL_SHARED(int, flags, channel_warps);
  UnitReduction<A, values> reduction(plan.lanes, plan.rows, shared, flags);
  const int span = plan.lanes * plan.rows;
  const auto thread = static_cast<int>(threadIdx.x);
  const int row = thread % span / plan.lanes;
  const int step = plan.rows * Steps::positions, first = row * Steps::positions;
  const std::int64_t units_per_block = plan.units_per_block();
  // All threads of a block make the same number of turns: there are shuffles and barriers inside.
  for (std::int64_t base = blockIdx.x * units_per_block; base < plan.units;
       base += static_cast<std::int64_t>(gridDim.x) * units_per_block) {
    const typename Steps::Unit unit = Steps::unit_of(pass, plan, base + thread / span);
    Math math = pass.math;
    if constexpr (requires { math.cell_count; }) math.cell_count = unit.positions;

    typename Steps::Start start[channels];
    if constexpr (Steps::seeks_shift) {
      Values<A, 2> sums[channels];
#pragma unroll
      for (int j = 0; j < channels; ++j) sums[j][0] = sums[j][1] = A(0);
      if (first < unit.positions) {
        const auto x = Steps::load(pass, unit, first);
#pragma unroll
        for (int i = 0; i < V; ++i) Steps::accumulate_first(sums[Steps::channel_of(i)], x, i);
      }
      reduction.sum(sums);
#pragma unroll
      for (int j = 0; j < channels; ++j) start[j] = Math::start_from(sums[j]);
    } else {
#pragma unroll
      for (int j = 0; j < channels; ++j) start[j] = Steps::known_start(pass, unit, j);
    }

    const auto p = Steps::load_parameters(pass, unit);
    typename Steps::Row rows[channels];
    const auto rows_from_starts = [&] {
      typename Steps::Sums sums[channels];
#pragma unroll
      for (int j = 0; j < channels; ++j) each<Math::sums>([&](auto k) { sums[j][k] = A(0); });
      for (int e = first; e < unit.positions; e += in_flight * step) {
        typename Steps::Chunks x[in_flight];
#pragma unroll
        for (int l = 0; l < in_flight; ++l)
          if (e + l * step < unit.positions) x[l] = Steps::load(pass, unit, e + l * step);
#pragma unroll
        for (int l = 0; l < in_flight; ++l)
          if (e + l * step < unit.positions)
#pragma unroll
            for (int i = 0; i < V; ++i)
              Steps::accumulate(math, sums[Steps::channel_of(i)], start[Steps::channel_of(i)], x[l], p, i);
      }
      reduction.sum(sums);
#pragma unroll
      for (int j = 0; j < channels; ++j) rows[j] = math.finish(sums[j], start[j]);
    };
    rows_from_starts();
    if constexpr (Steps::seeks_shift) {
      bool again = false;
#pragma unroll
      for (int j = 0; j < channels; ++j) {
        const typename Steps::Start better = math.restart(start[j], rows[j]);
        again = again || better.shift != start[j].shift;
        start[j] = better;
      }
      if (reduction.any(again)) rows_from_starts();
    }
    if (unit.positions > 0 && row == 0)
#pragma unroll
      for (int j = 0; j < channels; ++j) Steps::keep(pass, unit, plan, rows[j], j);
  }
}

/// The outputs, from the inputs and pass.known. A math that leaves an output as it is where a channel's values say so
/// has leaves(row).
template <class Pass, ChannelLayout Layout, int V>
__global__ void __launch_bounds__(channel_threads, 2) channel_write_kernel(Pass pass, ChannelPlan plan) {
  using Steps = ChannelSteps<Pass, Layout, V>;
  constexpr int channels = Steps::channels, in_flight = Steps::in_flight;
  const int span = plan.lanes * plan.rows;
  const auto thread = static_cast<int>(threadIdx.x);
  const int row = thread % span / plan.lanes;
  const int step = plan.rows * Steps::positions, first = row * Steps::positions;
  const std::int64_t units_per_block = plan.units_per_block();
  for (std::int64_t base = blockIdx.x * units_per_block; base < plan.units;
       base += static_cast<std::int64_t>(gridDim.x) * units_per_block) {
    const typename Steps::Unit unit = Steps::unit_of(pass, plan, base + thread / span);
    if (first >= unit.positions) continue;
    typename Steps::Row known[channels];
#pragma unroll
    for (int j = 0; j < channels; ++j) known[j] = Steps::row_of(pass, unit, j);
    if constexpr (requires { pass.math.leaves(known[0]); }) {
      bool leaves = true;
#pragma unroll
      for (int j = 0; j < channels; ++j) leaves = leaves && pass.math.leaves(known[j]);
      if (leaves) continue;
    }
    const auto p = Steps::load_parameters(pass, unit);
    for (int e = first; e < unit.positions; e += in_flight * step) {
      typename Steps::Chunks x[in_flight];
#pragma unroll
      for (int l = 0; l < in_flight; ++l)
        if (e + l * step < unit.positions) x[l] = Steps::load(pass, unit, e + l * step);
#pragma unroll
      for (int l = 0; l < in_flight; ++l)
        if (e + l * step < unit.positions) Steps::write(pass, unit, known, e + l * step, x[l], p);
    }
  }
}

inline constexpr int between_threads = 128, between_warps = between_threads / 32;

/// The sum over a warp, in every lane.
template <class A>
EVENKEEL_DEVICE A warp_sum(A value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

/// What the parts of the cells of one set left, (count | shift | delta | M2) with `pitch` values each, merged by a warp
/// in a fixed order; in lane 0. The parts of a set are neighbours.
template <class A>
EVENKEEL_DEVICE Moments<double> merged_parts(const A* parts, std::int64_t count, std::int64_t pitch) {
  Moments<double> all;
  for (std::int64_t e = threadIdx.x % 32; e < count; e += 32)
    all = merge(all,
                Moments<double>{static_cast<std::int64_t>(parts[e]), static_cast<double>(parts[pitch + e]),
                                static_cast<double>(parts[2 * pitch + e]), static_cast<double>(parts[3 * pitch + e])});
  for (unsigned offset = 16; offset > 0; offset /= 2) {
    const Moments<double> other{
        __shfl_down_sync(0xffffffffu, all.count, offset), __shfl_down_sync(0xffffffffu, all.shift, offset),
        __shfl_down_sync(0xffffffffu, all.delta, offset), __shfl_down_sync(0xffffffffu, all.M2, offset)};
    all = merge(all, other);
  }
  return all;
}

/// The statistics (mean | rest | rstd, sets) of a set, from its moments (count | shift | delta | M2, sets).
template <class A>
EVENKEEL_DEVICE void settle_set(const double* moments, A* statistics, double eps, std::int64_t set, std::int64_t sets) {
  const Moments<double> m{static_cast<std::int64_t>(moments[set]), moments[sets + set], moments[2 * sets + set],
                          moments[3 * sets + set]};
  const StandardizeRow<double> row = standardize_row<double>(m.shift, m.delta, inverse_root(m.variance() + eps));
  const A mean = static_cast<A>(row.mean);
  statistics[set] = mean;
  statistics[sets + set] = static_cast<A>(row.mean - static_cast<double>(mean) + row.rest);
  statistics[2 * sets + set] = static_cast<A>(row.rstd);
}

/// Between the sums and the writing of a forward: a warp for each set, whose parts are `count` neighbours of `parts`.
template <class A>
__global__ void __launch_bounds__(between_threads)
    moments_kernel(const A* parts, std::int64_t count, std::int64_t sets, double eps, double* moments, A* statistics) {
  const std::int64_t set = static_cast<std::int64_t>(blockIdx.x) * between_warps + threadIdx.x / 32;
  if (set >= sets) return;
  const Moments<double> m = merged_parts(parts + set * count, count, sets * count);
  if (threadIdx.x % 32 != 0) return;
  moments[set] = static_cast<double>(m.count);
  moments[sets + set] = m.shift;
  moments[2 * sets + set] = m.delta;
  moments[3 * sets + set] = m.M2;
  settle_set(moments, statistics, eps, set, sets);
}

/// What lies between the sums and the writing of a backward.
template <class A, class W, class Dw, class Db>
struct GradientStep {
  const A* parts;  // (g | g_xhat, samples, channels, parts)
  std::int64_t samples, channels, count;
  std::int64_t sets, group;  // no sets: the statistics are constants
  const double* moments;     // (count | ..., sets)
  const A* statistics;       // (mean | rest | rstd, sets)
  A* known;                  // (mean | rest | rstd | mean_h | mean_hxhat, sets)
  const W* weight;           // (channels), or null
  Dw* dweight;               // (channels), or null
  Db* dbias;                 // (channels), or null
  bool accumulates;
};

/// A warp for each set, then a warp for each channel.
template <class A, class W, class Dw, class Db>
__global__ void __launch_bounds__(between_threads) channel_gradient_kernel(GradientStep<A, W, Dw, Db> step) {
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * between_warps + threadIdx.x / 32;
  const std::int64_t lane = threadIdx.x % 32, pitch = step.samples * step.channels * step.count;
  double g = 0, g_xhat = 0;
  const auto add = [&](std::int64_t e, double factor) {
    g += factor * static_cast<double>(step.parts[e]);
    g_xhat += factor * static_cast<double>(step.parts[pitch + e]);
  };
  if (number < step.sets) {
    const std::int64_t first = number * step.group;  // cell
    const std::int64_t channel = first % step.channels;
    for (std::int64_t e = lane; e < step.group * step.count; e += 32)
      add(first * step.count + e,
          step.weight == nullptr ? 1.0 : to<double>(step.weight[channel + Quotient(e, step.count).whole]));
    const double h = warp_sum(g), hxhat = warp_sum(g_xhat);
    if (lane != 0) return;
    const double counted = step.moments[number] > 1 ? step.moments[number] : 1.0;
    for (int k = 0; k < 3; ++k) step.known[k * step.sets + number] = step.statistics[k * step.sets + number];
    // One value has no gradient, and h - mean(h) is not 0 where a compiler fuses it with the product in h.
    if (!(step.moments[number] > 1)) step.known[2 * step.sets + number] = A(0);
    step.known[3 * step.sets + number] = static_cast<A>(h / counted);
    step.known[4 * step.sets + number] = static_cast<A>(hxhat / counted);
    return;
  }
  const std::int64_t channel = number - step.sets;
  if (channel >= step.channels) return;
  for (std::int64_t e = lane; e < step.samples * step.count; e += 32) {
    const Quotient part(e, step.count);
    add((part.whole * step.channels + channel) * step.count + part.rest, 1.0);
  }
  const double dweight = warp_sum(g_xhat), dbias = warp_sum(g);
  if (lane != 0) return;
  const auto put = [&](auto* gradient, double sum) {
    if (gradient == nullptr) return;
    using T = std::remove_cvref_t<decltype(*gradient)>;
    gradient[channel] = to<T>(step.accumulates ? to<double>(gradient[channel]) + sum : sum);
  };
  put(step.dweight, dweight);
  put(step.dbias, dbias);
}

/// Running statistics (mean | var, channels) take in moments (count | shift | delta | M2, samples, channels): a thread
/// for each channel.
template <class A>
__global__ void __launch_bounds__(between_threads)
    running_kernel(RunningStep step, const double* moments, std::int64_t samples, std::int64_t channels, A* values) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * between_threads + threadIdx.x;
  if (c >= channels) return;
  const std::int64_t sets = samples * channels;
  step.take(values[c], values[channels + c], samples, [&](std::int64_t s) {
    const double* const m = moments + s * channels + c;
    return Moments<double>{static_cast<std::int64_t>(m[0]), m[sets], m[2 * sets], m[3 * sets]};
  });
}

}  // namespace evenkeel::detail
