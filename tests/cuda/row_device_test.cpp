// Parts of the row kernels that no shape of the other tests reaches.

#include "evenkeel/detail/row_device.cuh"

#include "support/catch.hpp"

#include <cstdint>
#include <limits>

using namespace evenkeel::detail;

TEST_CASE("row device: a division by a constant is exact up to the largest numerator", "[cuda]") {
  constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  const std::int64_t powers[] = {1, 2, 4, 1024, std::int64_t{1} << 32, std::int64_t{1} << 61};
  for (const std::int64_t power : powers)
    for (const std::int64_t divisor : {power - 1, power, power + 1, 3 * (power / 2) + 1, power / 7 * 5 + 1}) {
      if (divisor < 1) continue;
      const Divisor by(divisor);
      for (const std::int64_t base : {std::int64_t{0}, divisor, largest / divisor * divisor, largest / 3 * 2, largest})
        for (const std::int64_t offset : {-2, -1, 0, 1, 2}) {
          if (base < -offset || (offset > 0 && base > largest - offset)) continue;
          const std::int64_t numerator = base + offset;
          std::int64_t rest = 0;
          CHECK(by.divide(numerator, rest) == numerator / divisor);
          CHECK(rest == numerator % divisor);
        }
    }
}
