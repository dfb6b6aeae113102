/// The math of the scale anchor: statistics of a norm, and the pull of each row towards a target. No Eigen, no CUDA
/// header.
///
///     s = 1/rstd
///     dh += coefficient * (s - target)/s * h = coefficient * (1 - target * rstd) * h   [sigma: h - mean]
#pragma once

#include "evenkeel/detail/taper_math.hpp"
#include "evenkeel/detail/wrapped_math.hpp"

#include <cstdint>
#include <type_traits>

namespace evenkeel::detail {

/// Wraps a norm's forward. Inputs h, dh; output dh. Where the row is done with care, the norm sees it times
/// `row_scale`.
template <class Norm>
struct AnchorMath : WrappedMath<Norm> {
  using WrappedMath<Norm>::norm;
  using A = typename Norm::Scalar;

  A coefficient, target, row_scale;

  EVENKEEL_MATH template <class Known, class S>
  EVENKEEL_HD auto start(const Known& known, const S& h, const S&) const {
    return norm.start(known, h);
  }
  EVENKEEL_MATH template <class V, class Start>
  EVENKEEL_HD void accumulate(Values<V, Norm::sums>& s, Values<V, 0>& terms, const Start& start, const V& h,
                              const V&) const {
    norm.accumulate(s, terms, start, h, None{}, None{});
  }
  static double magnitude(double h, double) { return Norm::magnitude(h); }
  auto careful(double largest, std::int64_t length) const {
    const auto wide = norm.careful(largest, length);
    using Wide = std::remove_const_t<decltype(wide)>;
    return AnchorMath<Wide>{{wide}, coefficient, target, wide.scale};
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void write(Values<V, 1>& out, const typename Norm::template Row<S>& row, const V& h, const V& dh) const {
    const S share = row.rstd * A(target * row_scale);
    const S apart = splat<S>(1) - share;
    const S pull = apart * A(coefficient / row_scale);
    const V scaled = h * row_scale;
    const V centred = centred_of(row, scaled);
    out[0] = dh + centred * pull;
  }
};

/// The statistics alone. Input h, no output.
template <class Norm>
struct StatisticsMath : WrappedMath<Norm> {
  static constexpr int outputs = 0;
  using WrappedMath<Norm>::norm;

  EVENKEEL_MATH template <class Known, class S>
  EVENKEEL_HD auto start(const Known& known, const S& h) const {
    return norm.start(known, h);
  }
  EVENKEEL_MATH template <class V, class Start>
  EVENKEEL_HD void accumulate(Values<V, Norm::sums>& s, Values<V, 0>& terms, const Start& start, const V& h) const {
    norm.accumulate(s, terms, start, h, None{}, None{});
  }
  static double magnitude(double h) { return Norm::magnitude(h); }
  auto careful(double largest, std::int64_t length) const {
    const auto wide = norm.careful(largest, length);
    return StatisticsMath<std::remove_const_t<decltype(wide)>>{{wide}};
  }
  EVENKEEL_MATH template <class V, class Row>
  EVENKEEL_HD void write(Values<V, 0>&, const Row&, const V&) const {}
};

}  // namespace evenkeel::detail
