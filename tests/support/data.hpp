#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace support {

// Not a generator of <random>: the standard leaves its distributions to the implementation, and a failing seed must
// fail on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}

  double uniform() {  // in (0, 1)
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (double(z >> 11) + 0.5) * 0x1p-53;
  }

  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }

 private:
  std::uint64_t state_;
};

// Normal values that T holds exactly, so that the reference sees the very numbers that the library sees.
template <class T>
std::vector<double> normal(std::size_t count, std::uint64_t seed, double mean = 0, double spread = 1) {
  Random random(seed);
  std::vector<double> values(count);
  for (double& v : values) v = double(static_cast<T>(mean + spread * random.normal()));
  return values;
}

template <class T>
std::vector<T> as(const std::vector<double>& values) {
  std::vector<T> result;
  result.reserve(values.size());
  for (double v : values) result.push_back(static_cast<T>(v));
  return result;
}

}  // namespace support
