#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace support {

// The gradient of loss(point) by central differences in double. The step balances the truncation, step^2, against the
// cancellation, epsilon/step: both are near 1e-10 of the loss then.
template <class Loss>
std::vector<double> central_differences(const Loss& loss, std::vector<double> point) {
  std::vector<double> gradient(point.size());
  for (std::size_t i = 0; i < point.size(); ++i) {
    const double at = point[i];
    const double up = at + 6e-6 * std::max(1.0, std::abs(at)), down = at - (up - at);
    point[i] = up;
    const double loss_up = loss(point);
    point[i] = down;
    const double loss_down = loss(point);
    point[i] = at;
    gradient[i] = (loss_up - loss_down) / (up - down);
  }
  return gradient;
}

// sum(y * cotangent): a scalar whose gradient with respect to y is the cotangent.
inline double weighted_sum(const std::vector<double>& y, const std::vector<double>& cotangent) {
  double sum = 0;
  for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * cotangent[i];
  return sum;
}

// The largest distance between two gradients, relative to the larger of 1 and their largest entry.
inline double gradient_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double distance = a.size() == b.size() ? 0 : INFINITY, scale = 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return INFINITY;
    distance = std::max(distance, std::abs(a[i] - b[i]));
    scale = std::max({scale, std::abs(a[i]), std::abs(b[i])});
  }
  return distance / scale;
}

// What the step of central_differences leaves: 1e-10 of a loss of some tens, times a third derivative of some tens.
inline constexpr double gradient_tolerance = 1e-7;

}  // namespace support
