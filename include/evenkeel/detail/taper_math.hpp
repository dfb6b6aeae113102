/// The math of TaperNorm between its two ends and at gate 0. At gate 1 the norm's own math runs. No Eigen, no CUDA
/// header.
///
///     k = (1 - g) * c,  centred = x, or x - mean,  xhat = centred * rstd
///     f = g * rstd * weight + k * scale_weight,  y = centred * f + bias
///     dx = dy * f - [mean(dy * f), where centred] - g * rstd * xhat * mean(dy * weight * xhat)
///     dweight = g * sum of dy * xhat,  dscale_weight = k * sum of dy * centred
#pragma once

#include "evenkeel/detail/affine_math.hpp"
#include "evenkeel/detail/careful_math.hpp"
#include "evenkeel/detail/pointwise_math.hpp"
#include "evenkeel/detail/standardize_math.hpp"

#include <cstdint>
#include <type_traits>

namespace evenkeel::detail {

/// weight * scale as a V, of packs, scalars or one of each; scale where there is no weight.
EVENKEEL_MATH template <class V, class W, class S>
EVENKEEL_HD V weighted(const W& weight, const S& scale) {
  if constexpr (is_none_v<W>) {
    if constexpr (std::is_same_v<S, V>)
      return scale;
    else
      return splat<V>(scale);
  } else if constexpr (std::is_same_v<W, S> && !std::is_same_v<S, V>) {
    return splat<V>(weight * scale);
  } else {
    return V(weight * scale);
  }
}

/// x, or x minus the mean of a row that has one.
EVENKEEL_MATH template <class V, class Row>
EVENKEEL_HD V centred_of(const Row& row, const V& x) {
  if constexpr (requires { row.rest; }) {
    const V near = x - row.mean;
    return near - row.rest;
  } else {
    return x;
  }
}

/// The forward between the ends. Norm is the norm's own forward, whose statistics these are. Parameters weight,
/// scale_weight, bias.
template <class Norm>
struct TaperForward : Norm {
  using A = typename Norm::Scalar;
  template <class V>
  using Row = typename Norm::template Row<V>;

  A gate, scale;  // g and k

  EVENKEEL_MATH template <class V, class Start, class W, class C, class B>
  EVENKEEL_HD void accumulate(Values<V, Norm::sums>& s, Values<V, 0>& terms, const Start& start, const V& x,
                              const W& weight, const C&, const B& bias) const {
    Norm::accumulate(s, terms, start, x, weight, bias);
  }
  auto careful(double largest, std::int64_t length) const {
    const auto wide = Norm::careful(largest, length);
    using Wide = TaperForward<std::remove_const_t<decltype(wide.norm)>>;
    return CarefulForward<Wide>{Wide{wide.norm, gate, scale / wide.scale}, wide.scale};
  }
  EVENKEEL_MATH template <class V, class S, class W, class C, class B>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row<S>& row, const V& x, const W& weight, const C& scale_weight,
                         const B& bias) const {
    const V linear = separate(weighted<V>(scale_weight, scale));
    const V factor = weighted<V>(weight, S(row.rstd * gate)) + linear;
    const V scaled = centred_of(row, x) * factor;
    y[0] = plus(scaled, bias);
  }
};

/// What a backward sums over the rows, as far as it is wanted.
template <bool Dweight, bool Dscale, bool Dbias>
struct TaperTerms {
  static constexpr int count = Dweight + Dscale + Dbias;
  EVENKEEL_MATH template <class V, class A>
  EVENKEEL_HD static void set(Values<V, count>& terms, const V& dy, const V& centred, const V& xhat, const A& gate,
                              const A& scale) {
    if constexpr (Dweight) {
      const V gated = xhat * gate;
      terms[0] = dy * gated;
    }
    if constexpr (Dscale) {
      const V scaled = centred * scale;
      terms[Dweight] = dy * scaled;
    }
    if constexpr (Dbias) terms[Dweight + Dscale] = dy;
  }
};

/// The backward between the ends. Norm is the norm's own backward, without feature sums. Inputs dy, x, dsum; parameters
/// weight, scale_weight; output dx.
template <class Norm, class Terms>
struct TaperBackward : Norm {
  using A = typename Norm::Scalar;
  static constexpr int feature_sums = Terms::count;
  static constexpr bool centres = Norm::sums == 2;
  template <class V>
  using Row = typename Norm::template Row<V>;

  A gate, scale;  // g and k; both 0 for centred rows of one element, whose gradients are 0

  EVENKEEL_MATH template <class V, class Start, class R, class W, class C>
  EVENKEEL_HD void accumulate(Values<V, Norm::sums>& s, Values<V, Terms::count>& terms, const Start& start, const V& dy,
                              const V& x, const R&, const W& weight, const C& scale_weight) const {
    const V centred = centred_of(start, x);
    const V xhat = centred * start.rstd;
    if constexpr (centres) s[0] += flow(dy, start.rstd, weight, scale_weight);
    const V h = AffineMath<false, None>::pull(dy, weight);
    s[centres] += h * xhat;
    Terms::set(terms, dy, centred, xhat, gate, scale);
  }
  auto careful(double largest, std::int64_t length) const {
    const auto wide = Norm::careful(largest, length);
    using Wide = TaperBackward<std::remove_const_t<decltype(wide.norm)>, Terms>;
    return CarefulBackward<Wide>{Wide{wide.norm, gate, scale / wide.scale}, wide.scale};
  }
  EVENKEEL_MATH template <class V, class S, class R, class W, class C>
  EVENKEEL_HD void write(Values<V, 1>& dx, const Row<S>& row, const V& dy, const V& x, const R& dsum, const W& weight,
                         const C& scale_weight) const {
    const V xhat = centred_of(row, x) * row.rstd;
    V through = flow(dy, row.rstd, weight, scale_weight);
    if constexpr (centres) through = through - row.mean_h;
    const S radial = row.mean_hxhat * S(row.rstd * gate);
    const V tangent = through - xhat * radial;
    dx[0] = plus(tangent, dsum);
  }

 private:
  /// dy * f.
  EVENKEEL_MATH template <class V, class S, class W, class C>
  EVENKEEL_HD V flow(const V& dy, const S& rstd, const W& weight, const C& scale_weight) const {
    const V linear = separate(weighted<V>(scale_weight, scale));
    const V factor = weighted<V>(weight, S(rstd * gate)) + linear;
    return dy * factor;
  }
};

/// x * scale. The scale is near 1/r(x), so it meets x first: the product is near 1.
template <class A>
struct Line {
  A scale;
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD V value(const V& x) const {
    return x * scale;
  }
};

/// RMS variant at gate 0: no statistics, one look at each element. Parameters scale_weight, bias.
template <class A>
using LinearForward = PointwiseForward<A, Line<A>>;

/// Inputs dy, x, dsum; parameter scale_weight; output dx.
template <class A, class Terms>
struct LinearBackward {
  using Scalar = A;
  static constexpr int sums = 0, feature_sums = Terms::count, outputs = 1;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  struct Row {};

  A scale;

  EVENKEEL_MATH template <class S, class R>
  EVENKEEL_HD Start<S> start(const Known<S>&, const S&, const S&, const R&) const {
    return {};
  }
  EVENKEEL_MATH template <class V, class S, class R, class C>
  EVENKEEL_HD void accumulate(Values<V, 0>&, Values<V, Terms::count>& terms, const Start<S>&, const V& dy, const V& x,
                              const R&, const C&) const {
    Terms::set(terms, dy, x, x, A(0), scale);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, 0>&, const Start<S>&) const {
    return {};
  }
  EVENKEEL_MATH template <class V, class S, class R, class C>
  EVENKEEL_HD void write(Values<V, 1>& dx, const Row<S>&, const V& dy, const V&, const R& dsum,
                         const C& scale_weight) const {
    const V scaled = dy * scale;
    dx[0] = plus(AffineMath<false, None>::pull(scaled, scale_weight), dsum);
  }
};

/// A mean as the nearest number and what that leaves.
template <class V>
struct MeanRow {
  V mean, rest;
  /// (x - mean) / 2: the difference itself may overflow, that of the halves cannot.
  EVENKEEL_MATH template <class X>
  EVENKEEL_HD X half_centred(const X& x) const {
    using A = typename Lanes<V>::Scalar;
    const X half = x * A(0.5);
    const V mean_half = mean * A(0.5), rest_half = rest * A(0.5);
    const X near = half - mean_half;
    return near - rest_half;
  }
};

/// LayerNorm variant at gate 0: the mean alone. Parameters scale_weight, bias.
template <class A>
struct CentredForward {
  using Scalar = A;
  static constexpr int sums = 1, feature_sums = 0, outputs = 1;
  static constexpr bool averages_shift = true;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {
    V shift;
  };
  template <class V>
  using Row = MeanRow<V>;

  A length, twice_scale;

  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> start(const Known<S>&, const S& first) const {
    return {first};
  }
  EVENKEEL_MATH template <class V, class S, class C, class B>
  EVENKEEL_HD void accumulate(Values<V, 1>& s, Values<V, 0>&, const Start<S>& start, const V& x, const C&,
                              const B&) const {
    s[0] += x - start.shift;
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, 1>& s, const Start<S>& start) const {
    // Not a product: that would be contracted with the sums it goes into in some loops and not in others, and rows
    // would change bits with their place in the batch (seen with g++ 12 at -O2).
    const S delta = s[0] / length;
    const StandardizeRow<S> row = standardize_row(start.shift, delta, delta);
    return {row.mean, row.rest};
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD bool ready(const Start<S>&) const {
    return true;
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD bool settled(const Start<S>&, const Row<S>& row) const {
    return finite(row.mean) && finite(row.rest);
  }
  template <class... P>
  EVENKEEL_HD static double magnitude(double x, const P&...) {
    return x;
  }
  auto careful(double largest, std::int64_t count) const {
    const double row_scale = careful_scale<A>(largest, 0);
    using Wide = CentredForward<double>;
    return CarefulForward<Wide>{Wide{static_cast<double>(count), twice_scale / row_scale}, row_scale};
  }
  /// The row's values as the data have them, split for A.
  Row<double> unscaled(const Row<double>& row, double row_scale) const {
    const double mean = static_cast<double>(static_cast<A>(row.mean));
    return {mean / row_scale, (row.mean - mean + row.rest) / row_scale};
  }
  EVENKEEL_MATH template <class V, class S, class C, class B>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row<S>& row, const V& x, const C& scale_weight, const B& bias) const {
    const V scaled = row.half_centred(x) * twice_scale;
    y[0] = AffineMath<false, None>::apply(scaled, scale_weight, bias);
  }
};

/// Inputs dy, x, dsum; parameter scale_weight; output dx.
template <class A, class Terms>
struct CentredBackward {
  using Scalar = A;
  static constexpr int sums = 1, feature_sums = Terms::count, outputs = 1;
  template <class V>
  using Known = MeanRow<V>;
  template <class V>
  using Start = MeanRow<V>;
  template <class V>
  struct Row {
    V mean_flow;
  };

  A inv_n, scale;  // scale: 0 for rows of one element, whose gradients are 0

  EVENKEEL_MATH template <class S, class R>
  EVENKEEL_HD Start<S> start(const Known<S>& known, const S&, const S&, const R&) const {
    return known;
  }
  EVENKEEL_MATH template <class V, class S, class R, class C>
  EVENKEEL_HD void accumulate(Values<V, 1>& s, Values<V, Terms::count>& terms, const Start<S>& start, const V& dy,
                              const V& x, const R&, const C& scale_weight) const {
    s[0] += flow(dy, scale_weight);
    const V half = start.half_centred(x);
    Terms::set(terms, dy, half, half, A(0), A(2 * scale));
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, 1>& s, const Start<S>&) const {
    return {s[0] * inv_n};
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD bool ready(const Start<S>&) const {
    return true;
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD bool settled(const Start<S>&, const Row<S>& row) const {
    return finite(row.mean_flow);
  }
  template <class... P>
  EVENKEEL_HD static double magnitude(double, double x, const P&...) {
    return x;
  }
  auto careful(double, std::int64_t length) const {
    using Wide = CentredBackward<double, Terms>;
    return CarefulBackward<Wide>{Wide{1 / static_cast<double>(length), scale}, 1};
  }
  Known<double> rescaled(const Known<double>& known, double row_scale) const {
    return {known.mean * row_scale, known.rest * row_scale};
  }
  EVENKEEL_MATH template <class V, class S, class R, class C>
  EVENKEEL_HD void write(Values<V, 1>& dx, const Row<S>& row, const V& dy, const V&, const R& dsum,
                         const C& scale_weight) const {
    const V centred = flow(dy, scale_weight) - row.mean_flow;
    dx[0] = plus(centred, dsum);
  }

 private:
  EVENKEEL_MATH template <class V, class C>
  EVENKEEL_HD V flow(const V& dy, const C& scale_weight) const {
    const V scaled = dy * scale;
    return AffineMath<false, None>::pull(scaled, scale_weight);
  }
};

}  // namespace evenkeel::detail
