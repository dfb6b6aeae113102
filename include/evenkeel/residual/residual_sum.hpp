/// The sum at the end of a residual branch, y = x + scale * f, and its gradients: one math for every kind of scale.
#pragma once

#include "evenkeel/detail/arguments.hpp"
#include "evenkeel/detail/row_pass_cpu.hpp"

#include <tuple>
#include <type_traits>

namespace evenkeel {
namespace detail {

/// What stands between a branch and the sum: a constant, a learned scalar, a weight for each feature, a draw for each
/// sample. Each is None where a block has none of it.
template <class Scale>
struct BranchScale {
  Scale constant;
  float drop = 0;  // a sample is dropped where its draw is below

  EVENKEEL_MATH template <class V, class Alpha, class Draw, class Weight>
  EVENKEEL_HD V apply(const V& f, const Alpha& alpha, const Draw& draw, const Weight& weight) const {
    const V scaled = times(times(times(f, constant), alpha), weight);
    return kept(scaled, draw);
  }
  /// f times all but what is learned.
  EVENKEEL_MATH template <class V, class Draw>
  EVENKEEL_HD V apply_constants(const V& f, const Draw& draw) const {
    return kept(V(times(f, constant)), draw);
  }

 private:
  EVENKEEL_MATH template <class V, class Draw>
  EVENKEEL_HD V kept(const V& f, const Draw& draw) const {
    if constexpr (is_none_v<Draw>)
      return f;
    else
      return select_less(V(draw), splat<V>(drop), splat<V>(0), f);
  }
};

/// What both directions have in common: nothing is known of a row beforehand.
struct WithoutStatistics {
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};

  EVENKEEL_MATH template <class S, class... I>
  EVENKEEL_HD Start<S> start(const Known<S>&, const I&...) const {
    return {};
  }
};

/// Inputs f, x, alpha, draw; parameter weight; y = x + scale * f. Without x, y = scale * f. (Drivers take the first
/// input for one that is there.)
template <class A, class Scale>
struct ResidualSum : WithoutStatistics {
  using Scalar = A;
  static constexpr int sums = 0, feature_sums = 0, outputs = 1;
  template <class V>
  struct Row {};

  BranchScale<Scale> scale;

  EVENKEEL_MATH template <class V, class S, class... I>
  EVENKEEL_HD void accumulate(Values<V, 0>&, Values<V, 0>&, const Start<S>&, const I&...) const {}
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, 0>&, const Start<S>&) const {
    return {};
  }
  EVENKEEL_MATH template <class V, class S, class X, class Alpha, class Draw, class W>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row<S>&, const V& f, const X& x, const Alpha& alpha, const Draw& draw,
                         const W& weight) const {
    y[0] = plus(scale.apply(f, alpha, draw, weight), x);
  }
};

/// Inputs dy, f, alpha, draw; parameter weight; df = scale * dy. Where alpha is learned, its row's share of the
/// gradient is kept; where weight is, its gradient is the sum over the rows.
template <class A, class Scale, bool Dalpha, bool Dweight>
struct ResidualSumBackward : WithoutStatistics {
  static_assert(!(Dalpha && Dweight), "evenkeel: a branch has one learned scale");
  using Scalar = A;
  static constexpr int sums = Dalpha, feature_sums = Dweight, outputs = 1;
  template <class V>
  struct Share {
    V dalpha;
  };
  template <class V>
  struct NoShare {};
  template <class V>
  using Row = std::conditional_t<Dalpha, Share<V>, NoShare<V>>;

  BranchScale<Scale> scale;

  EVENKEEL_MATH template <class V, class S, class F, class Alpha, class Draw, class W>
  EVENKEEL_HD void accumulate(Values<V, sums>& s, Values<V, feature_sums>& terms, const Start<S>&, const V& dy,
                              const F& f, const Alpha&, const Draw& draw, const W&) const {
    if constexpr (Dalpha) s[0] += scale.apply_constants(dy, draw) * f;
    if constexpr (Dweight) terms[0] = scale.apply_constants(dy, draw) * f;
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, sums>& s, const Start<S>&) const {
    if constexpr (Dalpha)
      return {s[0]};
    else
      return {};
  }
  EVENKEEL_MATH template <class V, class R, class F, class Alpha, class Draw, class W>  // Row<S> is chosen, not deduced
  EVENKEEL_HD void write(Values<V, 1>& df, const R&, const V& dy, const F&, const Alpha& alpha, const Draw& draw,
                         const W& weight) const {
    df[0] = scale.apply(dy, alpha, draw, weight);
  }
};

/// Rows are only a way to walk over the tensor here, so any axis will do: the last one, or the first of column-major
/// tensors.
template <class X>
Axes contiguous_axis() {
  if constexpr (is_axis_view<X>)
    return {};
  else if constexpr (EigenTensor<X>)
    return static_cast<int>(X::Layout) == static_cast<int>(Eigen::RowMajor) ? -1 : 0;
  else
    return X::IsVectorAtCompileTime || X::IsRowMajor ? -1 : 0;
}

/// One number in the device's memory as an input of all rows.
template <class T>
MaskRows<const T> one_for_all(const T* value) {
  return {{value, {0, 0, 0}, 0}};
}
inline None one_for_all(None) { return none; }

inline namespace EVENKEEL_ISA {

/// y = x + constant * alpha * f. x may be none, then y = constant * alpha * f; alpha is a pointer or none.
template <class Device, class X, class F, class Y, class Scale, class Alpha = None>
void scaled_sum(const char* function, const Device& device, const X& x, const F& f, Y& y, Scale constant,
                const Alpha& alpha = {}) {
  require_device<Device>();
  using A = accumulator_t<scalar_t<const F>>;
  RowArguments arguments(function);
  const auto x_rows = [&] {
    if constexpr (is_none_v<X>)
      return none;
    else
      return arguments.reference("x", x, contiguous_axis<X>());
  }();
  const auto f_rows = [&] {
    if constexpr (is_none_v<X>)
      return arguments.reference("f", f, contiguous_axis<F>());
    else
      return arguments.input("f", f);
  }();
  const auto out = arguments.output("y", y);
  row_pass(device, RowPass{ResidualSum<A, Scale>{{}, {constant}}, arguments.grid(),
                           std::tuple(f_rows, x_rows, one_for_all(alpha), none), std::tuple(none), std::tuple(out)});
}

}  // namespace EVENKEEL_ISA
}  // namespace detail

inline namespace EVENKEEL_ISA {

/// y = x + scale * f, element by element. x, f, y: one shape; y may be x or f. Throws ShapeError before any work.
template <class Device, class X, class F, class Y>
void residual_sum(const Device& device, const X& x, const F& f, Y&& y,
                  accumulator_t<detail::scalar_t<const X>> scale = 1) {
  detail::scaled_sum("residual_sum", device, x, f, y, scale);
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
