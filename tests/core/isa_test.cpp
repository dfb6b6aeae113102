#include "core/isa_unit.hpp"
#include "support/catch.hpp"

#include <cmath>
#include <string>

TEST_CASE("instruction sets: units built with different flags link and each runs its own code") {
  std::vector<float> x(static_cast<std::size_t>(isa::rows * isa::length));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i) * 1.7f);
  const isa::Result native = isa::native(x), baseline = isa::baseline(x);
  INFO(native.name << " and " << baseline.name);
#if defined(__AVX2__)
  CHECK(std::string(native.name) != baseline.name);
#endif
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::abs(native.y[i] - baseline.y[i]) < 2e-6f);
}
