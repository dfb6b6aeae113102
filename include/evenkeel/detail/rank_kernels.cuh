/// The kernels around an exchange between ranks: what is sent of the parts of a pass, and what becomes of what all have
/// sent. A rank whose call has failed makes everything NaN on all of them: no host waits to be told.
#pragma once

#include "evenkeel/detail/channel_kernels.cuh"
#include "evenkeel/detail/rank_math.hpp"

#include <limits>

namespace evenkeel::detail {

// A function of the host's, such as the one that makes it, cannot be called from a kernel.
template <class A>
inline constexpr A not_a_number = std::numeric_limits<A>::quiet_NaN();

/// From every rank's message to the moments (count | shift | delta | M2, channels) and statistics (mean | rest | rstd,
/// channels) of all data: a thread for each channel.
template <class A>
__global__ void __launch_bounds__(between_threads)
    merge_ranks_kernel(const double* gathered, int ranks, std::int64_t channels, double eps, double* moments,
                       A* statistics) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * between_threads + threadIdx.x;
  if (c >= channels) return;
  const bool failed = failed_rank(gathered, ranks, channels) >= 0;
  const Moments<double> all = failed ? Moments<double>() : merged_over_ranks(gathered, ranks, channels, c);
  moments[c] = static_cast<double>(all.count);
  moments[channels + c] = all.shift;
  moments[2 * channels + c] = all.delta;
  moments[3 * channels + c] = all.M2;
  settle_set(moments, statistics, eps, c, channels);
  if (failed)
    for (int k = 0; k < 3; ++k) statistics[k * channels + c] = not_a_number<A>;
}

/// What a rank sends of a backward, from the parts (g | g_xhat, channels, parts) of its channels: (g | g_xhat, channels) to
/// `own` and `message`, whose mark follows. A warp for each channel.
template <class A>
__global__ void __launch_bounds__(between_threads)
    rank_sums_kernel(const A* parts, std::int64_t count, std::int64_t channels, double* own, double* message) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * between_warps + threadIdx.x / 32;
  if (c >= channels) return;
  double g = 0, g_xhat = 0;
  for (std::int64_t e = c * count + threadIdx.x % 32; e < (c + 1) * count; e += 32) {
    g += static_cast<double>(parts[e]);
    g_xhat += static_cast<double>(parts[channels * count + e]);
  }
  g = warp_sum(g);
  g_xhat = warp_sum(g_xhat);
  if (threadIdx.x % 32 != 0) return;
  own[c] = message[c] = g;
  own[channels + c] = message[channels + c] = g_xhat;
  if (c == 0) message[2 * channels] = 0;
}

/// What lies between the exchange and the writing of a backward.
template <class A, class W, class Dw, class Db>
struct RankGradientStep {
  const double *own, *total;  // (g | g_xhat, channels); the total's mark follows
  std::int64_t channels;
  const double* moments;  // (count | ..., channels), of all ranks
  const A* statistics;    // (mean | rest | rstd, channels)
  A* known;               // (mean | rest | rstd | mean_h | mean_hxhat, channels)
  const W* weight;        // (channels), or null
  Dw* dweight;            // (channels), or null
  Db* dbias;              // (channels), or null
  bool accumulates;
};

/// A thread for each channel.
template <class A, class W, class Dw, class Db>
__global__ void __launch_bounds__(between_threads) rank_gradient_kernel(RankGradientStep<A, W, Dw, Db> step) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * between_threads + threadIdx.x, C = step.channels;
  if (c >= C) return;
  for (int k = 0; k < 3; ++k) step.known[k * C + c] = step.statistics[k * C + c];
  const bool failed = !(step.total[2 * C] == 0);
  // One value has no gradient, and h - mean(h) is not 0 where a compiler fuses it with the product in h.
  if (!(step.moments[c] > 1)) step.known[2 * C + c] = A(0);
  if (failed) step.known[2 * C + c] = not_a_number<A>;
  const double weight = step.weight == nullptr ? 1.0 : to<double>(step.weight[c]);
  const double counted = step.moments[c] > 1 ? step.moments[c] : 1.0;
  step.known[3 * C + c] = static_cast<A>(weight * step.total[c] / counted);
  step.known[4 * C + c] = static_cast<A>(weight * step.total[C + c] / counted);
  if (failed) return;
  const auto put = [&](auto* gradient, double sum) {
    if (gradient == nullptr) return;
    using T = std::remove_cvref_t<decltype(*gradient)>;
    gradient[c] = to<T>(step.accumulates ? to<double>(gradient[c]) + sum : sum);
  };
  put(step.dweight, step.own[C + c]);
  put(step.dbias, step.own[c]);
}

}  // namespace evenkeel::detail
