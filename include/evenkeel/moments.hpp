/// Count, mean and spread of a set of numbers, in a form that can be merged exactly.
#pragma once

#include "evenkeel/config.hpp"

#include <cstdint>

namespace evenkeel {

/// Moments of `count` numbers: mean = shift + delta, M2 = sum of squared distances from the mean. The mean is a pair,
/// since one number of type A would be off by half a unit in its last place, which for a mean of 1e4 and a spread of
/// 1e-2 is 5% of the spread.
///
///     ek::Moments<float> a = ..., b = ...;
///     const ek::Moments<float> both = ek::merge(a, b);
template <class A>
struct Moments {
  std::int64_t count = 0;
  A shift = 0, delta = 0, M2 = 0;

  EVENKEEL_HD A mean() const { return shift + delta; }
  /// Biased variance, M2 / count; 0 of nothing.
  EVENKEEL_HD A variance() const { return count > 0 ? M2 / static_cast<A>(count) : A(0); }
  /// M2 / (count - 1); 0 of fewer than two numbers.
  EVENKEEL_HD A unbiased_variance() const { return count > 1 ? M2 / static_cast<A>(count - 1) : A(0); }
};

/// The moments of both sets together. T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating Formulae and a Pairwise
/// Algorithm for Computing Sample Variances", 1979, equation 2.1. An empty side returns the other side's bits.
template <class A>
EVENKEEL_HD Moments<A> merge(const Moments<A>& a, const Moments<A>& b) {
  if (a.count == 0) return b;
  if (b.count == 0) return a;
  const std::int64_t count = a.count + b.count;
  const A apart = (b.shift - a.shift) + (b.delta - a.delta);
  const A share = static_cast<A>(static_cast<double>(b.count) / static_cast<double>(count));
  return {count, a.shift, a.delta + apart * share, a.M2 + b.M2 + apart * apart * share * static_cast<A>(a.count)};
}

}  // namespace evenkeel
