/// Random numbers that are a function of (seed, stream, index): a tensor does not depend on threads, on its split over
/// ranks, or on what was drawn before. Includes no Eigen; a RandomStream can be passed to a CUDA kernel by value.
///
/// From index to value:
///
///   float (half and bfloat16 are these floats, rounded)   block = index / 4, lane = index % 4
///     uniform   (word[lane] >> 8) * 2^-24
///     normal    pair of lanes (0, 1) or (2, 3): r = sqrt(-2 log((word[even] + 0.5) * 2^-32)), t = 2 pi word[odd] *
///     2^-32,
///               r cos t at the even index, r sin t at the odd one; in double, rounded once
///   double                                                block = index / 2, lane = index % 2
///     uniform   k[lane] * 2^-53, k[lane] = the upper 53 bits of (word[2 lane + 1] << 32 | word[2 lane])
///     normal    r = sqrt(-2 log((k[0] + 1) * 2^-53)), t = 2 pi k[1] * 2^-53, r cos t at the even index, r sin t at the
///     odd
///   quantile    q(u) with u = (word[lane] + 0.5) * 2^-32 or, for double, (upper 52 bits of k[lane] + 0.5) * 2^-52
///
/// where word = philox4x32_10(counter = (block, stream), key = seed); see philox.hpp. Uniforms have the same bits on
/// every machine; normals in float agree within one ulp between math libraries, and normals in double within a few.
#pragma once

#include "evenkeel/config.hpp"
#include "evenkeel/init/philox.hpp"

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace evenkeel {

/// The number of the stream that belongs to a name: FNV-1a with 64 bits over its bytes (Fowler, Noll, Vo; RFC 9923). It
/// is part of the format: a name means the same stream in every version. Example: `ek::stream_id("a")` is
/// 0xaf63dc4c8601ec8c.
constexpr std::uint64_t stream_id(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

/// What a stream can fill: float, double, and 16-bit types that a float converts to.
template <class T>
concept RandomScalar = std::same_as<T, float> || std::same_as<T, double> ||
    (std::is_class_v<T> && !std::is_const_v<T> && sizeof(T) == 2 && requires(float f) { static_cast<T>(f); });

/// One tensor's numbers: value i is a function of (seed, stream, i) alone. Copying is free and nothing changes by
/// drawing.
///
/// Two tensors need two streams: one name or number each. Uniforms and normals of one stream come from the same bits,
/// so a stream is meant for one of them.
///
/// Example, a tensor filled at once, and the second half of it on another rank:
///
///   const ek::RandomStream stream(42, "decoder.0.weight");
///   stream.fill_normal(whole, n, 0.0, 0.02);
///   stream.from(n / 2).fill_normal(half, n - n / 2, 0.0, 0.02);        // the bits of whole[n / 2 ...]
class RandomStream {
 public:
  EVENKEEL_HD constexpr RandomStream(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

  /// The stream of a parameter's name, see stream_id.
  constexpr RandomStream(std::uint64_t seed, std::string_view name) : RandomStream(seed, stream_id(name)) {}

  /// The same stream seen from `first` on: value i of the result is value first + i of this one.
  [[nodiscard]] EVENKEEL_HD constexpr RandomStream from(std::uint64_t first) const {
    RandomStream shifted = *this;
    shifted.first_ += first;
    return shifted;
  }

  /// How many values stand before value 0 in its block.
  int lead(int block_values) const { return static_cast<int>(first_ % static_cast<std::uint64_t>(block_values)); }

  /// Value `index` of U(lo, hi) as fma(u, hi - lo, lo) with u in [0, 1); rounding can reach hi itself.
  template <RandomScalar T>
  EVENKEEL_HD T uniform(std::uint64_t index, double lo = 0, double hi = 1) const {
    Real<T> values[width<T>];
    scaled_uniforms<Real<T>>((first_ + index) / width<T>, lo, hi, values);
    return static_cast<T>(values[(first_ + index) % width<T>]);
  }

  /// Value `index` of the normal distribution, fma(z, std, mean).
  template <RandomScalar T>
  EVENKEEL_HD T normal(std::uint64_t index, double mean = 0, double std = 1) const {
    Real<T> values[width<T>];
    scaled_normals<Real<T>>((first_ + index) / width<T>, mean, std, values);
    return static_cast<T>(values[(first_ + index) % width<T>]);
  }

  /// Writes data[i] = uniform(i, lo, hi) for i in [0, count), each block drawn once.
  template <RandomScalar T>
  void fill_uniform(T* data, std::ptrdiff_t count, double lo = 0, double hi = 1) const {
    fill(data, count,
         [=, this](std::uint64_t block, Real<T>* values) { scaled_uniforms<Real<T>>(block, lo, hi, values); });
  }

  /// Writes data[i] = normal(i, mean, std) for i in [0, count), each block drawn once.
  template <RandomScalar T>
  void fill_normal(T* data, std::ptrdiff_t count, double mean = 0, double std = 1) const {
    fill(data, count,
         [=, this](std::uint64_t block, Real<T>* values) { scaled_normals<Real<T>>(block, mean, std, values); });
  }

  /// What a quantile function is given for the values of one block: two of double, four of the rest. Block 0 holds value 0,
  /// behind lead() others.
  template <RandomScalar T>
  EVENKEEL_HD void open_uniforms(std::uint64_t block, double* uniforms) const {
    detail::BlockDraws<Real<T>>::open_uniforms(random_block(seed_, stream_, first_ / width<T> + block), uniforms);
  }

  /// Writes data[i] = quantile(u) for i in [0, count), u in (0, 1) being a double that is never 0 or 1: any distribution
  /// by the inverse of its cumulative distribution function. Example: `stream.fill_by_quantile(data, n, [](double u) {
  /// return -std::log(u); });` for the exponential distribution.
  template <RandomScalar T, class Quantile>
  void fill_by_quantile(T* data, std::ptrdiff_t count, const Quantile& quantile) const {
    fill(data, count, [&quantile, this](std::uint64_t block, Real<T>* values) {
      double uniforms[width<T>];
      detail::BlockDraws<Real<T>>::open_uniforms(random_block(seed_, stream_, block), uniforms);
      for (std::uint64_t i = 0; i < width<T>; ++i) values[i] = static_cast<Real<T>>(quantile(uniforms[i]));
    });
  }

 private:
  template <class T>
  using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

  template <class T>
  static constexpr std::uint64_t width = detail::BlockDraws<Real<T>>::count;

  // The fma is written out because a compiler may or may not contract a product and a sum, from one caller to the next.
  template <class R>
  EVENKEEL_HD void scaled_uniforms(std::uint64_t block, double lo, double hi, R* values) const {
    detail::BlockDraws<R>::uniforms(random_block(seed_, stream_, block), values);
    const R low = static_cast<R>(lo), span = static_cast<R>(hi) - low;
    for (std::uint64_t i = 0; i < width<R>; ++i) values[i] = std::fma(values[i], span, low);
  }

  template <class R>
  EVENKEEL_HD void scaled_normals(std::uint64_t block, double mean, double std, R* values) const {
    detail::BlockDraws<R>::normals(random_block(seed_, stream_, block), values);
    for (std::uint64_t i = 0; i < width<R>; ++i) {
      values[i] = std::fma(values[i], static_cast<R>(std), static_cast<R>(mean));
    }
  }

  template <class T, class Draw>
  void fill(T* data, std::ptrdiff_t count, Draw draw) const {
    Real<T> values[width<T>];
    std::uint64_t index = first_;
    for (std::ptrdiff_t i = 0; i < count;) {
      draw(index / width<T>, values);
      for (std::uint64_t lane = index % width<T>; lane < width<T> && i < count; ++lane, ++i, ++index) {
        data[i] = static_cast<T>(values[lane]);
      }
    }
  }

  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t first_ = 0;
};

namespace detail {

/// Memory of a device to fill with the uniforms of a stream; draw_uniforms(device, Uniforms) does it, found by this
/// type.
struct Uniforms {
  RandomStream stream;
  float* data;
  std::ptrdiff_t count;
};

}  // namespace detail
}  // namespace evenkeel
