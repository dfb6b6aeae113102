/// Philox4x32-10 and the numbers made from its blocks: pure functions of their arguments, without Eigen, so that a CUDA
/// kernel draws the bits that the host draws.
///
/// Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011, section 3.2
/// and table 2.
#pragma once

#include "evenkeel/config.hpp"

#include <cmath>
#include <cstdint>

namespace evenkeel {

/// The four words that a counter is, and that one call of Philox makes of it.
struct PhiloxBlock {
  std::uint32_t word[4];
};

/// Ten rounds of Philox over `counter` under the key (key_low, key_high). The words stand in the order of the paper and
/// of its authors' Random123, whose known answers the tests hold.
///
/// Example: `ek::philox4x32_10({{0, 0, 0, 0}}, 0, 0).word[0]` is 0x6627e8d5.
EVENKEEL_HD constexpr PhiloxBlock philox4x32_10(PhiloxBlock counter, std::uint32_t key_low, std::uint32_t key_high) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product_0 = std::uint64_t{0xD2511F53u} * counter.word[0];
    const std::uint64_t product_2 = std::uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(product_2 >> 32) ^ counter.word[1] ^ key_low,
                static_cast<std::uint32_t>(product_2),
                static_cast<std::uint32_t>(product_0 >> 32) ^ counter.word[3] ^ key_high,
                static_cast<std::uint32_t>(product_0)}};
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }
  return counter;
}

/// Block number `block` of the stream `stream` under `seed`: key = seed, counter = (block, stream), low words first.
EVENKEEL_HD constexpr PhiloxBlock random_block(std::uint64_t seed, std::uint64_t stream, std::uint64_t block) {
  return philox4x32_10({{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                         static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}},
                       static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
}

namespace detail {

/// What a block is worth in numbers of type Real: four floats or two doubles.
template <class Real>
struct BlockDraws;

template <>
struct BlockDraws<float> {
  static constexpr int count = 4;

  static EVENKEEL_HD void uniforms(const PhiloxBlock& block, float* values) {
    for (int i = 0; i < count; ++i) values[i] = static_cast<float>(block.word[i] >> 8) * 0x1p-24f;
  }

  // Never 0 or 1, and as close to either: what a quantile function may be given.
  static EVENKEEL_HD void open_uniforms(const PhiloxBlock& block, double* values) {
    for (int i = 0; i < count; ++i) values[i] = (block.word[i] + 0.5) * 0x1p-32;
  }

  // Box-Muller in double and rounded once: libraries of host and device differ in the last bits of log, sin and cos,
  // which a float never shows, while float functions would put host and device several ulp apart. All 32 bits of a word
  // count, so that the tails reach 6.7 standard deviations; with 24 bits they would end at 5.8.
  static EVENKEEL_HD void normals(const PhiloxBlock& block, float* values) {
    constexpr double two_pi = 6.283185307179586477;
    for (int i = 0; i < count; i += 2) {
      const double radius = std::sqrt(-2.0 * std::log((block.word[i] + 0.5) * 0x1p-32));
      const double angle = two_pi * (block.word[i + 1] * 0x1p-32);
      values[i] = static_cast<float>(radius * std::cos(angle));
      values[i + 1] = static_cast<float>(radius * std::sin(angle));
    }
  }
};

template <>
struct BlockDraws<double> {
  static constexpr int count = 2;

  static EVENKEEL_HD std::uint64_t bits53(const PhiloxBlock& block, int i) {
    return ((std::uint64_t{block.word[2 * i + 1]} << 32) | block.word[2 * i]) >> 11;
  }

  static EVENKEEL_HD void uniforms(const PhiloxBlock& block, double* values) {
    for (int i = 0; i < count; ++i) values[i] = static_cast<double>(bits53(block, i)) * 0x1p-53;
  }

  static EVENKEEL_HD void open_uniforms(const PhiloxBlock& block, double* values) {
    for (int i = 0; i < count; ++i) values[i] = (static_cast<double>(bits53(block, i) >> 1) + 0.5) * 0x1p-52;
  }

  // The radius takes a uniform in (0, 1]: the logarithm of 0 would be an infinite weight.
  static EVENKEEL_HD void normals(const PhiloxBlock& block, double* values) {
    constexpr double two_pi = 6.283185307179586477;
    const double radius = std::sqrt(-2.0 * std::log(static_cast<double>(bits53(block, 0) + 1) * 0x1p-53));
    const double angle = two_pi * (static_cast<double>(bits53(block, 1)) * 0x1p-53);
    values[0] = radius * std::cos(angle);
    values[1] = radius * std::sin(angle);
  }
};

}  // namespace detail
}  // namespace evenkeel
