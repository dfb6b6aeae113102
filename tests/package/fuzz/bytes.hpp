/// What a fuzzer's bytes mean: shapes, strides, choices and values, in the order in which a target asks for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace fuzz {

/// Ends the program: what a fuzzer calls a crash.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  /// The next byte; 0 when there is none left.
  std::uint8_t byte() { return place_ < size_ ? data_[place_++] : std::uint8_t{0}; }
  /// Between lo and hi, both included.
  int integer(int lo, int hi) { return lo + byte() % (hi - lo + 1); }
  bool flag() { return (byte() & 1) != 0; }
  /// Once in eight times: for what is wrong, so that most calls go through.
  bool rarely() { return byte() % 8 == 7; }

  /// Mostly numbers like those of a network; also the ends of the range, zeros, infinities, NaN and any bits at all.
  float value() {
    const std::uint8_t kind = byte();
    const float mantissa = static_cast<float>(static_cast<std::int8_t>(byte())) / 32;
    switch (kind % 16) {
      case 8:
        return mantissa * 1e30f;
      case 9:
        return mantissa * 1e-30f;
      case 10:
        return 1e4f + mantissa * 1e-2f;
      case 11:
        return 0;
      case 15: {
        std::uint32_t bits = 0;
        for (int i = 0; i < 4; ++i) bits = bits << 8 | byte();
        float any = 0;
        std::memcpy(&any, &bits, sizeof any);
        return any;
      }
      default:
        return mantissa;
    }
  }
  std::vector<float> values(std::size_t count) {
    std::vector<float> v(count);
    // Two bytes a value would make inputs too long to mutate well: short ones repeat themselves.
    const std::size_t own = count < 24 ? count : 24;
    for (std::size_t i = 0; i < own; ++i) v[i] = value();
    for (std::size_t i = own; i < count; ++i) v[i] = v[i - own] * (i % 2 ? 0.5f : 1.25f);
    return v;
  }
  double eps() {
    constexpr double choices[] = {1e-6, 0, 1e-5, 1e-12, 1e30, -1e-3};
    return choices[byte() % 6];
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_, place_ = 0;
};

}  // namespace fuzz
