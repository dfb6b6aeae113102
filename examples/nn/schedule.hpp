#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

namespace nn {

/// The learning rate of step 0 ... steps-1: a straight line up to `peak` in the first `warmup` steps, then a half
/// cosine down to `floor * peak` at the last step.
struct Schedule {
  double peak;
  long warmup;
  long steps;
  double floor = 0.05;

  double operator()(long step) const {
    if (step < warmup) return peak * double(step + 1) / double(warmup);
    const double done = double(step + 1 - warmup) / double(std::max(1L, steps - warmup));
    return peak * (floor + (1 - floor) * (1 + std::cos(std::numbers::pi * std::min(1.0, done))) / 2);
  }
};

}  // namespace nn
