/// Other systems' defaults, each under one name: `ek::rms_norm(device, x, weight, y, saved, ek::Llama::rms_norm);`
///
/// The same word means different things in them: eps, the sign of momentum, which variance is tracked, when a normalized
/// value is rounded, whether the weight starts at 0. Options are plain structs, so a copy may change what is left.
#pragma once

#include "evenkeel/norms/batch_norm.hpp"
#include "evenkeel/norms/group_norm.hpp"
#include "evenkeel/norms/instance_norm.hpp"
#include "evenkeel/norms/layer_norm.hpp"
#include "evenkeel/norms/rms_norm.hpp"

namespace evenkeel {

/// PyTorch's torch.nn. Its RMSNorm without eps takes the machine epsilon of the computing type.
struct Torch {
  static constexpr LayerNormOptions layer_norm{.eps = 1e-5};
  static constexpr RmsNormOptions rms_norm{.eps = machine_epsilon};
  static constexpr BatchNormOptions batch_norm{.eps = 1e-5, .axis = 1};
  static constexpr RunningOptions running{.momentum = NewWeight{0.1}, .variance = RunningVariance::unbiased};
  static constexpr InstanceNormOptions instance_norm{.eps = 1e-5, .axis = 1};
  static constexpr GroupNormOptions group_norm(Index groups) { return {.groups = groups, .eps = 1e-5, .axis = 1}; }
};

/// keras.layers: channels last, eps 1e-3, momentum is the weight of the old value, the biased variance is tracked.
struct Keras {
  static constexpr LayerNormOptions layer_norm{.eps = 1e-3};
  static constexpr RmsNormOptions rms_norm{.eps = 1e-6};
  static constexpr BatchNormOptions batch_norm{.eps = 1e-3, .axis = -1};
  static constexpr RunningOptions running{.momentum = OldWeight{0.99}, .variance = RunningVariance::biased};
  static constexpr GroupNormOptions group_norm(Index groups = 32) {
    return {.groups = groups, .eps = 1e-3, .axis = -1};
  }
};

/// Llama and its descendants (Mistral, Qwen): xhat is rounded to the data type before the weight.
struct Llama {
  static constexpr RmsNormOptions rms_norm{.eps = 1e-6, .rounding = Rounding::round_normalized};
};

/// Gemma: y = xhat * (1 + weight), formed in float, rounded once; the weight starts at 0.
struct Gemma {
  static constexpr RmsNormOptions rms_norm{.eps = 1e-6, .unit_offset = true, .rounding = Rounding::round_once};
};

}  // namespace evenkeel
