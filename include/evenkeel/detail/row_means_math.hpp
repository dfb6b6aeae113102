/// Numbers that a pass has kept of each row, as terms of a mean over the rows, and where the mean goes. In double. No
/// Eigen, no CUDA header.
#pragma once

#include "evenkeel/detail/values.hpp"

#include <cstdint>

namespace evenkeel::detail {

/// Of TaperNorm's calibration: n^2 * rstd and n^2, n = ||h * weight||.
template <class A>
struct CalibrationTerms {
  static constexpr int count = 2;
  const A *rstd, *norm;  // (rows)
  EVENKEEL_HD Values<double, 2> of(std::int64_t row) const {
    const double n = static_cast<double>(norm[row]), square = n * n;
    return {{square * static_cast<double>(rstd[row]), square}};
  }
};

/// The scale of a row, s = 1/rstd; 0 where rstd is 0, which is a row without any.
template <class A>
struct ScaleTerms {
  static constexpr int count = 1;
  const A* rstd;  // (rows)
  EVENKEEL_HD Values<double, 1> of(std::int64_t row) const {
    const double r = static_cast<double>(rstd[row]);
    return {{r > 0 ? 1 / r : 0}};
  }
};

/// (s - target)^2.
template <class A>
struct AnchorTerms {
  static constexpr int count = 1;
  ScaleTerms<A> scale;
  double target;
  EVENKEEL_HD Values<double, 1> of(std::int64_t row) const {
    const double apart = scale.of(row)[0] - target;
    return {{apart * apart}};
  }
};

/// What rows add to the gradients with respect to a TaperNorm's gate and factor, (of_norm | of_scale, rows).
struct GateTerms {
  static constexpr int count = 2;
  const double* sums;
  std::int64_t rows;
  EVENKEEL_HD Values<double, 2> of(std::int64_t row) const { return {{sums[row], sums[rows + row]}}; }
};
/// These gradients, (gate | factor).
struct GateGradientsTo {
  double rows, gate, factor;
  double* result;
  EVENKEEL_HD void put(const Values<double, 2>& means) const {
    const double of_norm = means[0] * rows, of_scale = means[1] * rows;
    result[0] = of_norm - factor * of_scale;
    result[1] = (1 - gate) * of_scale;
  }
};

/// The batch enters Count averages, as Ema::add has it: (batches, weight, sums) in memory.
template <int Count>
struct AverageOver {
  static constexpr int batches = 0, weight = 1, sums = 2, size = Count + 2;
  double rate;
  double* state;
  EVENKEEL_HD void put(const Values<double, Count>& means) const {
    state[batches] += 1;
    state[weight] = (1 - rate) * state[weight] + rate;
    for (int k = 0; k < Count; ++k) state[sums + k] = (1 - rate) * state[sums + k] + rate * means[k];
  }
};

/// The mean times a factor, to one place in memory.
struct ScaledTo {
  double factor;
  double* result;
  EVENKEEL_HD void put(const Values<double, 1>& means) const { *result = factor * means[0]; }
};

}  // namespace evenkeel::detail
