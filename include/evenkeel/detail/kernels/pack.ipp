/// Packs: as many values as a register of this instruction set holds, with their loads and stores. Lane-wise arithmetic
/// is the compiler's own vector type, on every instruction set that g++ and clang know; functions and conversions are
/// Eigen's.
///
/// Not Eigen::Array itself: with g++ 12 at -O2 its operators stay calls in a driver of this size, and arrays of it go
/// to memory, which cost 4 to 30 times (LayerNorm forward and backward, 64 x 768, 2026-11-29).

namespace evenkeel::detail::kernels::EVENKEEL_KERNELS {

/// A value: every operator returns a finished pack, so `auto` and nested expressions are safe.
template <class A>
struct Pack {
  static constexpr int size = pack_size<A>;
  typedef A Vector __attribute__((vector_size(size * sizeof(A))));
  /// The same in memory, anywhere. A copy of bytes would be split in two where g++ tunes for no one processor.
  EVENKEEL_IN_MEMORY;
  using Lanes = Eigen::Array<A, size, 1>;

  Pack() = default;
#if EVENKEEL_KERNEL_RUN_TIME
  // Not trivial, so that every function returns packs in memory: g++ 12 clears all but 16 bytes of a register that a class
  // is returned in, where the unit itself is compiled for less.
  EVENKEEL_PACK Pack(const Pack& other) : lane(other.lane) {}
  EVENKEEL_PACK Pack& operator=(const Pack& other) {
    lane = other.lane;
    return *this;
  }
#endif
  EVENKEEL_PACK explicit Pack(A a) { set(a - Vector{}); }

#if defined(__CUDACC__)  // nvcc takes no vector type in what host and device share, not even as a member
  alignas(size * sizeof(A)) A lane[size];
  EVENKEEL_PACK Vector get() const {
    Vector v;
    std::memcpy(&v, lane, sizeof v);
    return v;
  }
  EVENKEEL_PACK void set(const Vector& v) { std::memcpy(lane, &v, sizeof v); }
#else
  Vector lane;
  EVENKEEL_PACK Vector get() const { return lane; }
  EVENKEEL_PACK void set(const Vector& v) { lane = v; }
#endif

  EVENKEEL_PACK A operator[](int i) const { return get()[i]; }
  EVENKEEL_PACK static Pack of(const Vector& v) {
    Pack p;
    p.set(v);
    return p;
  }
  EVENKEEL_PACK static Pack of(const Lanes& a) {
    Pack p;
    std::memcpy(static_cast<void*>(&p), a.data(), sizeof p);
    return p;
  }
  EVENKEEL_PACK Lanes lanes() const {
    Lanes a;
    std::memcpy(a.data(), this, sizeof *this);
    return a;
  }

  EVENKEEL_PACK Pack& operator+=(const Pack& b) { return *this = of(get() + b.get()); }
  EVENKEEL_PACK Pack& operator-=(const Pack& b) { return *this = of(get() - b.get()); }
  EVENKEEL_PACK Pack& operator*=(const Pack& b) { return *this = of(get() * b.get()); }
};

// At namespace scope, since a friend in a class template is of no set: g++ leaves the pragma's target off it.
template <class A>
EVENKEEL_PACK Pack<A> operator+(const Pack<A>& a, const Pack<A>& b) {
  return Pack<A>::of(a.get() + b.get());
}
template <class A>
EVENKEEL_PACK Pack<A> operator+(const Pack<A>& a, std::type_identity_t<A> b) {
  return Pack<A>::of(a.get() + b);
}
template <class A>
EVENKEEL_PACK Pack<A> operator+(std::type_identity_t<A> a, const Pack<A>& b) {
  return Pack<A>::of(a + b.get());
}
template <class A>
EVENKEEL_PACK Pack<A> operator-(const Pack<A>& a, const Pack<A>& b) {
  return Pack<A>::of(a.get() - b.get());
}
template <class A>
EVENKEEL_PACK Pack<A> operator-(const Pack<A>& a, std::type_identity_t<A> b) {
  return Pack<A>::of(a.get() - b);
}
template <class A>
EVENKEEL_PACK Pack<A> operator-(std::type_identity_t<A> a, const Pack<A>& b) {
  return Pack<A>::of(a - b.get());
}
template <class A>
EVENKEEL_PACK Pack<A> operator*(const Pack<A>& a, const Pack<A>& b) {
  return Pack<A>::of(a.get() * b.get());
}
template <class A>
EVENKEEL_PACK Pack<A> operator*(const Pack<A>& a, std::type_identity_t<A> b) {
  return Pack<A>::of(a.get() * b);
}
template <class A>
EVENKEEL_PACK Pack<A> operator*(std::type_identity_t<A> a, const Pack<A>& b) {
  return Pack<A>::of(a * b.get());
}
template <class A>
EVENKEEL_PACK Pack<A> operator/(const Pack<A>& a, const Pack<A>& b) {
  return Pack<A>::of(a.get() / b.get());
}
template <class A>
EVENKEEL_PACK Pack<A> operator/(const Pack<A>& a, std::type_identity_t<A> b) {
  return Pack<A>::of(a.get() / b);
}
template <class A>
EVENKEEL_PACK Pack<A> operator/(std::type_identity_t<A> a, const Pack<A>& b) {
  return Pack<A>::of(a / b.get());
}
template <class A>
EVENKEEL_PACK Pack<A> operator-(const Pack<A>& a) {
  return Pack<A>::of(-a.get());
}

/// The first and the second half of a vector's lanes. Shuffles keep them in registers: through memory, a row of 768
/// features cost 3% more with AVX-512 (2026-11-30).
template <class A, class Vector>
EVENKEEL_HOST auto halves(const Vector& v) {
  constexpr int half = static_cast<int>(sizeof(v) / sizeof(A) / 2);
  return [&]<int... I>(std::integer_sequence<int, I...>) EVENKEEL_INLINE_LAMBDA {
#if defined(__CUDACC__)
    typedef A Half __attribute__((vector_size(sizeof(v) / 2)));
    return std::pair(Half{v[I]...}, Half{v[half + I]...});
#else
    return std::pair(__builtin_shufflevector(v, v, I...), __builtin_shufflevector(v, v, (half + I)...));
#endif
  }
  (std::make_integer_sequence<int, half>{});
}

/// Sum of the lanes, halves first: the order is one of the things that fix a result's bits.
template <class A>
EVENKEEL_HOST A lane_sum(const Pack<A>& p) {
  const auto sum = [](const auto& self, const auto& v) EVENKEEL_INLINE_LAMBDA -> A {
    if constexpr (sizeof(v) == 2 * sizeof(A)) {
      return v[0] + v[1];
    } else {
      const auto [low, high] = halves<A>(v);
      const auto both = low + high;
      return self(self, both);
    }
  };
  return sum(sum, p.get());
}

// g++ 12 and older warn of the undefined register that its AVX-512 intrinsics start from, wherever Eigen's functions
// are inlined.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

/// Loads one value, or a pack of neighbouring values, of T as V.
template <class V, class T>
EVENKEEL_HOST V load(const T* p) {
  using A = typename Lanes<V>::Scalar;
  if constexpr (std::is_same_v<V, A>) {
    return value_of<A>(p);
  } else if constexpr (std::is_same_v<T, A>) {
    return V::of(typename V::Vector(*reinterpret_cast<const typename V::InMemory*>(p)));
  } else if constexpr (std::is_same_v<A, float> && HasVector<T>) {
    return V::of(typename V::Vector(HalfVector<T>::load(p)));
#if !defined(__CUDACC__)
  } else if constexpr (std::is_same_v<A, double> && std::is_same_v<T, float>) {
    return V::of(FloatVector::load(p));
#endif
  } else {
    return V::of(typename V::Lanes(Eigen::Map<const Eigen::Array<T, V::size, 1>>(p).template cast<A>()));
  }
}

template <class V, class T>
EVENKEEL_HOST void store(T* p, const V& v) {
  using A = typename Lanes<V>::Scalar;
  if constexpr (std::is_same_v<V, A>) {
    *p = rounded_to<T>(v);
  } else if constexpr (std::is_same_v<T, A>) {
    *reinterpret_cast<typename V::InMemory*>(p) = v.get();
  } else if constexpr (std::is_same_v<A, float> && HasVector<T>) {
    const auto h = HalfVector<T>::rounded(v.get());
    std::memcpy(static_cast<void*>(p), &h, sizeof h);
#if !defined(__CUDACC__)
  } else if constexpr (std::is_same_v<A, double> && std::is_same_v<T, float>) {
    FloatVector::store(p, v.get());
#endif
  } else {
    Eigen::Map<Eigen::Array<T, V::size, 1>> m(p);
    m = v.lanes().template cast<T>();
  }
}

/// Whether `stream` goes past the cache for packs of A stored as T.
template <class A, class T>
inline constexpr bool streams_past_cache =
#if defined(__x86_64__) && !defined(__CUDACC__)
    std::is_same_v<A, float> && (std::is_same_v<T, float> || HasVector<T>)&&pack_size<A> * sizeof(T) >= 16;
#else
    false;
#endif

/// A store to p of what nobody reads soon: the old contents are not fetched and nothing is evicted. Such stores are
/// ordered by end_stream. Written 16 bytes at a time, to which p must be aligned: as fast as whole registers, which would
/// have to be aligned to more than a std::vector is.
template <class V, class T>
EVENKEEL_HOST void stream(T* p, const V& v) {
#if defined(__x86_64__) && !defined(__CUDACC__)
  const auto parts = [](const auto& self, float* to, const auto& vector) EVENKEEL_INLINE_LAMBDA -> void {
    if constexpr (sizeof(vector) == 16) {
      _mm_stream_ps(to, vector);
    } else {
      const auto [low, high] = halves<float>(vector);
      self(self, to, low);
      self(self, to + sizeof(low) / sizeof(float), high);
    }
  };
  if constexpr (!streams_past_cache<typename Lanes<V>::Scalar, T>) {
    store<V>(p, v);
  } else if constexpr (std::is_same_v<T, float>) {
    parts(parts, p, v.get());
  } else {
    const auto h = HalfVector<T>::rounded(v.get());
    typedef float Floats __attribute__((vector_size(sizeof h)));
    parts(parts, reinterpret_cast<float*>(p), reinterpret_cast<Floats>(h));
  }
#else
  store<V>(p, v);
#endif
}
inline void end_stream() {
#if defined(__x86_64__) && !defined(__CUDACC__)
  _mm_sfence();
#endif
}

/// Up to a pack of values that lie `stride` apart; lanes beyond `count` repeat the first. Out of line, since a copy of
/// variable length near accumulators would send them to memory.
template <class V, class T>
EVENKEEL_NOINLINE V load_lanes(const T* p, Index stride, int count) {
  using A = typename Lanes<V>::Scalar;
  A lane[V::size];
  for (int j = 0; j < V::size; ++j) lane[j] = value_of<A>(p + (j < count ? j * stride : 0));
  return load<V>(lane);
}

template <class V, class T>
EVENKEEL_NOINLINE void store_lanes(T* p, Index stride, int count, const V& v) {
  for (int j = 0; j < count; ++j) p[j * stride] = rounded_to<T>(v[j]);
}

/// 1 in the lanes first..last-1, else 0. Compared, not written lane by lane, for which a wide read would wait.
template <class V>
EVENKEEL_HOST V lane_mask(int first, int last) {
  using A = typename Lanes<V>::Scalar;
  const auto lanes = []<int... J>(std::integer_sequence<int, J...>) EVENKEEL_INLINE_LAMBDA {
    return typename V::Vector{A(J)...};
  }
  (std::make_integer_sequence<int, V::size>{});
  const V from_first = V::of(lanes < A(first) ? V(0).get() : V(1).get());
  return V::of(lanes < A(last) ? from_first.get() : V(0).get());
}

}  // namespace evenkeel::detail::kernels::EVENKEEL_KERNELS

template <class A>
struct evenkeel::detail::Lanes<evenkeel::detail::kernels::EVENKEEL_KERNELS::Pack<A>> {
  using V = kernels::EVENKEEL_KERNELS::Pack<A>;
  using Scalar = A;
  static EVENKEEL_PACK V splat(A a) { return V(a); }
  static EVENKEEL_PACK V min(const V& a, const V& b) { return V::of(b.get() < a.get() ? b.get() : a.get()); }
  static EVENKEEL_PACK V max(const V& a, const V& b) { return V::of(a.get() < b.get() ? b.get() : a.get()); }
  static EVENKEEL_PACK V select_less(const V& a, const V& b, const V& yes, const V& no) {
    return V::of(a.get() < b.get() ? yes.get() : no.get());
  }
  static EVENKEEL_PACK bool all_less(const V& a, const V& b) {
#if EVENKEEL_KERNEL_AVX512
    if constexpr (std::is_same_v<A, float>)
      return _mm512_cmp_ps_mask(a.get(), b.get(), _CMP_LT_OQ) == 0xffff;
    else
      return _mm512_cmp_pd_mask(a.get(), b.get(), _CMP_LT_OQ) == 0xff;
#elif EVENKEEL_KERNEL_AVX
    if constexpr (std::is_same_v<A, float>)
      return _mm256_movemask_ps(_mm256_cmp_ps(a.get(), b.get(), _CMP_LT_OQ)) == 0xff;
    else
      return _mm256_movemask_pd(_mm256_cmp_pd(a.get(), b.get(), _CMP_LT_OQ)) == 0xf;
#else
    return kernels::EVENKEEL_KERNELS::lane_sum(select_less(a, b, V(0), V(1))) == 0;
#endif
  }
  static EVENKEEL_PACK V separate(const V& a) {
    typename V::Vector v = a.get();
#if EVENKEEL_KERNEL_AVX512
    asm("" : "+v"(v));
#elif defined(__x86_64__)
    asm("" : "+x"(v));
#elif defined(__aarch64__)
    asm("" : "+w"(v));
#endif
    return V::of(v);
  }
  /// Rounded correctly, as that of a scalar is: Eigen's, with AVX-512, is off by up to 2 units in the last place.
  static EVENKEEL_PACK V sqrt(const V& a) {
#if EVENKEEL_KERNEL_AVX512
    if constexpr (std::is_same_v<A, float>)
      return V::of(typename V::Vector(_mm512_sqrt_ps(a.get())));
    else
      return V::of(typename V::Vector(_mm512_sqrt_pd(a.get())));
#elif EVENKEEL_KERNEL_AVX
    if constexpr (std::is_same_v<A, float>)
      return V::of(typename V::Vector(_mm256_sqrt_ps(a.get())));
    else
      return V::of(typename V::Vector(_mm256_sqrt_pd(a.get())));
#elif defined(__SSE2__) && !defined(__CUDACC__)
    if constexpr (std::is_same_v<A, float>)
      return V::of(typename V::Vector(_mm_sqrt_ps(a.get())));
    else
      return V::of(typename V::Vector(_mm_sqrt_pd(a.get())));
#else
    typename V::Vector root = a.get();
    for (int j = 0; j < V::size; ++j) root[j] = std::sqrt(root[j]);
    return V::of(root);
#endif
  }
  static EVENKEEL_PACK V fused(const V& a, const V& b, const V& c) {
#if EVENKEEL_KERNEL_AVX512
    if constexpr (std::is_same_v<A, float>)
      return V::of(typename V::Vector(_mm512_fmadd_ps(a.get(), b.get(), c.get())));
    else
      return V::of(typename V::Vector(_mm512_fmadd_pd(a.get(), b.get(), c.get())));
#elif EVENKEEL_KERNEL_FMA
    if constexpr (std::is_same_v<A, float>)
      return V::of(typename V::Vector(_mm256_fmadd_ps(a.get(), b.get(), c.get())));
    else
      return V::of(typename V::Vector(_mm256_fmadd_pd(a.get(), b.get(), c.get())));
#elif defined(__FP_FAST_FMA) && defined(__FP_FAST_FMAF)
    typename V::Vector sum = c.get();
    for (int j = 0; j < V::size; ++j) sum[j] = std::fma(a.get()[j], b.get()[j], sum[j]);
    return V::of(sum);
#else
    return V::of(a.get() * b.get() + c.get());
#endif
  }
  static V exp(const V& a) { return V::of(typename V::Lanes(a.lanes().exp())); }
  static V tanh(const V& a) { return V::of(typename V::Lanes(a.lanes().tanh())); }
  static V erf(const V& a) {
    return V::of(typename V::Lanes(a.lanes().unaryExpr([](A lane) { return std::erf(lane); })));
  }
  template <class T>
  static V round_to(const V& a) {
    T rounded[V::size];
    kernels::EVENKEEL_KERNELS::store<V>(rounded, a);
    return kernels::EVENKEEL_KERNELS::load<V>(rounded);
  }
};

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
