/// Smooth curves and their slopes: tanh, erf, silu. Each is computed without a difference that cancels, and from one
/// exponential. No Eigen, no CUDA header.
#pragma once

#include "evenkeel/detail/vocabulary.hpp"

#include <type_traits>

namespace evenkeel::detail {

EVENKEEL_MATH template <class V>
EVENKEEL_HD V absolute(const V& a) {
  return max(a, V(-a));
}

/// exp(-a) for a of at least 0, and 0 where that leaves the normal numbers: the exponential of packs stops at a small
/// number there, which times a huge one would count.
EVENKEEL_MATH template <class V>
EVENKEEL_HD V decay(const V& a) {
  using A = typename Lanes<V>::Scalar;
  constexpr A last = std::is_same_v<A, double> ? A(708) : A(87);
  return select_less(splat<V>(last), a, splat<V>(0), exp(V(-a)));
}

/// tanh and its slope 1/cosh^2. Not the tanh of packs, which is off by 4.6 units in the last place for float and is no
/// vector code for double (2026-11-30).
struct TanhCurve {
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static V value(const V& u) {
    const V a = absolute(u);
    const V e = decay(V(a + a));
    const V large = splat<V>(1) - (e + e) / (e + splat<V>(1));
    const V signed_large = select_less(u, splat<V>(0), V(-large), large);
    return select_less(a, splat<V>(0.625), near_zero(u), signed_large);
  }
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static V slope(const V& u) {
    const V a = absolute(u);
    const V e = decay(V(a + a));
    const V part = splat<V>(2) / (e + splat<V>(1));
    return e * part * part;
  }

 private:
  /// u + u^3 * P(u^2), the coefficients those of S. L. Moshier's Cephes library.
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static V near_zero(const V& u) {
    using A = typename Lanes<V>::Scalar;
    const V z = u * u;
    V p;
    if constexpr (std::is_same_v<A, double>) {
      p = z * A(-9.64399179425052238628E-1) - splat<V>(A(9.92877231001918586564E1));
      p = p * z - splat<V>(A(1.61468768441708447952E3));
      V q = z + splat<V>(A(1.12811678491632931402E2));
      q = q * z + splat<V>(A(2.23548839060100448583E3));
      q = q * z + splat<V>(A(4.84406305325125486048E3));
      p = p / q;
    } else {
      p = z * A(-5.70498872745E-3) + splat<V>(A(2.06390887954E-2));
      p = p * z - splat<V>(A(5.37397155531E-2));
      p = p * z + splat<V>(A(1.33314422036E-1));
      p = p * z - splat<V>(A(3.33332819422E-1));
    }
    const V cube = z * u;
    return u + cube * p;
  }
};

/// erf and its slope 2/sqrt(pi) * exp(-u^2).
struct ErfCurve {
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static V value(const V& u) {
    return erf(u);
  }
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static V slope(const V& u) {
    using A = typename Lanes<V>::Scalar;
    return decay(V(u * u)) * A(1.1283791670955125739);
  }
};

/// The logistic function s of z, and 1 - s. What is selected are the numerators: selecting the quotients makes g++ 12
/// crash at -O3 with AVX-512, in its slp pass (gated_rms_norm, 2026-11-30).
template <class V>
struct Logistic {
  V s, rest;
};
EVENKEEL_MATH template <class V>
EVENKEEL_HD Logistic<V> logistic(const V& z) {
  const V e = decay(absolute(z));
  const V inverse = splat<V>(1) / (e + splat<V>(1));
  return {select_less(z, splat<V>(0), e, splat<V>(1)) * inverse, select_less(z, splat<V>(0), splat<V>(1), e) * inverse};
}

/// silu(z) = z * s(z), also called swish, and its slope s * (1 + z * (1 - s)).
struct SiluCurve {
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static V value(const V& z) {
    return z * logistic(z).s;
  }
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static V slope(const V& z) {
    const Logistic<V> of_z = logistic(z);
    const V bend = z * of_z.rest;
    return of_z.s * (bend + splat<V>(1));
  }
};

}  // namespace evenkeel::detail
