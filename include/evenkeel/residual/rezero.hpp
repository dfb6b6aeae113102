/// ReZero residual block: y = x + alpha * f(x), one learned scalar alpha that starts at 0. T. Bachlechner et al.,
/// "ReZero is All You Need", 2020, equation 1.
#pragma once

#include "evenkeel/detail/activation.hpp"
#include "evenkeel/parameter.hpp"
#include "evenkeel/residual/residual_sum.hpp"

#include <utility>

namespace evenkeel::inline EVENKEEL_ISA {

/// T is the scalar of the activations and of alpha; the sublayer f is any type that PreNorm takes.
///
///     ek::ReZero<float, Attention> block(Attention(width));
template <class T, class Sublayer>
class ReZero {
 public:
  explicit ReZero(Sublayer block_sublayer) : sublayer(std::move(block_sublayer)) {}

  /// y may not be x: the backward needs x.
  template <class Device, class X, class Y>
  void forward(const Device& device, const X& x, Y&& y) {
    detail::require_apart("ReZero::forward", x, y);
    auto branch = branch_.like(x);
    sublayer.forward(device, x, branch);
    residual_sum(device, x, branch, y, scale());
  }

  /// dx is written and may be dy, parameter gradients are accumulated. x is the forward's. Once for each forward.
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device& device, const Dy& dy, const X& x, Dx&& dx) {
    auto branch = branch_.like(x);
    auto dbranch = dbranch_.like(x);
    detail::RowArguments arguments("ReZero::backward");
    const auto dy_rows = arguments.reference("dy", dy, detail::contiguous_axis<Dy>());
    const auto f_rows = arguments.input("x", branch);
    const auto out = arguments.output("dx", dbranch);
    const Index rows = arguments.grid().rows();
    row_sums_.reserve(rows);
    detail::row_pass(
        device, detail::RowPass{detail::ResidualSumBackward<A>{scale()}, arguments.grid(), std::tuple(dy_rows, f_rows),
                                std::tuple(), std::tuple(out), none, row_sums_.data()});
    const A* const shares = row_sums_.data();
    detail::put_total(device, shares, rows, GradientMode::accumulate, alpha.gradient());
    sublayer.backward(device, dbranch, x, branch);  // not yet to dx, which may be dy
    residual_sum(device, dy, branch, dx);
  }

  template <class F>
  void for_each_parameter(F&& f) {
    f(alpha.ref());
    sublayer.for_each_parameter(f);
  }

  Parameter<T> alpha{"alpha", 1, false};
  Sublayer sublayer;

 private:
  using A = accumulator_t<T>;
  A scale() const { return static_cast<A>(*alpha.value()); }

  detail::Activation<T> branch_, dbranch_;  // (the shape of x); branch_ serves the backward for its output, too
  HostBuffer<A> row_sums_;                  // (rows)
};

}  // namespace evenkeel::inline EVENKEEL_ISA
