/// The initialization that a depth or width recipe builds on.
#pragma once

#include "evenkeel/init/plan.hpp"

namespace evenkeel {

/// Where the weights of a plan start from, before the recipe scales them.
enum class BaseInit {
  recipe,   ///< the recipe's own, the only one for recipes that say it themselves
  xavier,   ///< Xavier uniform; embeddings N(0, width^(-1/2)), biases 0
  kaiming,  ///< Kaiming normal, biases 0; for residual nets: what follows the matrices of a transformer is no ReLU
  torch,    ///< U(-1/sqrt(fan_in), 1/sqrt(fan_in)), biases too; embeddings N(0, 1)
  normal    ///< N(0, std), embeddings too; biases 0
};

namespace detail {

/// The numbers that a base initialization is made with.
struct BaseNumbers {
  double std = 0.02;
  double gain = relu_gain;  // of kaiming
  FanMode mode = FanMode::in;
  double width = 1;  // of embeddings, at the base
};

inline StartRule base_start(BaseInit base, Role role, const BaseNumbers& numbers) {
  const bool embedding = role == Role::embedding || role == Role::positional;
  if (role == Role::bias)
    return base == BaseInit::torch ? StartRule{.draw = Draw::torch_uniform, .number = 1}
                                   : StartRule{.draw = Draw::constant};
  if (base == BaseInit::normal) return {.draw = Draw::normal, .number = numbers.std};
  if (base == BaseInit::torch)
    return embedding ? StartRule{.draw = Draw::normal, .number = 1}
                     : StartRule{.draw = Draw::torch_uniform, .number = 1};
  if (embedding) return {.draw = Draw::normal, .number = 1 / std::sqrt(numbers.width)};
  if (base == BaseInit::kaiming) {
    // What follows the last layer is no activation.
    const double gain = role == Role::classifier ? linear_gain : numbers.gain;
    return {.draw = Draw::kaiming_normal, .number = gain, .mode = numbers.mode};
  }
  return {.draw = Draw::xavier_uniform, .number = 1};
}

inline StartRule constant_start(double value) { return {.draw = Draw::constant, .number = value}; }

/// Throws ShapeError where a recipe with weights of its own is given others.
inline void require_base(const char* function, const std::string& recipe, BaseInit base, bool free) {
  if (!free && base != BaseInit::recipe)
    throw_shape_error(function, recipe, " brings its own initialization, expected base to be BaseInit::recipe");
}

}  // namespace detail
}  // namespace evenkeel
