/// The math of WeightNorm: the weight, and the backward's. No Eigen, no CUDA header.
///
/// Sums are taken in double, in which products of floats are exact. On a CPU the weights of narrower data are written in
/// float: a factor in double is two floats, and v * high + v * low rounds once where the processor fuses products and
/// sums, else twice.
#pragma once

#include "evenkeel/detail/direction_math.hpp"
#include "evenkeel/detail/values.hpp"
#include "evenkeel/detail/vocabulary.hpp"
#include "evenkeel/detail/weight_math.hpp"

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace evenkeel::detail {

struct WeightNormWrite : WritesUnits<double> {
  template <class V>
  struct Row {
    V power, factor;
  };

  /// g / norm = power * factor: power, of two, brings v near 1 and costs no rounding.
  static EVENKEEL_HD Row<double> row(const Direction<double>& direction, double g) {
    if (direction.length == 0) return {1, 0};
    const double power = std::ldexp(1.0, min(max(-std::ilogb(direction.length), -400), 400));
    return {direction.scale * power, g * (direction.inverse / power)};
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void write(Values<V, 1>& w, const Row<S>& row, const V& v) const {
    const V near = v * row.power;
    w[0] = near * row.factor;
  }
};

/// From a unit's direction and g, (scale | length | inverse, units) of `values`, to its (power | factor, units).
template <class G>
struct WeightNormFactors {
  const double* values;
  const G* g;
  double* factors;
  std::int64_t units;
  EVENKEEL_MATH EVENKEEL_HD void operator()(std::int64_t u) const {
    const auto row = WeightNormWrite::row({values[u], values[units + u], values[2 * units + u]}, widened(g[u]));
    factors[u] = row.power;
    factors[units + u] = row.factor;
  }
};
template <class G>
WeightNormFactors(const double*, G*, double*, std::int64_t) -> WeightNormFactors<std::remove_const_t<G>>;

/// Inputs dw, v; T is the scalar of v. sum(dw * unit).
template <class T>
struct WeightNormGradientSums {
  using Scalar = double;
  static constexpr int sums = 1, feature_sums = 0, outputs = 0;
  template <class V>
  using Known = Direction<V>;
  template <class V>
  using Start = Direction<V>;
  template <class V>
  struct Row {
    V dw_unit;
  };

  EVENKEEL_MATH template <class S, class... Rest>
  EVENKEEL_HD Start<S> start(const Known<S>& known, const S&, const Rest&...) const {
    return known;
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void accumulate(Values<V, 1>& s, Values<V, 0>&, const Start<S>& start, const V& dw, const V& v) const {
    if constexpr (std::is_same_v<T, double>)
      s[0] += dw * start.unit(v);
    else
      s[0] += dw * v;
  }
  EVENKEEL_HD Row<double> finish(const Values<double, 1>& s, const Start<double>& start) const {
    return {std::is_same_v<T, double> ? s[0] : s[0] * start.inverse};
  }
};

struct WeightNormGradientWrite : WritesUnits<double> {
  template <class V>
  struct Row {
    V scale, length, inverse, dw_unit;
  };

  EVENKEEL_MATH template <class V, class S, class G>
  EVENKEEL_HD void write(Values<V, 1>& dv, const Row<S>& row, const V& dw, const V& v, const G& g) const {
    const V unit = Direction<S>{row.scale, row.length, row.inverse}.unit(v);
    const V tangent = dw - unit * row.dw_unit;
    const S factor = g * row.inverse;
    const V scaled = tangent * factor;
    dv[0] = scaled * row.scale;
  }
};

/// WeightNormGradientWrite of data that need no scale: dv = (dw - v * slope) * factor. In double, since dw and v * slope
/// may be almost the same.
struct WeightNormTangentWrite : WritesUnits<double> {
  template <class V>
  struct Row {
    V slope, factor;
  };

  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void write(Values<V, 1>& dv, const Row<S>& row, const V& dw, const V& v) const {
    const V tangent = dw - v * row.slope;
    dv[0] = tangent * row.factor;
  }
};

/// x times a factor, given as a double and as what float leaves of it.
EVENKEEL_MATH template <class A, class V, class S>
EVENKEEL_HD V times_factor(const V& x, const S& factor, const S& rest) {
  if constexpr (std::is_same_v<A, double>)
    return x * factor;
  else
    return fused(x, V(factor), V(x * rest));
}
/// Whether neither a factor nor what float leaves of it is lost in float.
EVENKEEL_MATH template <class V>
EVENKEEL_HD bool float_holds(const V& factor) {
  const V zero = splat<V>(0), size = max(factor, V(zero - factor));
  const V nonzero = select_less(zero, size, size, splat<V>(1));
  return all_less(size, splat<V>(0x1p100)) && all_less(splat<V>(0x1p-100), nonzero);
}
/// The rest that times_factor needs.
EVENKEEL_HD double float_rest(double factor) { return factor - static_cast<double>(static_cast<float>(factor)); }

/// w = v * factor.
template <class A>
struct FloatWeightNormWrite : WritesUnits<A> {
  static constexpr int scaled_input = 0;
  static constexpr bool scaled_output = false;
  template <class V>
  struct Row {
    V factor, rest;
  };

  auto wide() const { return FloatWeightNormWrite<double>{}; }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD static bool ready(const Row<S>& row) {
    return float_holds(row.factor);
  }
  EVENKEEL_HD static Row<double> rescaled(const Row<double>& row, double scale) {
    return {row.factor / scale, row.rest / scale};
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void write(Values<V, 1>& w, const Row<S>& row, const V& v) const {
    w[0] = times_factor<A>(v, row.factor, row.rest);
  }
};

/// From a unit's direction and g, (scale | length | inverse, units) of `values`, to its (factor | rest, units).
template <class G>
struct FloatWeightNormFactors {
  const double* values;
  const G* g;
  double* factors;
  std::int64_t units;
  EVENKEEL_MATH EVENKEEL_HD void operator()(std::int64_t u) const {
    const double factor = widened(g[u]) * values[2 * units + u];
    factors[u] = factor;
    factors[units + u] = float_rest(factor);
  }
};
template <class G>
FloatWeightNormFactors(const double*, G*, double*, std::int64_t) -> FloatWeightNormFactors<std::remove_const_t<G>>;

/// From a unit's direction, sum(dw * unit) and g to what WeightNormTangentWrite reads, (slope | factor, units).
template <class G>
struct WeightNormTangents {
  const double* values;  // (scale | length | inverse | dw_unit, units)
  const G* g;
  double* factors;
  std::int64_t units;
  EVENKEEL_MATH EVENKEEL_HD void operator()(std::int64_t u) const {
    const double inverse = values[2 * units + u];
    factors[u] = values[3 * units + u] * inverse;
    factors[units + u] = widened(g[u]) * inverse;
  }
};
template <class G>
WeightNormTangents(const double*, G*, double*, std::int64_t) -> WeightNormTangents<std::remove_const_t<G>>;

}  // namespace evenkeel::detail
