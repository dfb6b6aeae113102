/// Conversions between half or bfloat16 in memory and float, for one value and for a vector of them: Eigen 3.4 converts
/// lane by lane with g++, 3 to 30 times slower than the copy of the bytes. Rounded to nearest, ties to even; subnormal
/// numbers are kept.
#pragma once

#include "evenkeel/config.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if (defined(__AVX__) || defined(__F16C__)) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// Lanes of a register for the accumulator type A. Wider packs spill: 16 lanes on 4-lane registers cost 3-4 times.
template <class A>
inline constexpr int pack_size = std::max<int>(EIGEN_MAX_STATIC_ALIGN_BYTES, 16) / static_cast<int>(sizeof(A));

/// pack_size<float> floats, from and to as many values of T. Where there is none, Eigen converts.
template <class T>
struct HalfVector;

#if !defined(__CUDACC__)  // which takes no vector types in what host and device share

#if defined(__GNUC__) && !defined(__clang__)  // g++'s AVX-512 intrinsics start from an undefined register
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

template <>
struct HalfVector<Eigen::bfloat16> {
  typedef float Floats __attribute__((vector_size(sizeof(float) * pack_size<float>)));
  typedef std::uint32_t Words __attribute__((vector_size(sizeof(std::uint32_t) * pack_size<float>)));
  typedef std::uint16_t Halves __attribute__((vector_size(sizeof(std::uint16_t) * pack_size<float>)));

  EVENKEEL_HOST static Floats load(const void* p) {
#if defined(__AVX512F__)
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    return reinterpret_cast<Floats>(_mm512_slli_epi32(words, 16));
#elif defined(__AVX2__)
    const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    return reinterpret_cast<Floats>(_mm256_slli_epi32(words, 16));
#else
    Halves h;
    std::memcpy(&h, p, sizeof h);
    return reinterpret_cast<Floats>(__builtin_convertvector(h, Words) << 16);
#endif
  }
  EVENKEEL_HOST static void store(void* p, const Floats& v) {
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
    // The instruction takes subnormal numbers for 0.
    constexpr int subnormal = 0x20;
    if (_mm512_fpclass_ps_mask(v, subnormal) == 0) [[likely]] {
      const __m256bh h = _mm512_cvtneps_pbh(v);
      std::memcpy(p, &h, sizeof h);
      return;
    }
#endif
    const Words u = reinterpret_cast<Words>(v);
    const Words rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const Words nan = ((u >> 16) & 0x8000u) | 0x7fc0u;  // rounding could make it an infinity
    const Halves h = __builtin_convertvector(v == v ? rounded : nan, Halves);
    std::memcpy(p, &h, sizeof h);
  }
};

/// pack_size<double> doubles, from and to as many floats.
struct FloatVector {
  typedef double Doubles __attribute__((vector_size(sizeof(double) * pack_size<double>)));
  typedef float Floats __attribute__((vector_size(sizeof(float) * pack_size<double>)));

  EVENKEEL_HOST static Doubles load(const void* p) {
    Floats f;
    std::memcpy(&f, p, sizeof f);
    return __builtin_convertvector(f, Doubles);
  }
  EVENKEEL_HOST static void store(void* p, const Doubles& v) {
    const Floats f = __builtin_convertvector(v, Floats);
    std::memcpy(p, &f, sizeof f);
  }
};

#if defined(__F16C__)
template <>
struct HalfVector<Eigen::half> {
  static constexpr int rounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
#if defined(__AVX512F__)
  static_assert(pack_size<float> == 16);
  EVENKEEL_HOST static __m512 load(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  EVENKEEL_HOST static void store(void* p, const __m512& v) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(v, rounding));
  }
#else
  static_assert(pack_size<float> == 8);
  EVENKEEL_HOST static __m256 load(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  EVENKEEL_HOST static void store(void* p, const __m256& v) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(v, rounding));
  }
#endif
};
#endif

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif

template <class T>
concept HasVector = requires(void* p) {
  HalfVector<T>::load(p);
};

/// One value.
template <class A, class T>
EVENKEEL_HOST A value_of(const T* p) {
#if defined(__F16C__) && !defined(__CUDACC__)
  if constexpr (std::is_same_v<T, Eigen::half>) {
    std::uint16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return static_cast<A>(_cvtsh_ss(bits));
  }
#endif
  return static_cast<A>(*p);
}
template <class T, class A>
EVENKEEL_HOST T rounded_to(A a) {
#if defined(__F16C__) && !defined(__CUDACC__)
  if constexpr (std::is_same_v<T, Eigen::half>) {
    const __m128i half = _mm_cvtps_ph(_mm_set_ss(static_cast<float>(a)), HalfVector<T>::rounding);
    const auto bits = static_cast<std::uint16_t>(_mm_cvtsi128_si32(half));
    T result;
    std::memcpy(static_cast<void*>(&result), &bits, sizeof bits);
    return result;
  }
#endif
  return static_cast<T>(a);
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
