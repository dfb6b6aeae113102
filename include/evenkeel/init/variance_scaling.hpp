/// Variance scaling, the initializer that Keras and JAX build the others from: std = sqrt(scale / fan).
///
///   LeCun     scale 1, in          Kaiming   scale 2, in          Xavier   scale 1, average
///
/// Source: K. He et al., ICCV 2015, equation 10, with any numerator; the names are those of keras.initializers.
#pragma once

#include "evenkeel/init/initializers.hpp"
#include "evenkeel/init/truncated_normal.hpp"

#include <cmath>

namespace evenkeel {

/// What shape the values of variance_scaling are spread in. The standard deviation is the same for all three.
enum class Spread {
  truncated_normal,  ///< cut at 2 standard deviations of the normal distribution before truncation, and corrected
  normal,
  uniform
};

/// Options of variance_scaling.
struct VarianceScalingOptions {
  double scale = 1;
  FanMode mode = FanMode::in;
  Spread spread = Spread::truncated_normal;
};

/// sqrt(scale / fan): the standard deviation of the values. Throws ShapeError for a fan under 1. Example:
/// `ek::variance_scaling_std({.in = 8, .out = 2}, {.scale = 2})` is 0.5.
inline double variance_scaling_std(Fans fans, const VarianceScalingOptions& options = {}) {
  const double fan = detail::fan_of("variance_scaling_std", fans, options.mode);
  detail::require(std::isfinite(options.scale) && options.scale >= 0, "variance_scaling_std", "scale", options.scale,
                  "a finite number of at least 0");
  return std::sqrt(options.scale / fan);
}

/// Fills `weight` with the standard deviation sqrt(scale / fan). A weight without elements is left alone; a scale of 0
/// gives zeros. Throws ShapeError for the fan of `mode` under 1, a scale that is not at least 0, and for truncated
/// numbers of a source that has none (TorchRandom). Example: Keras' he_normal is
/// `ek::variance_scaling(weight, fans, stream, {.scale = 2});`
template <RandomScalar T, RandomSource Source>
void variance_scaling(T* weight, Index size, Fans fans, Source&& source, const VarianceScalingOptions& options = {}) {
  const char* const function = "variance_scaling";
  if (size == 0) return;
  const double fan = detail::fan_of(function, fans, options.mode);
  detail::require(std::isfinite(options.scale) && options.scale >= 0, function, "scale", options.scale,
                  "a finite number of at least 0");
  const double std = std::sqrt(options.scale / fan);
  if (options.spread == Spread::normal) {
    detail::fill_normal(function, weight, size, 0, std, source);
  } else if (options.spread == Spread::uniform) {
    detail::fill_uniform(function, weight, size, -detail::uniform_bound(std), detail::uniform_bound(std), source);
  } else if constexpr (QuantileSource<Source>) {
    if (std == 0)
      source.fill_uniform(weight, size, 0, 0);  // zeros, wherever the weight lies
    else
      sigma_truncated_normal(weight, size, source, {.std = std, .correct_std = true});
  } else {
    detail::throw_shape_error(function,
                              "spread is truncated_normal, expected normal or uniform: this source has no truncated "
                              "numbers");
  }
}

/// The same for a tensor that lies in one piece.
template <Fillable Tensor, RandomSource Source>
void variance_scaling(Tensor&& weight, Fans fans, Source&& source, const VarianceScalingOptions& options = {}) {
  variance_scaling(weight.data(), detail::contiguous_size("variance_scaling", weight), fans, source, options);
}

}  // namespace evenkeel
