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

/// 1 / std(f(z)), z ~ N(0, 1), in double. Example: `y = ek::NfnetGain::silu * silu(x);`
struct NfnetGain {
  static constexpr double identity = 1;
  static constexpr double relu = 1.712858550449663;         // 1 / sqrt(1/2 - 1/(2 pi))
  static constexpr double leaky_relu = 1.7048316271773367;  // slope 0.01
  static constexpr double silu = 1.7871872221004417;
  static constexpr double gelu = 1.700926243363333;  // x Phi(x)
  static constexpr double gelu_tanh = 1.7009165616954503;
  static constexpr double tanh = 1.5925374197228312;
  static constexpr double sigmoid = 4.801313372039962;
  static constexpr double softplus = 1.9191259801076563;
  static constexpr double elu = 1.2708434178501966;
  static constexpr double selu = 1;
};

/// The table that came with the published networks: estimates from random numbers, off by up to 9e-4 relatively
/// (glu by 1.2e-3). For checkpoints that were trained with it.
struct NfnetPublishedGain {
  static constexpr double identity = 1;
  static constexpr double celu = 1.270926833152771;
  static constexpr double elu = 1.2716004848480225;
  static constexpr double gelu = 1.7015043497085571;
  static constexpr double glu = 1.8484294414520264;
  static constexpr double leaky_relu = 1.70590341091156;
  static constexpr double log_sigmoid = 1.9193484783172607;
  static constexpr double log_softmax = 1.0002083778381348;
  static constexpr double relu = 1.7139588594436646;
  static constexpr double relu6 = 1.7131484746932983;
  static constexpr double selu = 1.0008515119552612;
  static constexpr double sigmoid = 4.803835391998291;
  static constexpr double silu = 1.7881293296813965;
  static constexpr double soft_sign = 2.338853120803833;
  static constexpr double softplus = 1.9203323125839233;
  static constexpr double tanh = 1.5939117670059204;
};

}  // namespace evenkeel
