/// The words that math structs are written in, for scalars on host and device and, through Lanes, for packs of any
/// kind. No Eigen, no CUDA header. A value type V brings its own words by specializing Lanes<V>; pack.hpp does so for
/// Eigen.
///
/// Rules for math that serves packs too: no V > 0 ? :, no std functions on V; let at most one product feed a sum where
/// that is possible, since the compiler chooses which of two it contracts, and two instantiations may see it choose
/// differently.
#pragma once

#include "evenkeel/config.hpp"
#include "evenkeel/none.hpp"

#include <cmath>
#include <type_traits>

namespace evenkeel::detail {

/// The words of one value type. The general case is a scalar.
template <class V>
struct Lanes {
  using Scalar = V;
  static EVENKEEL_HD V splat(V a) { return a; }
  static EVENKEEL_HD V min(V a, V b) { return b < a ? b : a; }
  static EVENKEEL_HD V max(V a, V b) { return a < b ? b : a; }
  static EVENKEEL_HD V select_less(V a, V b, V yes, V no) { return a < b ? yes : no; }
  static EVENKEEL_HD bool all_less(V a, V b) { return a < b; }
  static EVENKEEL_HD V sqrt(V a) { return std::sqrt(a); }
  static EVENKEEL_HD V fused(V a, V b, V c) { return std::fma(a, b, c); }
  static EVENKEEL_HD V exp(V a) { return std::exp(a); }
  static EVENKEEL_HD V tanh(V a) { return std::tanh(a); }
  static EVENKEEL_HD V erf(V a) { return std::erf(a); }
  static EVENKEEL_HD V separate(V a) {
#if defined(__CUDA_ARCH__)
#elif defined(__x86_64__)
    asm("" : "+x"(a));
#elif defined(__aarch64__)
    asm("" : "+w"(a));
#endif
    return a;
  }
  EVENKEEL_MATH template <class T>
  static EVENKEEL_HD V round_to(V a) {
    return static_cast<V>(static_cast<T>(a));
  }
};

/// The scalar in every lane.
EVENKEEL_MATH template <class V>
EVENKEEL_HD V splat(typename Lanes<V>::Scalar a) {
  return Lanes<V>::splat(a);
}
/// The smaller and the larger; where a is NaN, a.
EVENKEEL_MATH template <class V>
EVENKEEL_HD V min(const V& a, const V& b) {
  return Lanes<V>::min(a, b);
}
EVENKEEL_MATH template <class V>
EVENKEEL_HD V max(const V& a, const V& b) {
  return Lanes<V>::max(a, b);
}
/// Lane by lane: yes where a < b, else no.
EVENKEEL_MATH template <class V>
EVENKEEL_HD V select_less(const V& a, const V& b, const V& yes, const V& no) {
  return Lanes<V>::select_less(a, b, yes, no);
}
/// Whether a < b in every lane. Not where one of them is NaN.
EVENKEEL_MATH template <class V>
EVENKEEL_HD bool all_less(const V& a, const V& b) {
  return Lanes<V>::all_less(a, b);
}
EVENKEEL_MATH template <class V>
EVENKEEL_HD V sqrt(const V& a) {
  return Lanes<V>::sqrt(a);
}
/// a * b + c, rounded once where the processor can.
EVENKEEL_MATH template <class V>
EVENKEEL_HD V fused(const V& a, const V& b, const V& c) {
  return Lanes<V>::fused(a, b, c);
}
EVENKEEL_MATH template <class V>
EVENKEEL_HD V exp(const V& a) {
  return Lanes<V>::exp(a);
}
EVENKEEL_MATH template <class V>
EVENKEEL_HD V tanh(const V& a) {
  return Lanes<V>::tanh(a);
}
EVENKEEL_MATH template <class V>
EVENKEEL_HD V erf(const V& a) {
  return Lanes<V>::erf(a);
}

/// a, finished on the CPU: a product that goes through it is rounded, not fused with the sum behind it. Of two products
/// that feed one sum a compiler fuses now the one, now the other.
EVENKEEL_MATH template <class V>
EVENKEEL_HD V separate(const V& a) {
  return Lanes<V>::separate(a);
}

/// v where the mask is set, which is above 0, else 0; NaN and infinity do not get through. No mask, v.
EVENKEEL_MATH template <class V, class Mask>
EVENKEEL_HD V where(const Mask& mask, const V& v) {
  if constexpr (is_none_v<Mask>)
    return v;
  else
    return select_less(splat<V>(0), V(mask), v, splat<V>(0));
}

/// a as it would be after a store to T and a load.
EVENKEEL_MATH template <class T, class V>
EVENKEEL_HD V round_to(const V& a) {
  if constexpr (std::is_same_v<T, typename Lanes<V>::Scalar>)
    return a;
  else
    return Lanes<V>::template round_to<T>(a);
}

/// a * b where there is a b, else a, and the same of a + b: optional inputs cost nothing.
EVENKEEL_MATH template <class V, class B>
EVENKEEL_HD V times(const V& a, const B& b) {
  if constexpr (is_none_v<B>)
    return a;
  else
    return V(a * b);
}
EVENKEEL_MATH template <class V, class B>
EVENKEEL_HD V plus(const V& a, const B& b) {
  if constexpr (is_none_v<B>)
    return a;
  else
    return V(a + b);
}

}  // namespace evenkeel::detail
