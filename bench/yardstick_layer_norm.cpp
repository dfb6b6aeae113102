#include "yardstick_layer_norm.hpp"

#include <algorithm>
#include <cmath>

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>

namespace {

using Index = std::ptrdiff_t;

#if defined(__AVX512F__)
using Register = __m512;
constexpr Index width = 16;
inline Register load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Register v) { _mm512_storeu_ps(p, v); }
inline Register set(float a) { return _mm512_set1_ps(a); }
inline Register add(Register a, Register b) { return _mm512_add_ps(a, b); }
inline Register subtract(Register a, Register b) { return _mm512_sub_ps(a, b); }
inline Register multiply_add(Register a, Register b, Register c) { return _mm512_fmadd_ps(a, b, c); }
inline Register multiply_subtract(Register a, Register b, Register c) { return _mm512_fmsub_ps(a, b, c); }
inline float sum(Register v) { return _mm512_reduce_add_ps(v); }
#else
using Register = __m256;
constexpr Index width = 8;
inline Register load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Register v) { _mm256_storeu_ps(p, v); }
inline Register set(float a) { return _mm256_set1_ps(a); }
inline Register add(Register a, Register b) { return _mm256_add_ps(a, b); }
inline Register subtract(Register a, Register b) { return _mm256_sub_ps(a, b); }
inline Register multiply_add(Register a, Register b, Register c) { return _mm256_fmadd_ps(a, b, c); }
inline Register multiply_subtract(Register a, Register b, Register c) { return _mm256_fmsub_ps(a, b, c); }
inline float sum(Register v) {
  const __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
#endif

struct Row {
  float shift, delta, rstd;
};

}  // namespace

namespace yardstick {

bool available() { return true; }
std::ptrdiff_t length_step() { return 2 * width; }

void layer_norm(const float* x, const float* weight, const float* bias, float* y, Index rows, Index length, float eps,
                float* statistics) {
  const float inverse_length = 1 / static_cast<float>(length);
  const auto finish = [&](float shift, Register s, Register q) {
    const float total = sum(s), squares = sum(q), delta = total * inverse_length;
    const float variance = std::max((squares - delta * total) * inverse_length, 0.0f);
    return Row{shift, delta, 1 / std::sqrt(variance + eps)};
  };
  Row row;
  {
    const Register shift = set(x[0]);
    Register s0 = set(0), s1 = s0, q0 = s0, q1 = s0;
    for (Index i = 0; i < length; i += 2 * width) {
      const Register a = subtract(load(x + i), shift), b = subtract(load(x + i + width), shift);
      s0 = add(s0, a), s1 = add(s1, b);
      q0 = multiply_add(a, a, q0), q1 = multiply_add(b, b, q1);
    }
    row = finish(x[0], add(s0, s1), add(q0, q1));
  }
  for (Index r = 0; r < rows; ++r, x += length, y += length) {
    statistics[3 * r] = row.shift;
    statistics[3 * r + 1] = row.delta;
    statistics[3 * r + 2] = row.rstd;
    const float* const next = r + 1 < rows ? x + length : x;
    const Register shift = set(row.shift), rstd = set(row.rstd), offset = set(row.delta * row.rstd);
    const Register next_shift = set(next[0]);
    Register s0 = set(0), s1 = s0, q0 = s0, q1 = s0;
    for (Index i = 0; i < length; i += 2 * width) {
      const Register a = subtract(load(next + i), next_shift), b = subtract(load(next + i + width), next_shift);
      s0 = add(s0, a), s1 = add(s1, b);
      q0 = multiply_add(a, a, q0), q1 = multiply_add(b, b, q1);
      const Register u = multiply_subtract(subtract(load(x + i), shift), rstd, offset);
      const Register v = multiply_subtract(subtract(load(x + i + width), shift), rstd, offset);
      store(y + i, multiply_add(u, load(weight + i), load(bias + i)));
      store(y + i + width, multiply_add(v, load(weight + i + width), load(bias + i + width)));
    }
    row = finish(next[0], add(s0, s1), add(q0, q1));
  }
}

}  // namespace yardstick
#else
namespace yardstick {

bool available() { return false; }
std::ptrdiff_t length_step() { return 1; }
void layer_norm(const float*, const float*, const float*, float*, std::ptrdiff_t, std::ptrdiff_t, float, float*) {}

}  // namespace yardstick
#endif
