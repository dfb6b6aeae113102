/// Pre-norm residual block: y = x + f(norm(x)). R. Xiong et al., "On Layer Normalization in the Transformer
/// Architecture", 2020. A stack of such blocks needs a final norm.
#pragma once

#include "evenkeel/residual/residual_block.hpp"

#include <utility>

namespace evenkeel::inline EVENKEEL_ISA {

/// Composes a norm layer (RmsNorm, LayerNorm or anything with their members) and a sublayer: see ResidualBlock.
///
///     ek::PreNorm block(ek::RmsNorm<float>(width), Attention(width));
///     block.forward(device, x, y);
///     block.backward(device, dy, x, dx);
template <class Norm, class Sublayer, class T = typename Norm::Scalar, class Storage = HostStorage>
class PreNorm : public ResidualBlock<Norm, ConstantJoin<T>, Sublayer, T, Storage> {
 public:
  PreNorm(Norm block_norm, Sublayer block_sublayer)
      : ResidualBlock<Norm, ConstantJoin<T>, Sublayer, T, Storage>(std::move(block_norm), ConstantJoin<T>(),
                                                                   std::move(block_sublayer)) {}
};

}  // namespace evenkeel::inline EVENKEEL_ISA
