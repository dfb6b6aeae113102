/// Which features of a norm's output do not tell xhat, for backwards from the output. No Eigen, no CUDA header.
#pragma once

#include "evenkeel/config.hpp"
#include "evenkeel/none.hpp"

#include <cstdint>
#include <type_traits>

namespace evenkeel::detail {

/// A scalar of any type in A, float or double: 16 bits go by way of float.
template <class A, class T>
EVENKEEL_HD A in_accumulator(const T& x) {
  if constexpr (std::is_same_v<T, double>)
    return static_cast<A>(x);
  else
    return static_cast<A>(static_cast<float>(x));
}

/// What xhat is multiplied by, and whether (y - bias) / weight would not give it back. With |bias| <= 8 |weight| it does,
/// to a few units in the last place. W and B are pointers or None.
template <class A, class W, class B>
struct OutputFeature {
  W weight;
  B bias;
  A offset;

  EVENKEEL_HD A factor(std::int64_t i) const {
    if constexpr (is_none_v<W>)
      return A(1);
    else
      return in_accumulator<A>(weight[i]) + offset;
  }
  EVENKEEL_HD bool lost(std::int64_t i) const {
    if constexpr (is_none_v<W>) {
      return false;
    } else {
      const A w = magnitude(factor(i));
      A b = 0;
      if constexpr (!is_none_v<B>) b = magnitude(in_accumulator<A>(bias[i]));
      return w * 8 <= b || w < A(1e-18f);
    }
  }

 private:
  static EVENKEEL_HD A magnitude(A x) { return x < 0 ? -x : x; }
};

}  // namespace evenkeel::detail
