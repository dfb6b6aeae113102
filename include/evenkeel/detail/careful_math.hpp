/// Rows whose squares, sums or differences leave the range of the accumulator type are done again in double, and for
/// double data with the row scaled by a power of two. No Eigen, no CUDA header.
///
/// The maths here wrap a norm's math in double. Only what they scale is theirs: x and the statistics of x.
#pragma once

#include "evenkeel/detail/values.hpp"
#include "evenkeel/detail/vocabulary.hpp"

#include <cmath>

namespace evenkeel::detail {

/// Whether no square of a row with this 1/sqrt(var + eps) has left the range of A, nor lost digits at its lower end.
EVENKEEL_MATH template <class A, class V>
EVENKEEL_HD bool in_range_of(const V& rstd) {
  constexpr auto large = static_cast<typename Lanes<V>::Scalar>(sizeof(A) == 4 ? 0x1p50 : 0x1p400);
  return all_less(rstd, splat<V>(large)) && all_less(splat<V>(1 / large), rstd);
}
EVENKEEL_MATH template <class V>
EVENKEEL_HD bool in_range(const V& rstd) {
  return in_range_of<typename Lanes<V>::Scalar>(rstd);
}

/// Whether a sum has stayed in the range of A.
EVENKEEL_MATH template <class V>
EVENKEEL_HD bool finite(const V& sum) {
  using A = typename Lanes<V>::Scalar;
  constexpr A large = sizeof(A) == 4 ? A(1.7e38f) : A(8.9e307);
  return all_less(sum, splat<V>(large)) && all_less(splat<V>(-large), sum);
}

/// A power of two that brings the largest absolute value of a row near 1: 1 for data of type float and narrower, whose
/// squares double can hold. Never so large that eps * scale^2 overflows.
template <class A>
double careful_scale(double largest, double eps) {
  if (sizeof(A) == 4 || !(largest > 0) || std::isinf(largest)) return 1;
  const int most = eps > 0 ? (1020 - std::ilogb(eps)) / 2 : 1020;
  const int exponent = -std::ilogb(largest);
  return std::ldexp(1.0, exponent < most ? exponent : most);
}

/// The forward of Norm, a math in double, of x * scale.
template <class Norm>
struct CarefulForward {
  using Scalar = double;
  static constexpr int sums = Norm::sums, feature_sums = Norm::feature_sums, outputs = Norm::outputs;
  template <class V>
  using Known = typename Norm::template Known<V>;
  template <class V>
  using Start = typename Norm::template Start<V>;
  template <class V>
  using Row = typename Norm::template Row<V>;

  Norm norm;
  double scale;

  Known<double> rescaled(const Known<double>& known) const { return known; }
  auto unscaled(const Row<double>& row) const { return norm.unscaled(row, scale); }
  Start<double> start(const Known<double>& known, double x) const { return norm.start(known, x * scale); }
  template <class... P>
  void accumulate(Values<double, sums>& s, Values<double, feature_sums>& terms, const Start<double>& start, double x,
                  const P&... parameters) const {
    norm.accumulate(s, terms, start, x * scale, parameters...);
  }
  template <class... N>
  Row<double> finish(const Values<double, sums>& s, const Start<double>& start, const N&... inverse_count) const {
    return norm.finish(s, start, inverse_count...);
  }
  Start<double> restart(const Start<double>& start, const Row<double>& row) const requires requires(const Norm& n) {
    n.restart(start, row);
  }
  { return norm.restart(start, row); }
  template <class... P>
  void write(Values<double, outputs>& y, const Row<double>& row, double x, const P&... parameters) const {
    norm.write(y, row, x * scale, parameters...);
  }
};

/// The backward of Norm, a math in double with the inputs dy, x and dsum.
template <class Norm>
struct CarefulBackward {
  using Scalar = double;
  static constexpr int sums = Norm::sums, feature_sums = Norm::feature_sums, outputs = 1;
  template <class V>
  using Known = typename Norm::template Known<V>;
  template <class V>
  using Start = typename Norm::template Start<V>;
  template <class V>
  using Row = typename Norm::template Row<V>;

  Norm norm;
  double scale;

  Known<double> rescaled(const Known<double>& known) const { return norm.rescaled(known, scale); }
  template <class R>
  Start<double> start(const Known<double>& known, double dy, double x, const R& dsum) const {
    return norm.start(known, dy, x * scale, dsum);
  }
  template <class R, class... W>
  void accumulate(Values<double, sums>& s, Values<double, feature_sums>& terms, const Start<double>& start, double dy,
                  double x, const R& dsum, const W&... weights) const {
    norm.accumulate(s, terms, start, dy, x * scale, dsum, weights...);
  }
  template <class... N>
  Row<double> finish(const Values<double, sums>& s, const Start<double>& start, const N&... inverse_count) const {
    return norm.finish(s, start, inverse_count...);
  }
  template <class R, class... W>
  void write(Values<double, 1>& dx, const Row<double>& row, double dy, double x, const R& dsum,
             const W&... weights) const {
    norm.write(dx, row, dy, x * scale, none, weights...);
    dx[0] = plus(dx[0] * scale, dsum);
  }
};

}  // namespace evenkeel::detail
