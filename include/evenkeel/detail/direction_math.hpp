/// The norm of each unit of a weight, whatever its size, and the direction. No Eigen, no CUDA header.
#pragma once

#include "evenkeel/detail/values.hpp"
#include "evenkeel/detail/vocabulary.hpp"
#include "evenkeel/detail/weight_math.hpp"

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace evenkeel::detail {

/// norm(v) = length / scale.
template <class V>
struct Direction {
  V scale, length, inverse;
  EVENKEEL_MATH template <class X>
  EVENKEEL_HD X unit(const X& v) const {
    const X scaled = v * scale;
    return scaled * inverse;
  }
};

/// Input v, whose scalar is T. Squares of floats have room in double; where those of doubles have none, a power of two brings
/// v into range.
template <class T>
struct DirectionMath {
  using Scalar = double;
  static constexpr int sums = 1, feature_sums = 0, outputs = 0;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {
    V scale;
  };
  template <class V>
  using Row = Direction<V>;

  EVENKEEL_MATH template <class S, class... Rest>
  EVENKEEL_HD Start<S> start(const Known<S>&, const S&, const Rest&...) const {
    return {splat<S>(1)};
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void accumulate(Values<V, 1>& s, Values<V, 0>&, const Start<S>& start, const V& v) const {
    V scaled = v;
    if constexpr (std::is_same_v<T, double>) scaled = v * start.scale;
    s[0] += scaled * scaled;
  }
  EVENKEEL_HD Row<double> finish(const Values<double, 1>& s, const Start<double>& start) const {
    const double length = std::sqrt(s[0]);
    return {start.scale, length, length == 0 ? 0 : 1 / length};
  }
  EVENKEEL_HD Start<double> restart(const Start<double>&, const Row<double>& row) const {
    return {std::is_same_v<T, double> ? scale_of_squares(row.length * row.length) : 1};
  }
};

/// norm(v) of each unit.
template <class G>
struct DirectionLength {
  const double* values;  // (scale | length | inverse, units)
  G* norms;
  std::int64_t units;
  EVENKEEL_MATH EVENKEEL_HD void operator()(std::int64_t u) const {
    norms[u] = narrowed<G>(values[units + u] / values[u]);
  }
};

}  // namespace evenkeel::detail
