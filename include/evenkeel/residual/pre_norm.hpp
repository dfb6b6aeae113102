/// Pre-norm residual block: y = x + f(norm(x)). R. Xiong et al., "On Layer Normalization in the Transformer
/// Architecture", 2020. A stack of such blocks needs a final norm.
#pragma once

#include "evenkeel/detail/activation.hpp"
#include "evenkeel/residual/residual_sum.hpp"

#include <utility>

namespace evenkeel::inline EVENKEEL_ISA {

/// Composes a norm layer (RmsNorm, LayerNorm or anything with their members) and a sublayer f: any type with
///     forward(device, x, y), backward(device, dy, x, dx), for_each_parameter(f)
/// whose y has the shape and scalar of its x. T is the scalar of the activations.
///
///     ek::PreNorm block(ek::RmsNorm<float>(width), Attention(width));
///     block.forward(device, x, y);
///     block.backward(device, dy, x, dx);
template <class Norm, class Sublayer, class T = typename Norm::Scalar>
class PreNorm {
 public:
  PreNorm(Norm block_norm, Sublayer block_sublayer)
      : norm(std::move(block_norm)), sublayer(std::move(block_sublayer)) {}

  /// y may not be x: the backward needs both.
  template <class Device, class X, class Y>
  void forward(const Device& device, const X& x, Y&& y) {
    detail::require_apart("PreNorm::forward", x, y);
    auto normed = normed_.like(x);
    norm.forward(device, x, normed);
    sublayer.forward(device, normed, y);
    residual_sum(device, x, y, y);
  }

  /// dx is written and may be dy, parameter gradients are accumulated. x is the forward's.
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device& device, const Dy& dy, const X& x, Dx&& dx) {
    auto normed = normed_.like(x);
    auto dnormed = dnormed_.like(x);
    sublayer.backward(device, dy, normed, dnormed);
    norm.add_backward(device, dnormed, dy, x, dx);
  }

  template <class F>
  void for_each_parameter(F&& f) {
    norm.for_each_parameter(f);
    sublayer.for_each_parameter(f);
  }

  Norm norm;
  Sublayer sublayer;

 private:
  detail::Activation<T> normed_, dnormed_;  // (the shape of x)
};

}  // namespace evenkeel::inline EVENKEEL_ISA
