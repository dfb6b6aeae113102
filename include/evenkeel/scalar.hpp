/// Scalar types: what data is stored in, and what it is computed in.
#pragma once

#include "evenkeel/config.hpp"

#include <Eigen/Core>

#include <limits>
#include <type_traits>

#if !EIGEN_VERSION_AT_LEAST(3, 4, 0)
#error "evenkeel needs Eigen 3.4 or newer"
#endif

namespace evenkeel {

template <class T>
inline constexpr bool is_half_v = std::is_same_v<T, Eigen::half> || std::is_same_v<T, Eigen::bfloat16>;

/// Scalars that tensors may hold: double, float, Eigen::half, Eigen::bfloat16.
template <class T>
concept Scalar = std::is_same_v<T, float> || std::is_same_v<T, double> || is_half_v<T>;

/// The type that statistics and sums are kept in: double for double, float for everything else.
template <Scalar T>
using accumulator_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// The scalar's name in messages.
template <Scalar T>
constexpr const char* scalar_name() {
  if constexpr (std::is_same_v<T, double>)
    return "double";
  else if constexpr (std::is_same_v<T, float>)
    return "float";
  else if constexpr (std::is_same_v<T, Eigen::half>)
    return "half";
  else
    return "bfloat16";
}

/// A name for the option eps: the epsilon of the accumulator type (1.19e-7 for half, bfloat16 and float data, 2.2e-16
/// for double). Example: `ek::rms_norm(ek::serial, x, weight, y, saved, {.eps = ek::machine_epsilon});`
inline constexpr double machine_epsilon = -std::numeric_limits<double>::infinity();

/// When the normalized value is rounded to the data type. The order decides bit parity with pretrained checkpoints.
enum class Rounding {
  round_once,       ///< everything in the accumulator type, one rounding at the store
  round_normalized  ///< xhat is rounded to the data type first, then multiplied by the weight (Llama, Qwen)
};

/// What a backward does with the gradients of parameters. Gradients of activations are always written.
enum class GradientMode {
  accumulate,  ///< added to what is there; the trainer zeroes it
  overwrite    ///< written, whatever was there
};

}  // namespace evenkeel
