/// Residual block with the norm after the branch: y = x + norm(f(x)). Z. Liu et al., "Swin Transformer V2", 2022,
/// section 3.2 (res-post-norm); Team OLMo, "2 OLMo 2 Furious", 2025.
#pragma once

#include "evenkeel/residual/residual_block.hpp"

#include <utility>

namespace evenkeel::inline EVENKEEL_ISA {

/// y = x + output_norm(f), in one pass.
template <class Norm>
struct OutputNormJoin : Join<typename Norm::Scalar> {
  Norm output_norm;

  explicit OutputNormJoin(Norm norm) : output_norm(std::move(norm)) {}

  template <class Device, class X, class F, class Y>
  void join(const Device& device, const X& x, const F& f, Y& y) {
    output_norm.forward_add(device, f, x, y);
  }
  template <class Device, class Dy, class F, class Df>
  void pull(const Device& device, const Dy& dy, const F& f, Df& df) {
    output_norm.backward(device, dy, f, df);
  }
  template <class F>
  void for_each_parameter(F&& f) {
    output_norm.for_each_parameter(f);
  }
  template <class Device, class X>
  void reserve_join(const Device& device, const X& x) {
    detail::reserve_saved(output_norm, device, x);
  }
};

/// Composes a sublayer f and a norm layer: RmsNorm, LayerNorm or anything with their members, forward_add among them.
///
///     ek::OutputNorm block(Attention(width), ek::LayerNorm<float>(width));
template <class Sublayer, class Norm, class T = typename Norm::Scalar, class Storage = HostStorage>
class OutputNorm : public ResidualBlock<None, OutputNormJoin<Norm>, Sublayer, T, Storage> {
 public:
  OutputNorm(Sublayer block_sublayer, Norm block_norm)
      : ResidualBlock<None, OutputNormJoin<Norm>, Sublayer, T, Storage>(
            none, OutputNormJoin<Norm>(std::move(block_norm)), std::move(block_sublayer)) {}
};

}  // namespace evenkeel::inline EVENKEEL_ISA
