/// Post-norm residual block: y = norm(x + f(x)). A. Vaswani et al., "Attention Is All You Need", 2017, section 3.1.
#pragma once

#include "evenkeel/detail/activation.hpp"
#include "evenkeel/residual/residual_sum.hpp"

#include <utility>

namespace evenkeel::inline EVENKEEL_ISA {

/// Composes a norm layer and a sublayer f, as PreNorm does. The sum and its norm are one pass over the data.
///
///     ek::PostNorm block(ek::LayerNorm<float>(width), Attention(width));
template <class Norm, class Sublayer, class T = typename Norm::Scalar>
class PostNorm {
 public:
  PostNorm(Norm block_norm, Sublayer block_sublayer)
      : norm(std::move(block_norm)), sublayer(std::move(block_sublayer)) {}

  /// y may not be x: the backward needs x.
  template <class Device, class X, class Y>
  void forward(const Device& device, const X& x, Y&& y) {
    detail::require_apart("PostNorm::forward", x, y);
    auto branch = branch_.like(x);
    auto sum = sum_.like(x);
    sublayer.forward(device, x, branch);
    norm.add_forward(device, x, branch, sum, y);
  }

  /// dx is written and may be dy, parameter gradients are accumulated. x is the forward's. Once for each forward.
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device& device, const Dy& dy, const X& x, Dx&& dx) {
    auto dsum = branch_.like(x);
    norm.add_backward(device, dy, none, sum_.like(x), dsum);
    sublayer.backward(device, dsum, x, dx);
    residual_sum(device, dsum, dx, dx);
  }

  template <class F>
  void for_each_parameter(F&& f) {
    sublayer.for_each_parameter(f);
    norm.for_each_parameter(f);
  }

  Norm norm;
  Sublayer sublayer;

 private:
  detail::Activation<T> branch_, sum_;  // (the shape of x); branch_ serves the backward as the gradient of the sum
};

}  // namespace evenkeel::inline EVENKEEL_ISA
