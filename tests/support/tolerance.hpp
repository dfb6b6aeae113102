#pragma once

#include <cmath>
#include <cstddef>

namespace support {

// How far a result may lie from exact arithmetic.
//
// length     how many numbers were summed on the way
// magnitude  what the terms of the formula add up to without cancellation (reference.hpp gives it)
// epsilon    of the type that is computed in, std::numeric_limits<T>::epsilon(); one rounding is off by epsilon/2 at
// most
//
// A sum of n terms meets at most n roundings, whose signs are independent of each other, so its error grows as sqrt(n)
// (Higham and Mary, A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41(5), 2019; the
// worst case, n, would hide a forgotten element of a long row). To that come the roundings of one element outside the
// sums: the shift, its square, the division, the root, two products for xhat, the weight, the bias and the store: under
// ten, and they do not all point the same way, so 8 covers them. Two such factors meet where a statistic multiplies an
// element, hence the whole epsilon in place of its half.
inline double tolerance(std::size_t length, double magnitude, double epsilon) {
  return (8 + std::sqrt(double(length))) * magnitude * epsilon;
}

}  // namespace support
