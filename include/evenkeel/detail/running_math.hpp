/// How the running statistics of one channel follow the batches. No Eigen, no CUDA header.
#pragma once

#include "evenkeel/config.hpp"
#include "evenkeel/moments.hpp"

#include <cstdint>

namespace evenkeel::detail {

/// One call's samples: batches one after the other, or together as one whose statistics are the mean over samples.
struct RunningStep {
  double new_weight;     // of a batch's value; below 0: 1 / its number
  std::int64_t batches;  // before this call
  bool together, unbiased;
  bool over_ranks = false;  // the moments are those of more than this call's data

  /// moments_of(s) are the channel's in sample s. Samples without values change nothing. Returns the batches after it.
  EVENKEEL_MATH template <class A, class F>
  EVENKEEL_HD std::int64_t take(A& mean, A& var, std::int64_t samples, const F& moments_of) const {
    std::int64_t number = batches, used = 0;
    double mean_sum = 0, var_sum = 0;
    for (std::int64_t s = 0; s < samples; ++s) {
      const Moments<double> m = moments_of(s);
      if (m.count > 0) {
        mean_sum += m.mean();
        var_sum += unbiased ? m.unbiased_variance() : m.variance();
        ++used;
      }
      if (used == 0 || (together && s + 1 < samples)) continue;
      ++number;
      const double w = new_weight < 0 ? 1 / static_cast<double>(number) : new_weight;
      follow(mean, w, mean_sum / static_cast<double>(used));
      follow(var, w, var_sum / static_cast<double>(used));
      mean_sum = var_sum = 0;
      used = 0;
    }
    return number;
  }

 private:
  EVENKEEL_MATH template <class A>
  EVENKEEL_HD static void follow(A& old, double w, double batch) {
    old = static_cast<A>((1 - w) * static_cast<double>(old) + w * batch);
  }
};

}  // namespace evenkeel::detail
