/// DeepNorm residual block: y = norm(alpha * x + f(x)), alpha above 1 by the depth of the network. H. Wang et al.,
/// "DeepNet: Scaling Transformers to 1,000 Layers", 2022, section 2 and figure 2.
#pragma once

#include "evenkeel/residual/post_norm.hpp"

#include <utility>

namespace evenkeel::inline EVENKEEL_ISA {

/// Composes a norm layer and a sublayer f, as PostNorm does; alpha, a constant, stands in `stream_scale`. Where it is 1
/// this is PostNorm, bit for bit. N counts layers, of two branches each: alpha = (2N)^(1/4) in a stack of N encoder or
/// decoder layers, and the weights of f start smaller to match.
///
///     ek::DeepNorm block(ek::LayerNorm<float>(width), Attention(width), std::pow(2.0 * layers, 0.25));
template <class Norm, class Sublayer, class T = typename Norm::Scalar, class Storage = HostStorage>
class DeepNorm : public ResidualBlock<None, SumNormJoin<Norm, double>, Sublayer, T, Storage> {
 public:
  DeepNorm(Norm block_norm, Sublayer block_sublayer, double alpha)
      : ResidualBlock<None, SumNormJoin<Norm, double>, Sublayer, T, Storage>(
            none, SumNormJoin<Norm, double>(std::move(block_norm), alpha), std::move(block_sublayer)) {}
};

}  // namespace evenkeel::inline EVENKEEL_ISA
