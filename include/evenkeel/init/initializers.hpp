/// Initializers of weights: Xavier, Kaiming, torch's default, GPT-2.
///
///   Xavier    std = gain * sqrt(2 / (fan_in + fan_out))       X. Glorot, Y. Bengio, AISTATS 2010, equation 16
///   Kaiming   std = gain / sqrt(fan)                          K. He et al., ICCV 2015, equations 10 and 14
///   uniform variants: U(-b, b) with b = sqrt(3) * std
///   torch     U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)), weight and bias of Linear and Conv layers
///   GPT-2     N(0, 0.02); the two matrices per layer that write into the residual stream N(0, 0.02 / sqrt(2 layers))
///
/// Standard deviations and bounds are formed in double in torch's order of operations, so that a TorchRandom gives
/// torch's weights. What is filled, in which order, and from which generators: distributions.hpp. A tensor without
/// elements is left alone and draws nothing, whatever its fans.
///
/// Example, a projection to ReLU:
///
///   Eigen::MatrixXf weight(256, 1024);
///   ek::kaiming_normal(weight, ek::fans_of_linear(256, 1024), ek::RandomStream(42, "layer.0.weight"));
#pragma once

#include "evenkeel/init/distributions.hpp"
#include "evenkeel/init/fans.hpp"
#include "evenkeel/init/gains.hpp"

#include <cmath>
#include <utility>

namespace evenkeel {

/// Whose signal an initializer holds steady: the forward one (in), the gradient (out), or a bit of both.
enum class FanMode {
  in,
  out,
  average  ///< (fan_in + fan_out) / 2, Xavier's compromise
};

/// Options of kaiming_uniform and kaiming_normal.
struct KaimingOptions {
  double gain = relu_gain;
  FanMode mode = FanMode::in;
};

namespace detail {

inline void require_fans(const char* function, const Fans& fans, bool in, bool out) {
  if (in) require(fans.in >= 1, function, "fans.in", static_cast<double>(fans.in), "at least 1");
  if (out) require(fans.out >= 1, function, "fans.out", static_cast<double>(fans.out), "at least 1");
}

inline void require_gain(const char* function, double gain) {
  require(std::isfinite(gain) && gain >= 0, function, "gain", gain, "a finite number of at least 0");
}

inline double xavier_std(const char* function, const Fans& fans, double gain) {
  require_fans(function, fans, true, true);
  require_gain(function, gain);
  return gain * std::sqrt(2.0 / static_cast<double>(fans.in + fans.out));
}

/// The fan that `mode` names, checked.
inline double fan_of(const char* function, const Fans& fans, FanMode mode) {
  require_fans(function, fans, mode != FanMode::out, mode != FanMode::in);
  const auto in = static_cast<double>(fans.in), out = static_cast<double>(fans.out);
  return mode == FanMode::in ? in : mode == FanMode::out ? out : (in + out) / 2;
}

inline double kaiming_std(const char* function, const Fans& fans, const KaimingOptions& options) {
  const double fan = fan_of(function, fans, options.mode);
  require_gain(function, options.gain);
  return options.gain / std::sqrt(fan);
}

inline double uniform_bound(double std) { return std::sqrt(3.0) * std; }

}  // namespace detail

/// gain * sqrt(2 / (fan_in + fan_out)). Throws ShapeError for a fan under 1. Example: `ek::xavier_std({.in = 6, .out =
/// 2})` is 0.5.
inline double xavier_std(Fans fans, double gain = 1) { return detail::xavier_std("xavier_std", fans, gain); }

/// gain / sqrt(fan). Throws ShapeError for a fan under 1. Example: `ek::kaiming_std({.in = 8, .out = 2})` is 0.5.
inline double kaiming_std(Fans fans, KaimingOptions options = {}) {
  return detail::kaiming_std("kaiming_std", fans, options);
}

/// 0.02 / sqrt(2 layers): two writes into the residual stream per layer. Throws ShapeError for layers under 1. Example:
/// `ek::gpt2_residual_std(2)` is 0.01.
inline double gpt2_residual_std(Index layers) {
  detail::require(layers >= 1, "gpt2_residual_std", "layers", static_cast<double>(layers), "at least 1");
  return 0.02 / std::sqrt(2.0 * static_cast<double>(layers));
}

/// U(-b, b), b = sqrt(3) * xavier_std. Throws ShapeError for a fan under 1 or a negative gain.
/// Example: `ek::xavier_uniform(weight, fans, stream, ek::tanh_gain);`
template <RandomScalar T, RandomSource Source>
void xavier_uniform(T* weight, Index size, Fans fans, Source&& source, double gain = 1) {
  if (size == 0) return;
  const double bound = detail::uniform_bound(detail::xavier_std("xavier_uniform", fans, gain));
  detail::fill_uniform("xavier_uniform", weight, size, -bound, bound, source);
}

/// The same for a tensor that lies in one piece.
template <Fillable Tensor, RandomSource Source>
void xavier_uniform(Tensor&& weight, Fans fans, Source&& source, double gain = 1) {
  xavier_uniform(weight.data(), detail::contiguous_size("xavier_uniform", weight), fans, source, gain);
}

/// N(0, xavier_std). Throws ShapeError for a fan under 1 or a negative gain.
/// Example: `ek::xavier_normal(weight, fans, stream);`
template <RandomScalar T, RandomSource Source>
void xavier_normal(T* weight, Index size, Fans fans, Source&& source, double gain = 1) {
  if (size == 0) return;
  detail::fill_normal("xavier_normal", weight, size, 0, detail::xavier_std("xavier_normal", fans, gain), source);
}

/// The same for a tensor that lies in one piece.
template <Fillable Tensor, RandomSource Source>
void xavier_normal(Tensor&& weight, Fans fans, Source&& source, double gain = 1) {
  xavier_normal(weight.data(), detail::contiguous_size("xavier_normal", weight), fans, source, gain);
}

/// U(-b, b), b = sqrt(3) * kaiming_std. Throws ShapeError for the fan of `mode` under 1 or a negative gain. With gain 1
/// it is LeCun's. Example: `ek::kaiming_uniform(weight, fans, stream, {.gain = ek::leaky_relu_gain(0.2)});`
template <RandomScalar T, RandomSource Source>
void kaiming_uniform(T* weight, Index size, Fans fans, Source&& source, KaimingOptions options = {}) {
  if (size == 0) return;
  const double bound = detail::uniform_bound(detail::kaiming_std("kaiming_uniform", fans, options));
  detail::fill_uniform("kaiming_uniform", weight, size, -bound, bound, source);
}

/// The same for a tensor that lies in one piece.
template <Fillable Tensor, RandomSource Source>
void kaiming_uniform(Tensor&& weight, Fans fans, Source&& source, KaimingOptions options = {}) {
  kaiming_uniform(weight.data(), detail::contiguous_size("kaiming_uniform", weight), fans, source, options);
}

/// N(0, kaiming_std). Throws ShapeError for the fan of `mode` under 1 or a negative gain.
/// Example: `ek::kaiming_normal(weight, fans, stream, {.mode = ek::FanMode::out});`
template <RandomScalar T, RandomSource Source>
void kaiming_normal(T* weight, Index size, Fans fans, Source&& source, KaimingOptions options = {}) {
  if (size == 0) return;
  detail::fill_normal("kaiming_normal", weight, size, 0, detail::kaiming_std("kaiming_normal", fans, options), source);
}

/// The same for a tensor that lies in one piece.
template <Fillable Tensor, RandomSource Source>
void kaiming_normal(Tensor&& weight, Fans fans, Source&& source, KaimingOptions options = {}) {
  kaiming_normal(weight.data(), detail::contiguous_size("kaiming_normal", weight), fans, source, options);
}

/// U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)): what torch's Linear and Conv layers start from. Call it for the weight and
/// then for the bias, which takes the fans of the weight. torch arrives at the weight's bound through kaiming_uniform
/// with the gain leaky_relu_gain(sqrt(5)); that differs in double by an ulp or two, in float not at all. Throws
/// ShapeError for fans.in under 1. Example, torch.manual_seed(0); torch.nn.Linear(64, 32):
///
///   ek::TorchRandom random(0);
///   ek::torch_linear_uniform(weight, ek::fans_of_linear(64, 32), random);      // (32, 64), row-major
///   ek::torch_linear_uniform(bias, ek::fans_of_linear(64, 32), random);        // (32)
template <RandomScalar T, RandomSource Source>
void torch_linear_uniform(T* weight, Index size, Fans fans, Source&& source) {
  if (size == 0) return;
  detail::require_fans("torch_linear_uniform", fans, true, false);
  const double bound = 1 / std::sqrt(static_cast<double>(fans.in));
  detail::fill_uniform("torch_linear_uniform", weight, size, -bound, bound, source);
}

/// The same for a tensor that lies in one piece.
template <Fillable Tensor, RandomSource Source>
void torch_linear_uniform(Tensor&& weight, Fans fans, Source&& source) {
  torch_linear_uniform(weight.data(), detail::contiguous_size("torch_linear_uniform", weight), fans, source);
}

/// N(0, 0.02): GPT-2's matrices and embeddings. Its biases are 0.
/// Example: `ek::gpt2_normal(embedding, ek::RandomStream(42, "wte.weight"));`
template <RandomScalar T, RandomSource Source>
void gpt2_normal(T* weight, Index size, Source&& source) {
  detail::fill_normal("gpt2_normal", weight, size, 0, 0.02, source);
}

/// The same for a tensor that lies in one piece.
template <Fillable Tensor, RandomSource Source>
void gpt2_normal(Tensor&& weight, Source&& source) {
  gpt2_normal(weight.data(), detail::contiguous_size("gpt2_normal", weight), source);
}

/// N(0, 0.02 / sqrt(2 layers)): GPT-2's two matrices per layer that write into the residual stream (attention output,
/// second matrix of the MLP). It sets the weight and does not scale what is there. Throws ShapeError for layers
/// under 1. Example: `ek::gpt2_residual_normal(projection, 12, ek::RandomStream(42, "h.0.attn.c_proj.weight"));`
template <RandomScalar T, RandomSource Source>
void gpt2_residual_normal(T* weight, Index size, Index layers, Source&& source) {
  detail::require(layers >= 1, "gpt2_residual_normal", "layers", static_cast<double>(layers), "at least 1");
  detail::fill_normal("gpt2_residual_normal", weight, size, 0, gpt2_residual_std(layers), source);
}

/// The same for a tensor that lies in one piece.
template <Fillable Tensor, RandomSource Source>
void gpt2_residual_normal(Tensor&& weight, Index layers, Source&& source) {
  gpt2_residual_normal(weight.data(), detail::contiguous_size("gpt2_residual_normal", weight), layers, source);
}

}  // namespace evenkeel
