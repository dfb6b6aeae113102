/// LayerNorm Scaling: the output of the norm in layer l is multiplied by 1/sqrt(l), l from 1, so that the variance of a
/// pre-norm stream grows slower. W. Sun et al., "The Curse of Depth in Large Language Models", 2025. It is not
/// meant to meet weights that shrink with depth, such as GPT-2's.
///
///     y = scale * norm(x), bias included: a factor in the pass that writes y, no parameter is touched
#pragma once

#include "evenkeel/norms/layer_norm.hpp"
#include "evenkeel/norms/rms_norm.hpp"

#include <cmath>

namespace evenkeel {

/// Options of ScaledLayerNorm.
struct ScaledLayerNormOptions {
  double scale = 1;          ///< what the output is multiplied by: layer_norm_scaling(l)
  double eps = 1e-5;         ///< added to the variance, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = {};            ///< the normalized axis or neighbouring axes
  bool unit_offset = false;  ///< y = scale * (xhat * (1 + weight) + bias)
  Rounding rounding = Rounding::round_once;
};

/// Options of ScaledRmsNorm.
struct ScaledRmsNormOptions {
  double scale = 1;          ///< what the output is multiplied by: layer_norm_scaling(l)
  double eps = 1e-6;         ///< added to the mean square, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = {};            ///< the normalized axis or neighbouring axes
  bool unit_offset = false;  ///< y = scale * xhat * (1 + weight)
  Rounding rounding = Rounding::round_once;
};

namespace detail {

struct ScaledLayerNormLayer : LayerNormLayer {
  using Options = ScaledLayerNormOptions;
  static constexpr const char *forward = "ScaledLayerNorm::forward", *backward = "ScaledLayerNorm::backward",
                              *add_forward = "ScaledLayerNorm::add_forward",
                              *add_backward = "ScaledLayerNorm::add_backward",
                              *forward_add = "ScaledLayerNorm::forward_add";
};
struct ScaledRmsNormLayer : RmsLayer {
  using Options = ScaledRmsNormOptions;
  static constexpr const char *forward = "ScaledRmsNorm::forward", *backward = "ScaledRmsNorm::backward",
                              *add_forward = "ScaledRmsNorm::add_forward",
                              *add_backward = "ScaledRmsNorm::add_backward",
                              *forward_add = "ScaledRmsNorm::forward_add";
};

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// The factor 1/sqrt(l) of layer l, from 1. Throws ShapeError below 1.
inline double layer_norm_scaling(Index layer) {
  if (layer < 1) detail::throw_shape_error("layer_norm_scaling", "layer is ", layer, ", expected 1 or more");
  return 1 / std::sqrt(static_cast<double>(layer));
}

/// LayerNorm and RmsNorm whose output, bias included, is multiplied by a constant: members as theirs, blocks take them.
///
///     ek::PreNorm block(ek::ScaledRmsNorm<float>(width, {.scale = ek::layer_norm_scaling(l)}), Attention(width));
template <class T, class Storage = HostStorage>
using ScaledLayerNorm = RowNormLayer<T, detail::ScaledLayerNormLayer, Storage>;
/// See ScaledLayerNorm.
template <class T, class Storage = HostStorage>
using ScaledRmsNorm = RowNormLayer<T, detail::ScaledRmsNormLayer, Storage>;

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
