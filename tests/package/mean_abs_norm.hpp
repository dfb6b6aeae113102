#pragma once

// Signatures on one line where they fit, so that the whole norm can be seen at once.
// clang-format off
// [add-a-norm]
// rstd = 1/(mean(|x|) + eps),  xhat = x * rstd,  y = xhat * weight (+ bias)
// h = dy * weight,  dx = rstd * (h - sign(x) * mean(h * xhat)),  dweight = sum over rows of dy * xhat
#include "evenkeel/norms/row_norm.hpp"

namespace mean_abs {
using namespace evenkeel::detail;

template <class V> struct Scale { V rstd; };  // of a row: what the forward saves and the backward knows
template <class V> struct Nothing {};

template <class A, class Affine> struct Forward {  // A is the accumulator type; V and S are A or packs of A
  using Scalar = A;
  static constexpr int sums = 1, feature_sums = 0, outputs = 1;
  template <class V> using Known = Nothing<V>;
  template <class V> using Start = Nothing<V>;
  template <class V> using Row = Scale<V>;
  A inv_n, eps;
  EVENKEEL_MATH template <class S> EVENKEEL_HD Nothing<S> start(const Nothing<S>&, const S&) const { return {}; }
  EVENKEEL_MATH template <class V, class S, class W, class B> EVENKEEL_HD void accumulate(
      Values<V, 1>& s, Values<V, 0>&, const Nothing<S>&, const V& x, const W&, const B&) const { s[0] += max(x, V(-x)); }
  EVENKEEL_MATH template <class S> EVENKEEL_HD Scale<S> finish(const Values<S, 1>& s, const Nothing<S>&) const {
    return {splat<S>(1) / S(s[0] * inv_n + eps)};
  }
  EVENKEEL_MATH template <class V, class S, class W, class B> EVENKEEL_HD void write(
      Values<V, 1>& y, const Scale<S>& row, const V& x, const W& weight, const B& bias) const {
    y[0] = Affine::apply(V(x * row.rstd), weight, bias);
  }
};

template <class A, class Affine, class Terms> struct Backward {
  using Scalar = A;
  static constexpr int sums = 1, feature_sums = Terms::count, outputs = 1;
  template <class V> using Known = Scale<V>;
  template <class V> using Start = Scale<V>;
  template <class V> struct Row { V rstd, mean_hxhat; };
  A inv_n;
  EVENKEEL_MATH template <class S, class R> EVENKEEL_HD Scale<S> start(
      const Scale<S>& known, const S&, const S&, const R&) const { return known; }
  EVENKEEL_MATH template <class V, class S, class R, class W> EVENKEEL_HD void accumulate(
      Values<V, 1>& s, Values<V, Terms::count>& terms, const Scale<S>& row, const V& dy, const V& x, const R&,
      const W& weight) const {
    const V xhat = x * row.rstd;
    s[0] += Affine::pull(dy, weight) * xhat;
    Terms::set(terms, dy, xhat);
  }
  EVENKEEL_MATH template <class S> EVENKEEL_HD Row<S> finish(const Values<S, 1>& s, const Scale<S>& row) const {
    return {row.rstd, s[0] * inv_n};
  }
  EVENKEEL_MATH template <class V, class S, class R, class W> EVENKEEL_HD void write(
      Values<V, 1>& dx, const Row<S>& row, const V& dy, const V& x, const R& dsum, const W& weight) const {
    const V zero = splat<V>(0), sign = select_less(zero, x, splat<V>(1), select_less(x, zero, splat<V>(-1), zero));
    dx[0] = plus(V((Affine::pull(dy, weight) - sign * row.mean_hxhat) * row.rstd), dsum);
  }
};
}  // namespace mean_abs
// [/add-a-norm]

// [the-layer]
struct MeanAbsOptions {
  double eps = 1e-6;
  evenkeel::Axes axis = {};
  bool unit_offset = false;
  evenkeel::Rounding rounding = evenkeel::Rounding::round_once;
};
struct MeanAbsTraits {
  using Options = MeanAbsOptions;
  template <class A, class Storage> using Saved = evenkeel::detail::SavedRows<A, 1, Storage>;
  struct Math {
    template <class A, class Affine> using Forward = mean_abs::Forward<A, Affine>;
    template <class A, class Affine, class Terms> using Backward = mean_abs::Backward<A, Affine, Terms>;
  };
  static constexpr const char *forward = "MeanAbsNorm::forward", *backward = "MeanAbsNorm::backward",
                              *add_forward = "MeanAbsNorm::add_forward", *add_backward = "MeanAbsNorm::add_backward",
                              *forward_add = "MeanAbsNorm::forward_add";
  static constexpr evenkeel::Affine affine = evenkeel::Affine::weight;
};
template <class T, class Storage = evenkeel::HostStorage>
using MeanAbsNorm = evenkeel::RowNormLayer<T, MeanAbsTraits, Storage>;
// [/the-layer]
// clang-format on
