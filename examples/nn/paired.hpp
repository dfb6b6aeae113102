#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace nn {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// The median of paired ratios, and the interval that holds the true median 95 times of 100, whatever their
/// distribution: order statistics, by the normal approximation of the binomial distribution.
struct Ratio {
  double median = 1, low = 1, high = 1;

  bool tie() const { return low <= 1 && high >= 1; }
  std::string text() const {
    char line[64];
    std::snprintf(line, sizeof line, "%.3f (%.3f to %.3f)%s", median, low, high, tie() ? " tie" : "");
    return line;
  }
};

/// How many times as fast as the reference: the ratios of timings that were taken in turns.
inline Ratio ratio_of(const std::vector<double>& reference_seconds, const std::vector<double>& seconds) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < seconds.size(); ++i) ratios.push_back(reference_seconds[i] / seconds[i]);
  std::sort(ratios.begin(), ratios.end());
  const double n = double(ratios.size()), half = 0.98 * std::sqrt(n);  // 1.96 standard deviations of sqrt(n) / 2
  const auto at = [&](double place) { return ratios[std::size_t(std::clamp(place, 0.0, n - 1))]; };
  return {median(ratios), at(std::floor(n / 2 - half) - 1), at(std::ceil(n / 2 + half))};
}

}  // namespace nn
