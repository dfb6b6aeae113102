/// Any norm over rows whose output is multiplied by one number, affine part included: y = scale * norm(x). No Eigen, no
/// CUDA header.
#pragma once

#include "evenkeel/detail/vocabulary.hpp"
#include "evenkeel/detail/wrapped_math.hpp"

#include <cstdint>
#include <type_traits>

namespace evenkeel::detail {

/// Input x; parameters and output those of Norm.
template <class Norm>
struct ScaledForward : WrappedMath<Norm> {
  using WrappedMath<Norm>::norm;

  typename Norm::Scalar scale;

  EVENKEEL_MATH template <class Known, class S>
  EVENKEEL_HD auto start(const Known& known, const S& x) const {
    return norm.start(known, x);
  }
  EVENKEEL_MATH template <class V, class Start, class... P>
  EVENKEEL_HD void accumulate(Values<V, Norm::sums>& s, Values<V, Norm::feature_sums>& terms, const Start& start,
                              const V& x, const P&... parameters) const {
    norm.accumulate(s, terms, start, x, parameters...);
  }
  template <class... P>
  static double magnitude(double x, const P&... parameters) {
    return Norm::magnitude(x, parameters...);
  }
  auto careful(double largest, std::int64_t length) const {
    const auto wide = norm.careful(largest, length);
    return ScaledForward<std::remove_const_t<decltype(wide)>>{{wide}, scale};
  }
  EVENKEEL_MATH template <class V, class Row, class... P>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row& row, const V& x, const P&... parameters) const {
    norm.write(y, row, x, parameters...);
    y[0] = y[0] * scale;
  }
};

/// Inputs dy, x, dsum; parameter weight; output dx. dsum, which does not come through the norm, is not scaled.
template <class Norm>
struct ScaledBackward : WrappedMath<Norm> {
  using WrappedMath<Norm>::norm;

  typename Norm::Scalar scale;

  EVENKEEL_MATH template <class Known, class S, class R>
  EVENKEEL_HD auto start(const Known& known, const S& dy, const S& x, const R& dsum) const {
    return norm.start(known, dy, x, dsum);
  }
  EVENKEEL_MATH template <class V, class Start, class R, class W>
  EVENKEEL_HD void accumulate(Values<V, Norm::sums>& s, Values<V, Norm::feature_sums>& terms, const Start& start,
                              const V& dy, const V& x, const R& dsum, const W& weight) const {
    norm.accumulate(s, terms, start, V(dy * scale), x, dsum, weight);
  }
  template <class R, class W>
  static double magnitude(double dy, double x, const R& dsum, const W& weight) {
    return Norm::magnitude(dy, x, dsum, weight);
  }
  auto careful(double largest, std::int64_t length) const {
    const auto wide = norm.careful(largest, length);
    return ScaledBackward<std::remove_const_t<decltype(wide)>>{{wide}, scale};
  }
  EVENKEEL_MATH template <class V, class Row, class R, class W>
  EVENKEEL_HD void write(Values<V, 1>& dx, const Row& row, const V& dy, const V& x, const R& dsum,
                         const W& weight) const {
    norm.write(dx, row, V(dy * scale), x, dsum, weight);
  }
};

}  // namespace evenkeel::detail
