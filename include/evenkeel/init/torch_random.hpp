/// The numbers that torch's CPU generator draws after torch.manual_seed(seed), for float and double.
///
///   engine            Mersenne Twister with 32 bits, seeded with the low 32 bits of the seed
///   uniform float     u = (draw & 0xFFFFFF) * 2^-24
///   uniform double    u = (53 low bits of (first draw << 32 | second draw)) * 2^-53
///   U(lo, hi)         fma(u, hi - lo, lo)
///   normal, 16 values or more
///                     every place gets a uniform; then per block of 16 the pairs (j, j + 8): radius = sqrt(-2 log(1 -
///                     u[j])), angle = 2 pi u[j + 8], cos to j, sin to j + 8; a partial block at the end is drawn anew,
///                     as the last 16 values
///   normal, fewer than 16 values
///                     one by one in double: angle = 2 pi u1, radius = sqrt(-2 log1p(-u2)); radius cos angle is the
///                     value, radius sin angle waits for the next such call, whatever is drawn in between
///
/// Uniforms, and therefore torch's default Linear and Conv weights, have torch's bits; normals of fewer than 16 values
/// in float too. Normals of the block path agree within 2.4e-7 * max(1, |z|). That is torch on a machine with AVX2;
/// where torch runs without it (ATEN_CPU_CAPABILITY=default), its own numbers move: U(lo, hi) by its last bit, normals
/// by 2.2e-6.
///
/// Source: behaviour of torch.rand, torch.randn and Tensor.uniform_/normal_, observed with torch 1.13 and 2.15; stored
/// values in tests/init/torch_values.hpp. G. Box, M. Muller, A note on the generation of random normal deviates, 1958.
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <random>
#include <type_traits>

namespace evenkeel {

/// torch's sequential CPU generator: a state that every call moves on, so the order of calls is part of the result, and
/// drawing is for one thread at a time. Pass it by reference. Half and bfloat16 do not compile; they come from
/// RandomStream.
///
/// Example, torch.manual_seed(0); torch.randn(16, 64):
///
///   ek::TorchRandom random(0);
///   Eigen::Tensor<float, 2, Eigen::RowMajor> x(16, 64);
///   ek::normal(x, 0.0, 1.0, random);
class TorchRandom {
 public:
  explicit TorchRandom(std::uint64_t seed) { this->seed(seed); }

  /// torch.manual_seed: restarts the engine with the low 32 bits and forgets a waiting normal value.
  void seed(std::uint64_t seed) {
    engine_.seed(static_cast<std::uint32_t>(seed));
    has_waiting_ = false;
  }

  /// The next value of U(lo, hi), as one element of Tensor.uniform_(lo, hi).
  template <class T>
  T next_uniform(double lo = 0, double hi = 1) {
    require_torch_type<T>();
    const T low = static_cast<T>(lo), span = static_cast<T>(hi) - low;
    return std::fma(unit<T>(), span, low);
  }

  /// The next normal value of the path for few values, and for tensors that are not contiguous: call it per element in
  /// torch's order (row-major) and convert the result.
  double next_normal(double mean = 0, double std = 1) {
    double z = waiting_;
    if (has_waiting_) {
      has_waiting_ = false;
    } else {
      const double angle = two_pi<double> * unit<double>();
      const double radius = std::sqrt(-2.0 * std::log1p(-unit<double>()));
      waiting_ = radius * std::sin(angle);
      has_waiting_ = true;
      z = radius * std::cos(angle);
    }
    return std::fma(z, std, mean);
  }

  /// Writes data[0, count) as Tensor.uniform_(lo, hi) does.
  template <class T>
  void fill_uniform(T* data, std::ptrdiff_t count, double lo = 0, double hi = 1) {
    for (std::ptrdiff_t i = 0; i < count; ++i) data[i] = next_uniform<T>(lo, hi);
  }

  /// Writes data[0, count) as Tensor.normal_(mean, std) does with a contiguous tensor.
  template <class T>
  void fill_normal(T* data, std::ptrdiff_t count, double mean = 0, double std = 1) {
    require_torch_type<T>();
    if (count < block) {
      for (std::ptrdiff_t i = 0; i < count; ++i) data[i] = static_cast<T>(next_normal(mean, std));
      return;
    }
    for (std::ptrdiff_t i = 0; i < count; ++i) data[i] = unit<T>();
    for (std::ptrdiff_t i = 0; i + block <= count; i += block) normal_block(data + i, mean, std);
    if (count % block != 0) {
      T* const last = data + (count - block);
      for (std::ptrdiff_t i = 0; i < block; ++i) last[i] = unit<T>();
      normal_block(last, mean, std);
    }
  }

 private:
  static constexpr std::ptrdiff_t block = 16;

  template <class T>
  static constexpr T two_pi = static_cast<T>(6.283185307179586477);

  template <class T>
  static constexpr void require_torch_type() {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>,
                  "evenkeel: TorchRandom draws float and double; half and bfloat16 come from a RandomStream");
  }

  template <class T>
  T unit() {
    const std::uint64_t first = engine_();
    if constexpr (std::is_same_v<T, float>) {
      return static_cast<float>(first & 0xFFFFFFu) * 0x1p-24f;
    } else {
      const std::uint64_t bits = (first << 32) | engine_();
      return static_cast<double>(bits & 0x1FFFFFFFFFFFFFu) * 0x1p-53;
    }
  }

  // The angle is rounded to T as torch rounds it, which moves a normal by up to 1e-6; what follows is computed in
  // double, so that only torch's own last bits are left of the difference.
  template <class T>
  static void normal_block(T* data, double mean, double std) {
    for (std::ptrdiff_t j = 0; j < block / 2; ++j) {
      const T angle = two_pi<T> * data[j + block / 2];
      const double radius = std::sqrt(-2.0 * std::log(static_cast<double>(1 - data[j])));
      data[j] = scaled<T>(radius * std::cos(static_cast<double>(angle)), mean, std);
      data[j + block / 2] = scaled<T>(radius * std::sin(static_cast<double>(angle)), mean, std);
    }
  }

  template <class T>
  static T scaled(double z, double mean, double std) {
    return std::fma(static_cast<T>(z), static_cast<T>(std), static_cast<T>(mean));
  }

  std::mt19937 engine_;
  double waiting_ = 0;
  bool has_waiting_ = false;
};

}  // namespace evenkeel
