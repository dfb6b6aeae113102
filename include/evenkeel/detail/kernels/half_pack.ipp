/// Conversions between half or bfloat16 in memory and float, for one value and for a vector of them: Eigen 3.4 converts
/// lane by lane with g++, 3 to 30 times slower than the copy of the bytes. Rounded to nearest, ties to even; subnormal
/// numbers are kept.

namespace evenkeel::detail::kernels::EVENKEEL_KERNELS {

/// Lanes of a register for the accumulator type A. Wider packs spill: 16 lanes on 4-lane registers cost 3-4 times.
template <class A>
inline constexpr int pack_size = EVENKEEL_KERNEL_BYTES / static_cast<int>(sizeof(A));

/// pack_size<float> floats, from and to as many values of T. Where there is none, Eigen converts.
template <class T>
struct HalfVector;

#if !defined(__CUDACC__)  // it takes no vector types in what host and device share

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
#if EVENKEEL_KERNEL_AVX512
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    return reinterpret_cast<Floats>(_mm512_slli_epi32(words, 16));
#elif EVENKEEL_KERNEL_AVX2
    const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    return reinterpret_cast<Floats>(_mm256_slli_epi32(words, 16));
#else
    Halves h;
    std::memcpy(&h, p, sizeof h);
    return reinterpret_cast<Floats>(__builtin_convertvector(h, Words) << 16);
#endif
  }
#if EVENKEEL_KERNEL_AVX512
  /// Numbers of the upper words of 16 lanes, for a permutation.
  EVENKEEL_HOST static __m512i high_words() {
    return _mm512_setr_epi32(0x30001, 0x70005, 0xb0009, 0xf000d, 0x130011, 0x170015, 0x1b0019, 0x1f001d, 0, 0, 0, 0, 0,
                             0, 0, 0);
  }
#endif
  EVENKEEL_HOST static Halves rounded(const Floats& v) {
#if EVENKEEL_KERNEL_BF16
    // The instruction takes subnormal numbers for 0.
    constexpr int subnormal = 0x20;
    if (_mm512_fpclass_ps_mask(v, subnormal) == 0) [[likely]] {
      const __m256bh h = _mm512_cvtneps_pbh(v);
      Halves result;
      std::memcpy(&result, &h, sizeof h);
      return result;
    }
#endif
#if EVENKEEL_KERNEL_AVX512
    const __m512i u = _mm512_castps_si512(v), half_less = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1);
    const __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
    const __m512i up = _mm512_add_epi32(u, half_less), nearest = _mm512_mask_add_epi32(up, odd, up, one);
    const __m512i sign = _mm512_and_si512(u, _mm512_castps_si512(_mm512_set1_ps(-0.0f)));
    // Of a NaN, which rounding could make an infinity, its sign.
    const __m512i all =
        _mm512_mask_or_epi32(nearest, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), sign, _mm512_set1_epi32(0x7fc00000));
    const __m512i high = _mm512_permutexvar_epi16(high_words(), all);
    const __m256i low = _mm512_castsi512_si256(high);
    return reinterpret_cast<Halves>(low);
#else
    const Words u = reinterpret_cast<Words>(v);
    const Words nearest = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const Words nan = ((u >> 16) & 0x8000u) | 0x7fc0u;  // rounding could make it an infinity
    return __builtin_convertvector(v == v ? nearest : nan, Halves);
#endif
  }
};

/// pack_size<double> doubles, from and to as many floats.
struct FloatVector {
  typedef double Doubles __attribute__((vector_size(sizeof(double) * pack_size<double>)));
  typedef float Floats __attribute__((vector_size(sizeof(float) * pack_size<double>)));

#if EVENKEEL_KERNEL_AVX512  // g++ 12 converts halves and puts them together
  EVENKEEL_HOST static Doubles load(const void* p) {
    return _mm512_cvtps_pd(_mm256_loadu_ps(static_cast<const float*>(p)));
  }
  EVENKEEL_HOST static void store(void* p, const Doubles& v) {
    _mm256_storeu_ps(static_cast<float*>(p), _mm512_cvtpd_ps(v));
  }
#else
  EVENKEEL_HOST static Doubles load(const void* p) {
    Floats f;
    std::memcpy(&f, p, sizeof f);
    return __builtin_convertvector(f, Doubles);
  }
  EVENKEEL_HOST static void store(void* p, const Doubles& v) {
    const Floats f = __builtin_convertvector(v, Floats);
    std::memcpy(p, &f, sizeof f);
  }
#endif
};

#if EVENKEEL_KERNEL_F16C
template <>
struct HalfVector<Eigen::half> {
  static constexpr int rounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
#if EVENKEEL_KERNEL_AVX512
  static_assert(pack_size<float> == 16);
  EVENKEEL_HOST static __m512 load(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  EVENKEEL_HOST static __m256i rounded(const __m512& v) { return _mm512_cvtps_ph(v, rounding); }
#else
  static_assert(pack_size<float> == 8);
  EVENKEEL_HOST static __m256 load(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  EVENKEEL_HOST static __m128i rounded(const __m256& v) { return _mm256_cvtps_ph(v, rounding); }
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
#if EVENKEEL_KERNEL_F16C
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
#if EVENKEEL_KERNEL_F16C
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

}  // namespace evenkeel::detail::kernels::EVENKEEL_KERNELS
