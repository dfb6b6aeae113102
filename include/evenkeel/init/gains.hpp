/// Gains: what an activation takes from the standard deviation of its input, given back by the weights before it.
///
/// linear and sigmoid 1, tanh 5/3, relu sqrt(2), leaky_relu sqrt(2 / (1 + slope^2)), selu 3/4.
///
/// Source: relu and leaky_relu: K. He et al., Delving deep into rectifiers, ICCV 2015, equations 10 and 15. The others
/// are the conventional values that torch.nn.init.calculate_gain gives.
#pragma once

#include <cmath>
#include <numbers>

namespace evenkeel {

inline constexpr double linear_gain = 1;
inline constexpr double sigmoid_gain = 1;
inline constexpr double tanh_gain = 5.0 / 3;
inline constexpr double relu_gain = std::numbers::sqrt2;
inline constexpr double selu_gain = 0.75;

/// sqrt(2 / (1 + slope^2)) for max(x, slope * x). Example: `ek::kaiming_uniform(w, fans, stream, {.gain =
/// ek::leaky_relu_gain(0.2)})`.
inline double leaky_relu_gain(double slope = 0.01) { return std::sqrt(2 / (1 + slope * slope)); }

}  // namespace evenkeel
