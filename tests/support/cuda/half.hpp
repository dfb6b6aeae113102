#pragma once

// Stand-ins for CUDA's 16-bit types: the same bits, the same rounding, and the conversions that kernels use, all of them
// explicit, so that a kernel which computes in 16 bits by accident does not compile.

#include <bit>
#include <cmath>
#include <cstdint>

namespace emulator {

inline constexpr std::uint16_t nan_bits = 0x7fff;  // CUDA's, whatever NaN comes in

// Nearest even, overflow to infinity.
inline std::uint16_t bfloat16_bits(float value) {
  if (std::isnan(value)) return nan_bits;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline std::uint16_t half_bits(float value) {
  if (std::isnan(value)) return nan_bits;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // from 2^16 on
  if (magnitude < 0x38800000u) {
    // Below 2^-14 a half counts units of 2^-24, which are the last places of floats around 0.5: this addition rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  // 13 bits are dropped, the exponent's bias falls from 127 to 15; a carry out of the largest half makes infinity.
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

inline float half_value(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const std::uint32_t wide_exponent = exponent == 0x1f ? 0xffu : exponent + 112u;
  return std::bit_cast<float>(sign | (wide_exponent << 23) | (mantissa << 13));
}

// Rounded to odd, the value keeps what decides a second rounding to 16 bits: as if there had been only one.
inline float float_for_rounding(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  if (std::isnan(value) || back == value) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::abs(back) > std::abs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

}  // namespace emulator

struct __half {
  __half() = default;
  explicit __half(float value) : bits(emulator::half_bits(value)) {}
  explicit __half(double value) : bits(emulator::half_bits(emulator::float_for_rounding(value))) {}
  explicit operator float() const { return emulator::half_value(bits); }
  explicit operator double() const { return emulator::half_value(bits); }
  std::uint16_t bits;
};

struct __nv_bfloat16 {
  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float value) : bits(emulator::bfloat16_bits(value)) {}
  explicit __nv_bfloat16(double value) : bits(emulator::bfloat16_bits(emulator::float_for_rounding(value))) {}
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
  explicit operator double() const { return static_cast<float>(*this); }
  std::uint16_t bits;
};
