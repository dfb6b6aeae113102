/// What the math of weight norms shares: a scale that keeps squares in range, an output that is added to, a copy. No
/// Eigen, no CUDA header.
#pragma once

#include "evenkeel/detail/values.hpp"
#include "evenkeel/none.hpp"

namespace evenkeel::detail {

/// The power of two for a second pass over numbers whose squares, summed as they are, gave `squares`: 1 where nothing
/// was lost. Only doubles need another one. With 2^600 the least of them, and with 2^-600 the largest, have squares
/// that can be summed.
EVENKEEL_HD double scale_of_squares(double squares) {
  return squares > 0x1p1000 ? 0x1p-600 : squares < 0x1p-900 ? 0x1p600 : 1.0;
}

/// The output of Math, added to what `old`, the first input, holds.
template <class Math>
struct Accumulated {
  using Scalar = typename Math::Scalar;
  static constexpr int sums = 0, feature_sums = 0, outputs = 1;
  template <class V>
  using Known = typename Math::template Known<V>;
  template <class V>
  using Start = typename Math::template Start<V>;
  template <class V>
  using Row = typename Math::template Row<V>;

  Math math;

  EVENKEEL_MATH template <class V, class S, class... Rest>
  EVENKEEL_HD void write(Values<V, 1>& out, const Row<S>& row, const V& old, const Rest&... rest) const {
    math.write(out, row, rest...);
    out[0] = out[0] + old;
  }
};

struct WeightCopy {
  using Scalar = double;
  static constexpr int sums = 0, feature_sums = 0, outputs = 1;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  struct Row {};

  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void write(Values<V, 1>& out, const Row<S>&, const V& x, None) const {
    out[0] = x;
  }
};

}  // namespace evenkeel::detail
