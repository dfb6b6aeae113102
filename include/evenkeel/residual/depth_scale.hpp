/// Depth scale: y = x + f(x)/sqrt(N), N the number of branches in the network. A stream of N branches of unit variance
/// then ends with variance 2, whatever N is.
#pragma once

#include "evenkeel/residual/residual_block.hpp"

#include <cmath>
#include <utility>

namespace evenkeel::inline EVENKEEL_ISA {

/// The factor 1/sqrt(N) of N branches, of which a transformer has two in each layer. Throws ShapeError below 1.
inline double depth_scale(Index branches) {
  if (branches < 1) detail::throw_shape_error("depth_scale", "there are ", branches, " branches, expected 1 or more");
  return 1 / std::sqrt(static_cast<double>(branches));
}

/// T is the scalar of the activations; see ResidualBlock for the sublayer f, and for one behind a norm:
/// ResidualBlock(norm, ConstantJoin<float, double>(depth_scale(branches)), f).
///
///     ek::DepthScale<float, Attention> block(Attention(width), 2 * layers);
template <class T, class Sublayer, class Storage = HostStorage>
class DepthScale : public ResidualBlock<None, ConstantJoin<T, double>, Sublayer, T, Storage> {
 public:
  DepthScale(Sublayer block_sublayer, Index branches)
      : ResidualBlock<None, ConstantJoin<T, double>, Sublayer, T, Storage>(
            none, ConstantJoin<T, double>(depth_scale(branches)), std::move(block_sublayer)) {}
};

}  // namespace evenkeel::inline EVENKEEL_ISA
