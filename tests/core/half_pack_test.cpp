#include "evenkeel/detail/kernels_cpu.hpp"
#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

using namespace evenkeel::detail;

namespace {

template <class To, class From>
To bits_of(const From& value) {
  To bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
template <class T>
T from_bits(std::uint32_t bits) {
  const auto half_bits = static_cast<std::uint16_t>(bits);
  T value;
  std::memcpy(static_cast<void*>(&value), &half_bits, sizeof half_bits);
  return value;
}

/// The stored value that lies nearest to a, the even one of two: by search, in double.
template <class T>
std::uint16_t nearest_bits(float a) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(a) ? 0x8000 : 0);
  const double size = std::abs(static_cast<double>(a));
  const std::uint16_t infinity = bits_of<std::uint16_t>(std::numeric_limits<T>::infinity());
  std::uint16_t low = 0, high = infinity;  // neighbours at the end; low <= size < high
  if (std::isinf(a)) return sign | infinity;
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (static_cast<double>(static_cast<float>(from_bits<T>(middle))) <= size ? low : high) = middle;
  }
  const double below = static_cast<float>(from_bits<T>(low));
  // Above the largest number the step is that below it.
  const double step = high == infinity ? below - static_cast<double>(static_cast<float>(from_bits<T>(low - 1u)))
                                       : static_cast<double>(static_cast<float>(from_bits<T>(high))) - below;
  const double rest = size - below;
  return sign | (rest > step / 2 || (rest == step / 2 && low % 2 == 1) ? high : low);
}

}  // namespace

TEMPLATE_TEST_CASE("halves: every value is loaded as what it is, alone and in a pack", "", Eigen::half,
                   Eigen::bfloat16) {
  using T = TestType;
  using V = Pack<float>;
  T stored[V::size];
  int wrong = 0;
  for (std::uint32_t first = 0; first < 0x10000; first += V::size) {
    for (int j = 0; j < V::size; ++j) stored[j] = from_bits<T>(first + static_cast<std::uint32_t>(j));
    const V pack = load<V>(stored);
    for (int j = 0; j < V::size; ++j) {
      const float expected = static_cast<float>(stored[j]), alone = load<float>(stored + j);
      const bool right = std::isnan(expected) ? std::isnan(pack[j]) && std::isnan(alone)
                                              : bits_of<std::uint32_t>(expected) == bits_of<std::uint32_t>(pack[j]) &&
                                                    bits_of<std::uint32_t>(expected) == bits_of<std::uint32_t>(alone);
      wrong += !right;
    }
  }
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("halves: floats are stored as the nearest value, ties to even, subnormal numbers too", "",
                   Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  using V = Pack<float>;
  // All exponents; on, beside and between stored values; the bits that decide a tie.
  std::vector<float> floats;
  for (std::uint32_t exponent = 0; exponent <= 0xff; ++exponent)
    for (const std::uint32_t fraction :
         {0x0u, 0x1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, 0x10000u, 0x18000u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu,
          0x3000u, 0x3001u, 0x400000u, 0x7f7fffu, 0x7f8000u, 0x7ff000u, 0x7fffffu})
      for (const std::uint32_t sign : {0x0u, 0x80000000u})
        floats.push_back(bits_of<float>(sign | (exponent << 23) | (fraction & 0x7fffffu)));
  while (floats.size() % V::size != 0) floats.push_back(0);
  T stored[V::size];
  int wrong = 0;
  for (std::size_t first = 0; first < floats.size(); first += V::size) {
    store<V>(stored, load<V>(floats.data() + first));
    for (int j = 0; j < V::size; ++j) {
      const float a = floats[first + static_cast<std::size_t>(j)];
      T alone;
      store<float>(&alone, a);
      if (std::isnan(a)) {
        wrong += !(std::isnan(static_cast<float>(stored[j])) && std::isnan(static_cast<float>(alone)));
        continue;
      }
      const std::uint16_t expected = nearest_bits<T>(a);
      wrong += bits_of<std::uint16_t>(stored[j]) != expected || bits_of<std::uint16_t>(alone) != expected;
    }
  }
  CHECK(wrong == 0);
}
