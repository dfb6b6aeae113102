/// The kernels of a pass over the units of a weight, beside those of channels: what precedes and what follows the sums.
///
/// All compute in double, of which each unit takes a few values.
#pragma once

#include "evenkeel/detail/channel_kernels.cuh"
#include "evenkeel/detail/weight_math.hpp"

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace evenkeel::detail {

inline constexpr int normalize_threads = 512;

template <class V>
struct OneSum {
  V first;
};
template <class V>
struct TwoSums {
  V first, second;
};

/// A math up to its sums, which are what a part of a unit leaves: what finish makes of them waits for the other parts.
template <class Math>
struct PartSums {
  using Scalar = typename Math::Scalar;
  static constexpr int sums = Math::sums, feature_sums = 0, outputs = 0;
  template <class V>
  using Known = typename Math::template Start<V>;
  template <class V>
  using Start = typename Math::template Start<V>;
  template <class V>
  using Row = std::conditional_t<sums == 1, OneSum<V>, TwoSums<V>>;

  Math math;

  template <class... First>
  EVENKEEL_DEVICE Start<Scalar> start(const Known<Scalar>& known, const First&...) const {
    return known;
  }
  template <class... Arguments>
  EVENKEEL_DEVICE void accumulate(Values<Scalar, sums>& s, Values<Scalar, 0>& terms, const Start<Scalar>& start,
                                  const Arguments&... arguments) const {
    math.accumulate(s, terms, start, arguments...);
  }
  EVENKEEL_DEVICE Row<Scalar> finish(const Values<Scalar, sums>& s, const Start<Scalar>&) const {
    if constexpr (sums == 1)
      return {s[0]};
    else
      return {s[0], s[1]};
  }
};

/// How the sums of each unit start, from its first elements, to starts (members, units): a thread for each unit.
template <class Math, class Inputs, int Count>
__global__ void __launch_bounds__(between_threads)
    unit_start_kernel(Math math, Inputs inputs, std::int64_t channels, std::int64_t units, double* starts) {
  const std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) * between_threads + threadIdx.x;
  if (unit >= units) return;
  const Quotient sample(unit, channels);
  const auto first = [&](const auto& cells) {
    if constexpr (is_none_v<std::remove_cvref_t<decltype(cells)>>)
      return none;
    else
      return to<double>(cells.data[sample.whole * cells.sample_stride + sample.rest * cells.channel_stride]);
  };
  auto start = [&]<int... I>(std::integer_sequence<int, I...>) {
    return math.start(typename Math::template Known<double>{}, first(at<I>(inputs))...);
  }
  (std::make_integer_sequence<int, Count>{});
  for_each_field(start, [&](int k, const double& value) { starts[k * units + unit] = value; });
}

/// Adds up the parts (sums, units, parts) of each unit, in their order, with `lanes` threads for each. Then either the
/// row's values go to kept (members, units) and between(unit) follows, or, where `better` is there, a better start goes
/// to it.
template <class Math, class Between>
__global__ void __launch_bounds__(between_threads)
    unit_finish_kernel(Math math, const double* parts, std::int64_t count, int lanes, std::int64_t units,
                       const double* starts, double* better, double* kept, Between between) {
  const std::int64_t unit = (static_cast<std::int64_t>(blockIdx.x) * between_threads + threadIdx.x) / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  Values<double, Math::sums> sums;
  each<Math::sums>([&](auto k) {
    double sum = 0;
    if (unit < units)
      for (std::int64_t e = lane; e < count; e += lanes) sum += parts[(k * units + unit) * count + e];
    for (int offset = lanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    sums[k] = sum;
  });
  if (unit >= units || lane != 0) return;
  typename Math::template Start<double> start{};
  for_each_field(start, [&](int k, double& value) { value = starts[k * units + unit]; });
  auto row = math.finish(sums, start);
  if constexpr (CanRestart<Math>) {
    if (better != nullptr) {
      auto next = math.restart(start, row);
      for_each_field(next, [&](int k, const double& value) { better[k * units + unit] = value; });
      return;
    }
  }
  for_each_field(row, [&](int k, const double& value) { kept[k * units + unit] = value; });
  between(unit);
}

/// to = from / norm(from); where from is zero, to stays what it was. One block, whose threads take turns.
template <int Threads>
__global__ void __launch_bounds__(Threads) normalize_kernel(const double* from, double* to, std::int64_t count) {
  constexpr int warps = Threads / 32;
  EVENKEEL_SHARED(double, of_warps, 2 * warps);
  const auto thread = static_cast<int>(threadIdx.x);
  double largest = 0;
  for (std::int64_t i = thread; i < count; i += Threads) largest = std::fmax(largest, std::fabs(from[i]));
  for (int offset = 16; offset > 0; offset /= 2)
    largest = std::fmax(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  if (thread % 32 == 0) of_warps[thread / 32] = largest;
  __syncthreads();
  for (int w = 0; w < warps; ++w) largest = std::fmax(largest, of_warps[w]);
  if (largest == 0) return;
  double squares = 0;
  for (std::int64_t i = thread; i < count; i += Threads) squares += (from[i] / largest) * (from[i] / largest);
  squares = warp_sum(squares);
  if (thread % 32 == 0) of_warps[warps + thread / 32] = squares;
  __syncthreads();
  squares = 0;
  for (int w = 0; w < warps; ++w) squares += of_warps[warps + w];
  const double length = std::sqrt(squares);
  for (std::int64_t i = thread; i < count; i += Threads) to[i] = from[i] / largest / length;
}

}  // namespace evenkeel::detail
