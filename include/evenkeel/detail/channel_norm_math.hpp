/// The math of norms that keep channels and standardize cells, or groups of cells: BatchNorm, GroupNorm, InstanceNorm,
/// with activation, residual and mask where a call has them. No Eigen, no CUDA header.
///
///     forward:   u = xhat * weight + bias (+ residual),  y = act(u)
///     backward:  g = dy * act'(u),  h = g * weight,  dx = rstd * (h - mean(h) - xhat * mean(h * xhat))
///
/// A mask has 1 where an element counts and 0 where it is padding: there it enters no sum, and y and dx are 0, whatever
/// x holds. Inputs that a call leaves out arrive as None.
#pragma once

#include "evenkeel/activations.hpp"
#include "evenkeel/detail/standardize_math.hpp"

#include <cstdint>

namespace evenkeel::detail {

/// Inputs x, mask. Sums to the moments of a cell.
template <class A, bool Masked>
struct ChannelMoments {
  using Scalar = A;
  static constexpr int sums = Masked ? 3 : 2, feature_sums = 0, outputs = 0, scaled_input = 0;
  static constexpr bool averages_shift = !Masked;  // padding among them must not be seen
  template <class V>
  struct Known {};
  template <class V>
  struct Start {
    V shift;
  };
  template <class V>
  struct Row {
    V count, shift, delta, M2;
  };

  std::int64_t cell_count;  // where there is no mask

  auto wide() const { return ChannelMoments<double, Masked>{cell_count}; }
  EVENKEEL_MATH template <class S, class Mask>
  EVENKEEL_HD Start<S> start(const Known<S>&, const S& first, const Mask& mask) const {
    return {where(mask, first)};
  }
  EVENKEEL_MATH template <class V, class S, class Mask>
  EVENKEEL_HD void accumulate(Values<V, sums>& s, Values<V, 0>&, const Start<S>& start, const V& x,
                              const Mask& mask) const {
    const V shifted = where(mask, V(x - start.shift));
    s[0] += shifted;
    s[1] += shifted * shifted;
    if constexpr (Masked) s[2] += mask;
  }
  /// sum / count, 0 of nothing. A count that is known needs no division for each cell.
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD S mean_of(const S& sum, const S& count) const {
    if constexpr (Masked)
      return select_less(splat<S>(0), count, S(sum / count), splat<S>(0));
    else
      return sum * splat<S>(cell_count > 0 ? 1 / static_cast<typename Lanes<S>::Scalar>(cell_count) : 0);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD S count_of(const Values<S, sums>& s) const {
    if constexpr (Masked)
      return s[2];
    else
      return splat<S>(static_cast<typename Lanes<S>::Scalar>(cell_count));
  }
  EVENKEEL_MATH template <class S, class Q>
  EVENKEEL_HD Row<S> finish(const Values<S, sums>& s, const Start<Q>& start) const {
    const S zero = splat<S>(0), count = count_of(s), delta = mean_of(s[0], count), M2 = s[1] - delta * s[0];
    return {count, static_cast<S>(start.shift), delta, max(M2, zero)};
  }
  /// As in StandardizeForward: a cell whose first element lies far out starts over from its mean. So does a cell that
  /// begins with padding, whose shift is 0.
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<A> restart(const Start<A>& start, const Row<S>& row) const {
    const S square = row.delta * row.delta * row.count;
    return {square <= row.M2 ? start.shift : static_cast<A>(row.shift + row.delta)};
  }
  /// Whether none of a pack's cells does. Perhaps not where all values of one are equal.
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD static bool settled(const Row<S>& row) {
    return all_less(S(row.delta * row.delta * row.count), row.M2);
  }
  /// On a device many elements make the start: the sum and the number of those that count.
  template <class Mask>
  EVENKEEL_HD static void accumulate_first(Values<A, 2>& first, const A& x, const Mask& mask) {
    first[0] += where(mask, x);
    if constexpr (Masked)
      first[1] += mask;
    else
      first[1] += A(1);
  }
  EVENKEEL_HD static Start<A> start_from(const Values<A, 2>& first) {
    return {first[1] > A(0) ? first[0] / first[1] : A(0)};
  }
};

/// Inputs x, residual, mask; parameters weight, bias; output y.
template <class A, class Activation>
struct ChannelForward {
  using Scalar = A;
  static constexpr int sums = 0, feature_sums = 0, outputs = 1, scaled_input = 0;
  static constexpr bool scaled_output = false;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  using Row = StandardizeRow<V>;

  auto wide() const { return ChannelForward<double, Activation>{}; }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD static bool ready(const Row<S>& row) {
    return in_range(row.rstd);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD static Row<S> rescaled(const Row<S>& row, S scale) {
    return {row.mean * scale, row.rest * scale, row.rstd / scale};
  }
  EVENKEEL_MATH template <class V, class S, class R, class Mask, class W, class B>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row<S>& row, const V& x, const R& residual, const Mask& mask,
                         const W& weight, const B& bias) const {
    const V affine = AffineMath<false, None>::apply(row.xhat(x), weight, bias);
    y[0] = where(mask, Activation::value(V(plus(affine, residual))));
  }
};

/// The gradient with respect to u, from dy.
EVENKEEL_MATH template <class Activation, class V, class R, class Mask, class W, class B>
EVENKEEL_HD V channel_gradient(const V& dy, const V& xhat, const R& residual, const Mask& mask, const W& weight,
                               const B& bias) {
  const V affine = AffineMath<false, None>::apply(xhat, weight, bias);
  return where(mask, Activation::pull(dy, V(plus(affine, residual))));
}

/// Inputs dy, x, residual, mask; parameters weight, bias. The two sums of a cell that a backward needs.
template <class A, class Activation>
struct ChannelGradientSums {
  using Scalar = A;
  static constexpr int sums = 2, feature_sums = 0, outputs = 0, scaled_input = 1;
  template <class V>
  using Known = StandardizeRow<V>;
  template <class V>
  using Start = StandardizeRow<V>;
  template <class V>
  struct Row {
    V g, g_xhat;
  };

  auto wide() const { return ChannelGradientSums<double, Activation>{}; }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD static bool ready(const Start<S>& start) {
    return in_range(start.rstd);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD static bool settled(const Row<S>& row) {
    return finite(row.g) && finite(row.g_xhat);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD static Start<S> rescaled(const Start<S>& row, S scale) {
    return {row.mean * scale, row.rest * scale, row.rstd / scale};
  }
  EVENKEEL_MATH template <class S, class R, class Mask>
  EVENKEEL_HD Start<S> start(const Known<S>& known, const S&, const S&, const R&, const Mask&) const {
    return known;
  }
  EVENKEEL_MATH template <class V, class S, class R, class Mask, class W, class B>
  EVENKEEL_HD void accumulate(Values<V, 2>& s, Values<V, 0>&, const Start<S>& start, const V& dy, const V& x,
                              const R& residual, const Mask& mask, const W& weight, const B& bias) const {
    const V xhat = where(mask, V(start.xhat(x)));
    const V g = channel_gradient<Activation>(dy, xhat, residual, mask, weight, bias);
    s[0] += g;
    s[1] += g * xhat;
  }
  EVENKEEL_MATH template <class S, class Q>
  EVENKEEL_HD Row<S> finish(const Values<S, 2>& s, const Q&) const {
    return {s[0], s[1]};
  }
};

/// Inputs dy, x, residual, mask; parameters weight, bias; outputs dx and, where there is a residual, its gradient.
/// Frozen: the statistics are constants, so both means are left out.
template <class A, class Activation, bool Residual, bool Frozen>
struct ChannelBackward {
  using Scalar = A;
  static constexpr int sums = 0, feature_sums = 0, outputs = Residual ? 2 : 1, scaled_input = 1;
  static constexpr bool scaled_output = true;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  struct Row {
    V mean, rest, rstd, mean_h, mean_hxhat;
  };

  auto wide() const { return ChannelBackward<double, Activation, Residual, Frozen>{}; }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD static bool ready(const Row<S>& row) {
    return in_range(row.rstd);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD static Row<S> rescaled(const Row<S>& row, S scale) {
    return {row.mean * scale, row.rest * scale, row.rstd / scale, row.mean_h, row.mean_hxhat};
  }
  EVENKEEL_MATH template <class V, class S, class R, class Mask, class W, class B>
  EVENKEEL_HD void write(Values<V, outputs>& out, const Row<S>& row, const V& dy, const V& x, const R& residual,
                         const Mask& mask, const W& weight, const B& bias) const {
    const V xhat = where(mask, V(StandardizeRow<S>{row.mean, row.rest, row.rstd}.xhat(x)));
    const V g = channel_gradient<Activation>(dy, xhat, residual, mask, weight, bias);
    const V h = AffineMath<false, None>::pull(g, weight);
    if constexpr (Frozen) {
      out[0] = h * row.rstd;
    } else {
      const V centred = h - row.mean_h;
      const V tangent = centred - xhat * row.mean_hxhat;
      out[0] = where(mask, V(tangent * row.rstd));
    }
    if constexpr (Residual) out[1] = g;
  }
};

/// Running statistics of a channel: what a norm in inference reads in the place of the data's own.
template <class V>
struct RunningRow {
  V mean, var;
};
EVENKEEL_MATH template <class V>
EVENKEEL_HD StandardizeRow<V> frozen_row(const RunningRow<V>& running, typename Lanes<V>::Scalar eps) {
  return {running.mean, splat<V>(0), inverse_root(V(running.var + eps))};
}

/// ChannelForward from running statistics.
template <class A, class Activation>
struct FrozenForward : ChannelForward<A, Activation> {
  template <class V>
  using Stored = RunningRow<V>;

  A eps;

  auto wide() const { return FrozenForward<double, Activation>{{}, eps}; }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD StandardizeRow<S> prepared(const RunningRow<S>& running) const {
    return frozen_row(running, eps);
  }
};

/// ChannelGradientSums from running statistics.
template <class A, class Activation>
struct FrozenGradientSums : ChannelGradientSums<A, Activation> {
  template <class V>
  using Known = RunningRow<V>;

  A eps;

  auto wide() const { return FrozenGradientSums<double, Activation>{{}, eps}; }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD static RunningRow<S> rescaled(const RunningRow<S>& running, S) {
    return running;
  }
  EVENKEEL_MATH template <class S, class R, class Mask>
  EVENKEEL_HD StandardizeRow<S> start(const RunningRow<S>& known, const S&, const S&, const R&, const Mask&) const {
    return frozen_row(known, eps);
  }
};

/// ChannelBackward from running statistics, which are constants.
template <class A, class Activation, bool Residual>
struct FrozenBackward : ChannelBackward<A, Activation, Residual, true> {
  template <class V>
  using Stored = RunningRow<V>;

  A eps;

  auto wide() const { return FrozenBackward<double, Activation, Residual>{{}, eps}; }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD auto prepared(const RunningRow<S>& running) const {
    const StandardizeRow<S> row = frozen_row(running, eps);
    return typename FrozenBackward::template Row<S>{row.mean, row.rest, row.rstd, splat<S>(0), splat<S>(0)};
  }
};

}  // namespace evenkeel::detail
