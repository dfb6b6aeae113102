/// The sum at the end of a residual branch: y = x + scale * f, and what ReZero's backward needs.
#pragma once

#include "evenkeel/detail/arguments.hpp"
#include "evenkeel/detail/row_pass_cpu.hpp"

#include <tuple>

namespace evenkeel {
namespace detail {

/// y = x + scale * f. Reads each element once and reduces nothing.
template <class A>
struct ResidualSum {
  using Scalar = A;
  static constexpr int sums = 0, feature_sums = 0, outputs = 1;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  struct Row {};

  A scale;

  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> start(const Known<S>&, const S&, const S&) const {
    return {};
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void accumulate(Values<V, 0>&, Values<V, 0>&, const Start<S>&, const V&, const V&) const {}
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, 0>&, const Start<S>&) const {
    return {};
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row<S>&, const V& x, const V& f) const {
    y[0] = x + f * scale;
  }
};

/// df = scale * dy, and per row the sum of dy * f, which is the row's share of the gradient of scale.
template <class A>
struct ResidualSumBackward {
  using Scalar = A;
  static constexpr int sums = 1, feature_sums = 0, outputs = 1;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  struct Row {
    V dscale;
  };

  A scale;

  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> start(const Known<S>&, const S&, const S&) const {
    return {};
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void accumulate(Values<V, 1>& s, Values<V, 0>&, const Start<S>&, const V& dy, const V& f) const {
    s[0] += dy * f;
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, 1>& s, const Start<S>&) const {
    return {s[0]};
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void write(Values<V, 1>& df, const Row<S>&, const V& dy, const V&) const {
    df[0] = dy * scale;
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

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// y = x + scale * f, element by element. x, f, y: one shape; y may be x or f. Throws ShapeError before any work.
template <class Device, class X, class F, class Y>
void residual_sum(const Device& device, const X& x, const F& f, Y&& y,
                  accumulator_t<detail::scalar_t<const X>> scale = 1) {
  detail::RowArguments arguments("residual_sum");
  const auto rows = arguments.reference("x", x, detail::contiguous_axis<X>());
  const auto f_rows = arguments.input("f", f);
  const auto out = arguments.output("y", y);
  detail::row_pass(device, detail::RowPass{detail::ResidualSum<decltype(scale)>{scale}, arguments.grid(),
                                           std::tuple(rows, f_rows), std::tuple(), std::tuple(out)});
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
