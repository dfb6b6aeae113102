/// What follows the normalized value: rounding order, weight, bias. No Eigen, no CUDA header.
#pragma once

#include "evenkeel/detail/values.hpp"
#include "evenkeel/detail/vocabulary.hpp"

namespace evenkeel::detail {

/// y = xhat * weight + bias, with weight + 1 in place of weight where UnitOffset. Rounded is the type that xhat is
/// rounded to before the weight, or None where it is not.
template <bool UnitOffset, class Rounded>
struct AffineMath {
  EVENKEEL_MATH template <class V, class W, class B>
  EVENKEEL_HD static V apply(const V& xhat, const W& weight, const B& bias) {
    if constexpr (is_none_v<W>) {
      return plus(rounded(xhat), bias);
    } else {
      const V scaled = rounded(xhat) * factor(weight);
      return plus(scaled, bias);
    }
  }
  /// h, the gradient with respect to xhat.
  EVENKEEL_MATH template <class V, class W>
  EVENKEEL_HD static V pull(const V& dy, const W& weight) {
    if constexpr (is_none_v<W>)
      return dy;
    else
      return dy * factor(weight);
  }

 private:
  EVENKEEL_MATH template <class W>
  EVENKEEL_HD static W factor(const W& weight) {
    if constexpr (UnitOffset)
      return weight + splat<W>(1);
    else
      return weight;
  }
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static V rounded(const V& xhat) {
    if constexpr (is_none_v<Rounded>)
      return xhat;
    else
      return round_to<Rounded>(xhat);
  }
};

/// What a backward sums over the rows: dweight's term first where it is wanted, then dbias's.
template <bool Dweight, bool Dbias>
struct ParameterTerms {
  static constexpr int count = Dweight + Dbias;
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static void set(Values<V, count>& terms, const V& dy, const V& xhat) {
    if constexpr (Dweight) terms[0] = dy * xhat;
    if constexpr (Dbias) terms[Dweight] = dy;
  }
};

}  // namespace evenkeel::detail
