#pragma once

// A norm that nobody needs, with everything that a driver allows: two inputs, two weights, two outputs and a row sum
// more than its statistics take. It is written in one header, and no driver knows of it.
//
//     rstd = 1/sqrt(mean((a + b)^2) + eps),  product = a * b * rstd * first,  sum = (a + b) * rstd * second
//     agreement = sum over the row of a * b * first

#include "evenkeel/detail/arguments.hpp"
#include "evenkeel/detail/row_pass_cpu.hpp"

#include <tuple>

namespace toy {

template <class A>
struct ToyMath {
  using Scalar = A;
  static constexpr int sums = 2, feature_sums = 0, outputs = 2;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  struct Row {
    V rstd, agreement;
  };

  A inv_n, eps;

  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> start(const Known<S>&, const S&, const S&) const {
    return {};
  }
  EVENKEEL_MATH template <class V, class S, class W1, class W2>
  EVENKEEL_HD void accumulate(evenkeel::detail::Values<V, 2>& s, evenkeel::detail::Values<V, 0>&, const Start<S>&,
                              const V& a, const V& b, const W1& first, const W2&) const {
    const V sum = a + b;
    const V product = a * b;
    s[0] += sum * sum;
    s[1] += product * first;
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const evenkeel::detail::Values<S, 2>& s, const Start<S>&) const {
    const S root = evenkeel::detail::sqrt(S(s[0] * inv_n + eps));
    return {evenkeel::detail::splat<S>(1) / root, s[1]};
  }
  EVENKEEL_MATH template <class V, class S, class W1, class W2>
  EVENKEEL_HD void write(evenkeel::detail::Values<V, 2>& out, const Row<S>& row, const V& a, const V& b,
                         const W1& first, const W2& second) const {
    out[0] = a * b * row.rstd * first;
    out[1] = (a + b) * row.rstd * second;
  }
};

/// `rows` receives rstd and agreement, (2, rows).
template <class Device, class X, class W, class Y, class A>
void toy_norm(const Device& device, const X& a, const X& b, const W& first, const W& second, Y& product, Y& sum,
              A* rows, double eps, const evenkeel::Axes& axis) {
  using namespace evenkeel::detail;
  RowArguments arguments("toy_norm");
  const auto a_rows = arguments.reference("a", a, axis);
  const auto b_rows = arguments.input("b", b);
  const auto w1 = arguments.parameter("first", first);
  const auto w2 = arguments.parameter("second", second);
  const auto out1 = arguments.output("product", product);
  const auto out2 = arguments.output("sum", sum);
  const RowGrid grid = arguments.grid();
  row_pass(device,
           RowPass{ToyMath<A>{A(1) / static_cast<A>(grid.length), static_cast<A>(eps)}, grid,
                   std::tuple(a_rows, b_rows), std::tuple(w1, w2), std::tuple(out1, out2), evenkeel::none, rows});
}

}  // namespace toy
