/// What the math of weight norms shares: a scale that keeps squares in range, an output that is added to, copies. No
/// Eigen, no CUDA header.
#pragma once

#include "evenkeel/detail/values.hpp"
#include "evenkeel/none.hpp"

#include <cstdint>
#include <type_traits>

namespace evenkeel::detail {

/// A scalar of any type as a double, and back: 16 bits go by way of float.
EVENKEEL_MATH template <class T>
EVENKEEL_HD double widened(const T& x) {
  if constexpr (std::is_same_v<T, double>)
    return x;
  else
    return static_cast<double>(static_cast<float>(x));
}
EVENKEEL_MATH template <class T>
EVENKEEL_HD T narrowed(double x) {
  if constexpr (std::is_same_v<T, double>)
    return x;
  else
    return static_cast<T>(static_cast<float>(x));
}

/// What follows the values of each unit, where nothing does.
struct NothingBetween {
  EVENKEEL_HD void operator()(std::int64_t) const {}
};

/// Copies values to doubles, or doubles to values, one by one.
template <class T>
struct CopyToDouble {
  const T* from;
  double* to;
  EVENKEEL_MATH EVENKEEL_HD void operator()(std::int64_t i) const { to[i] = widened(from[i]); }
};
template <class T>
struct CopyFromDouble {
  const double* from;
  T* to;
  EVENKEEL_MATH EVENKEEL_HD void operator()(std::int64_t i) const { to[i] = narrowed<T>(from[i]); }
};

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

/// What a math has that writes units from rows that an earlier pass has left.
template <class A>
struct WritesUnits {
  using Scalar = A;
  static constexpr int sums = 0, feature_sums = 0, outputs = 1;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
};

struct WeightCopy : WritesUnits<double> {
  template <class V>
  struct Row {};

  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void write(Values<V, 1>& out, const Row<S>&, const V& x, None) const {
    out[0] = x;
  }
};

}  // namespace evenkeel::detail
