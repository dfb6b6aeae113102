/// Sandwich residual block: y = x + output_norm(f(norm(x))). M. Ding et al., "CogView", 2021, section 2.4; J. Kim et
/// al., "Peri-LN: Revisiting Normalization Layer in the Transformer Architecture", 2025. A stack of such blocks needs a
/// final norm.
#pragma once

#include "evenkeel/residual/output_norm.hpp"

#include <utility>

namespace evenkeel::inline EVENKEEL_ISA {

/// Composes two norm layers and a sublayer f that stands between them; the second norm and the sum are one pass.
///
///     ek::Sandwich block(ek::RmsNorm<float>(width), Attention(width), ek::RmsNorm<float>(width));
template <class Norm, class Sublayer, class LastNorm, class T = typename Norm::Scalar, class Storage = HostStorage>
class Sandwich : public ResidualBlock<Norm, OutputNormJoin<LastNorm>, Sublayer, T, Storage> {
 public:
  Sandwich(Norm block_norm, Sublayer block_sublayer, LastNorm block_output_norm)
      : ResidualBlock<Norm, OutputNormJoin<LastNorm>, Sublayer, T, Storage>(
            std::move(block_norm), OutputNormJoin<LastNorm>(std::move(block_output_norm)), std::move(block_sublayer)) {}
};

/// Peri-LN's name for it.
template <class Norm, class Sublayer, class LastNorm, class T = typename Norm::Scalar, class Storage = HostStorage>
using PeriNorm = Sandwich<Norm, Sublayer, LastNorm, T, Storage>;

}  // namespace evenkeel::inline EVENKEEL_ISA
