/// What gradient clipping on a CUDA device computes between its passes, in double. No Eigen, no CUDA header.
#pragma once

#include "evenkeel/detail/values.hpp"
#include "evenkeel/detail/weight_math.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

namespace evenkeel::detail {

/// What each unit's gradient is multiplied by, from its direction, (scale | length | inverse, units), and the norm of its
/// weight; 1 where it is not clipped.
struct AdaptiveFactors {
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  const double *directions, *weight_norms;
  double* factors;
  std::int64_t units;
  double clip, least_weight, least_gradient;

  EVENKEEL_MATH EVENKEEL_HD void operator()(std::int64_t u) const {
    const double of_weight = weight_norms[u], norm = directions[units + u] / directions[u];
    const double bound = clip * (of_weight < least_weight ? least_weight : of_weight);
    const bool clips = norm > bound && norm < infinity;
    factors[u] = clips ? bound / (norm < least_gradient ? least_gradient : norm) : 1.0;
  }
};

/// 1 for each unit that is clipped: what it is multiplied by is less than 1 then, in double too.
struct ClippedTerms {
  static constexpr int count = 1;
  const double* factors;
  EVENKEEL_HD Values<double, 1> of(std::int64_t unit) const { return {{factors[unit] != 1 ? 1.0 : 0.0}}; }
};
/// The sum that a mean was taken of.
struct SumTo {
  double count;
  double* sum;
  EVENKEEL_HD void put(const Values<double, 1>& means) const { *sum = means[0] * count; }
};

/// The squares of norms, as they are and with powers of two that leave room above and below: see scale_of_squares.
struct SquareTerms {
  static constexpr int count = 3;
  const double* norms;
  EVENKEEL_HD Values<double, 3> of(std::int64_t i) const {
    const double n = norms[i], small = n * 0x1p-600, large = n * 0x1p600;
    return {{n * n, small * small, large * large}};
  }
};
/// The norm of all of them together, and what all gradients are multiplied by, (norm | factor).
struct GlobalNormTo {
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  double count, limit;
  double* result;
  EVENKEEL_HD void put(const Values<double, 3>& means) const {
    const double plain = means[0] * count, scale = scale_of_squares(plain);
    const double norm = scale == 1  ? std::sqrt(plain)
                        : scale < 1 ? std::sqrt(means[1] * count) / scale
                                    : std::sqrt(means[2] * count) / scale;
    result[0] = norm;
    result[1] = norm > limit && norm < infinity ? limit / norm : 1.0;
  }
};

/// A norm that is none, which every other rank then has too.
struct NoNorm {
  static constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  double* to;
  EVENKEEL_HD void operator()(std::int64_t) const { *to = nan; }
};

/// A gradient times its unit's factor.
struct ClippedWrite : WritesUnits<double> {
  template <class V>
  struct Row {
    V factor;
  };

  EVENKEEL_HD bool leaves(const Row<double>& row) const { return row.factor == 1; }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD void write(Values<V, 1>& out, const Row<S>& row, const V& gradient) const {
    out[0] = gradient * row.factor;
  }
};

}  // namespace evenkeel::detail
