/// The math of norms that subtract the mean and divide by the standard deviation: LayerNorm, and the statistics of
/// BatchNorm and GroupNorm. No Eigen, no CUDA header.
///
///     delta = mean(x - shift),  var = mean((x - shift)^2) - delta^2,  rstd = 1/sqrt(var + eps)
///     mean + rest = shift + delta,  xhat = (x - mean - rest) * rstd
///     dx = rstd * (h - mean(h) - xhat * mean(h * xhat)),  h = dy * weight
///
/// The shift is the mean of the row's first few elements. The mean is kept as the pair (mean, rest), the nearest number of type A and
/// what it leaves: a mean of 1e4 rounded to one float is off by up to 5e-4, which is 5% of a spread of 1e-2, in the
/// output and in every gradient.
#pragma once

#include "evenkeel/detail/affine_math.hpp"
#include "evenkeel/detail/careful_math.hpp"
#include "evenkeel/detail/values.hpp"
#include "evenkeel/detail/vocabulary.hpp"

#include <cstdint>

namespace evenkeel::detail {

/// 1/sqrt(v), and 0 at v = 0: with eps = 0 a constant row has xhat = 0 and dx = 0.
EVENKEEL_MATH template <class V>
EVENKEEL_HD V inverse_root(const V& v) {
  const V root = sqrt(v);
  const V inverse = splat<V>(1) / root;
  return select_less(splat<V>(0), v, inverse, v);
}

/// The statistics of a standardized row.
template <class V>
struct StandardizeRow {
  V mean, rest, rstd;
  /// (x - mean - rest) * rstd. The difference is exact near the mean, and rest * rstd does not depend on x.
  EVENKEEL_MATH template <class X>
  EVENKEEL_HD X xhat(const X& x) const {
    const X centred = x - mean;
    const X scaled = centred * rstd;
    return scaled - rest * rstd;
  }
};

/// shift + delta as a pair whose first number is as near as one number can be.
EVENKEEL_MATH template <class V>
EVENKEEL_HD StandardizeRow<V> standardize_row(const V& shift, const V& delta, const V& rstd) {
  const V mean = shift + delta;
  const V lost = shift - mean;
  return {mean, lost + delta, rstd};
}

template <class A, class Affine>
struct StandardizeForward {
  using Scalar = A;
  static constexpr int sums = 2, feature_sums = 0, outputs = 1;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {
    V shift;
  };
  template <class V>
  using Row = StandardizeRow<V>;

  static constexpr bool averages_shift = true;

  A inv_n, eps;

  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> start(const Known<S>&, const S& first) const {
    return {first};
  }
  EVENKEEL_MATH template <class V, class S, class W, class B>
  EVENKEEL_HD void accumulate(Values<V, 2>& s, Values<V, 0>&, const Start<S>& start, const V& x, const W&,
                              const B&) const {
    const V shifted = x - start.shift;
    s[0] += shifted;
    s[1] += shifted * shifted;
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, 2>& s, const Start<S>& start) const {
    return finish(s, start, inv_n);
  }
  /// Of rows with counts of their own.
  EVENKEEL_MATH template <class S, class N>
  EVENKEEL_HD Row<S> finish(const Values<S, 2>& s, const Start<S>& start, const N& inverse_count) const {
    const S delta = s[0] * inverse_count;
    const S squares = s[1] - delta * s[0];
    const S var = max(S(squares * inverse_count), splat<S>(0));
    return standardize_row(start.shift, delta, inverse_root(S(var + eps)));
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD bool ready(const Start<S>&) const {
    return true;
  }
  /// The sums lose a factor delta^2/var of their precision. Where the shift lies a standard deviation from the mean or
  /// more, as it does in one row of normal numbers in 10,000, the row starts over from its mean.
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD bool settled(const Start<S>& start, const Row<S>& row) const {
    const S distance = (row.mean - start.shift) * row.rstd;
    return all_less(S(distance * distance), splat<S>(1)) && in_range(row.rstd);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> restart(const Start<S>& start, const Row<S>& row) const {
    const S distance = (row.mean - start.shift) * row.rstd;
    const S near = select_less(S(distance * distance), splat<S>(1), start.shift, row.mean);
    return {select_less(splat<S>(0), row.rstd, near, row.mean)};  // a variance of 0 may be all that cancellation left
  }
  template <class... P>
  EVENKEEL_HD static double magnitude(double x, const P&...) {
    return x;
  }
  auto careful(double largest, std::int64_t length) const {
    const double scale = careful_scale<A>(largest, eps);
    using Wide = StandardizeForward<double, Affine>;
    return CarefulForward<Wide>{Wide{1 / static_cast<double>(length), eps * scale * scale}, scale};
  }
  /// The row's values as the data have them, split for A.
  Row<double> unscaled(const Row<double>& row, double scale) const {
    const double mean = static_cast<double>(static_cast<A>(row.mean));
    return {mean / scale, (row.mean - mean + row.rest) / scale, row.rstd * scale};
  }
  EVENKEEL_MATH template <class V, class S, class W, class B>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row<S>& row, const V& x, const W& weight, const B& bias) const {
    y[0] = Affine::apply(row.xhat(x), weight, bias);
  }
};

/// Inputs dy, x and, for a residual stream, dsum, the gradient from the later uses of x; parameter weight; output dx.
template <class A, class Affine, class Terms>
struct StandardizeBackward {
  using Scalar = A;
  static constexpr int sums = 2, feature_sums = Terms::count, outputs = 1;
  template <class V>
  using Known = StandardizeRow<V>;
  template <class V>
  using Start = StandardizeRow<V>;
  template <class V>
  struct Row {
    V mean, rest, rstd, mean_h, mean_hxhat;
  };

  A inv_n;

  EVENKEEL_MATH template <class S, class R>
  EVENKEEL_HD Start<S> start(const Known<S>& known, const S&, const S&, const R&) const {
    return known;
  }
  EVENKEEL_MATH template <class V, class S, class R, class W>
  EVENKEEL_HD void accumulate(Values<V, 2>& s, Values<V, Terms::count>& terms, const Start<S>& start, const V& dy,
                              const V& x, const R&, const W& weight) const {
    const V xhat = start.xhat(x);
    const V h = Affine::pull(dy, weight);
    s[0] += h;
    s[1] += h * xhat;
    Terms::set(terms, dy, xhat);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, 2>& s, const Start<S>& start) const {
    return finish(s, start, inv_n);
  }
  /// Of rows with counts of their own.
  EVENKEEL_MATH template <class S, class N>
  EVENKEEL_HD Row<S> finish(const Values<S, 2>& s, const Start<S>& start, const N& inverse_count) const {
    // A row of one element has dx = 0, and h - mean(h) is not 0 where a compiler fuses it with the product in h.
    const N several = select_less(inverse_count, splat<N>(1), splat<N>(1), splat<N>(0));
    return {start.mean, start.rest, start.rstd * several, s[0] * inverse_count, s[1] * inverse_count};
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD bool ready(const Start<S>& start) const {
    return in_range(start.rstd);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD bool settled(const Start<S>&, const Row<S>& row) const {
    return finite(row.mean_h) && finite(row.mean_hxhat);
  }
  template <class R, class... P>
  EVENKEEL_HD static double magnitude(double, double x, const R&, const P&...) {
    return x;
  }
  auto careful(double largest, std::int64_t length) const {
    using Wide = StandardizeBackward<double, Affine, Terms>;
    return CarefulBackward<Wide>{Wide{1 / static_cast<double>(length)}, careful_scale<A>(largest, 0)};
  }
  Known<double> rescaled(const Known<double>& known, double scale) const {
    return {known.mean * scale, known.rest * scale, known.rstd / scale};
  }
  EVENKEEL_MATH template <class V, class S, class R, class W>
  EVENKEEL_HD void write(Values<V, 1>& dx, const Row<S>& row, const V& dy, const V& x, const R& dsum,
                         const W& weight) const {
    const V xhat = StandardizeRow<S>{row.mean, row.rest, row.rstd}.xhat(x);
    const V centred = Affine::pull(dy, weight) - row.mean_h;
    const V tangent = centred - xhat * row.mean_hxhat;
    const V scaled = tangent * row.rstd;
    dx[0] = plus(scaled, dsum);
  }
};

}  // namespace evenkeel::detail
