/// Division of 64-bit numbers in kernels.
#pragma once

#include "evenkeel/detail/launch.cuh"

#include <cstdint>

namespace evenkeel::detail {

/// Division by a number that stays the same, as a product: the device has no instruction for it.
class Divisor {
 public:
  Divisor() = default;
  /// 0 < divisor < 2^62.
  explicit Divisor(std::int64_t divisor) : divisor_(divisor) {
    const auto d = static_cast<std::uint64_t>(divisor);
    while ((std::uint64_t{1} << shift_) < d) ++shift_;
    // 2^(63 + shift) / d, rounded up: too large by less than 2^shift / d, which no numerator below 2^63 can see.
    std::uint64_t rest = std::uint64_t{1} << shift_;
    multiplier_ = rest / d;
    rest %= d;
    for (int bit = 0; bit < 63; ++bit) {
      rest *= 2;
      multiplier_ = 2 * multiplier_ + (rest >= d);
      if (rest >= d) rest -= d;
    }
    if (rest > 0) ++multiplier_;
  }
  /// numerator / divisor, which leaves `rest`. 0 <= numerator.
  EVENKEEL_DEVICE std::int64_t divide(std::int64_t numerator, std::int64_t& rest) const {
    const auto quotient =
        static_cast<std::int64_t>(high_product(2 * static_cast<std::uint64_t>(numerator), multiplier_) >> shift_);
    rest = numerator - quotient * divisor_;
    return quotient;
  }

 private:
  std::int64_t divisor_ = 1;
  std::uint64_t multiplier_ = std::uint64_t{1} << 63;
  int shift_ = 0;
};

}  // namespace evenkeel::detail
