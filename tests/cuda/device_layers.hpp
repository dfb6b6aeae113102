// Layers in a device's memory: their data and parameters, and what their calls ask of CUDA.
#pragma once

#include "cuda/row_norm_checks.hpp"
#include "support/cuda/launched.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace cuda_test {

using Matrix = Eigen::Map<Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
inline constexpr Index rows = 6, width = 40;
// Both sides compute in float, in another order: 40 roundings of numbers up to 8.
inline constexpr double near = 40 * 8 * 6e-8;

// A matrix in the device's memory, which the emulator's host reads too.
struct Batch {
  explicit Batch(std::uint64_t seed, double spread = 1) : memory(rows * width) {
    memory.put(support::normal<float>(std::size_t(rows * width), seed, 0.25, spread));
  }
  Matrix map() const { return {memory.data(), rows, width}; }
  DeviceArray<float> memory;
};

inline double distance(const Matrix& a, const Matrix& b) { return (a - b).abs().maxCoeff(); }
template <class P, class Q>
double distance(const P* a, const Q* b, Index size) {
  double worst = 0;
  for (Index i = 0; i < size; ++i) worst = std::max(worst, std::abs(double(a[i]) - double(b[i])));
  return worst;
}
template <class Layer>
void put_numbers(Layer& layer, std::uint64_t seed) {
  layer.for_each_parameter([&](ek::ParameterRef<float> p) {
    const auto v = support::as<float>(support::normal<float>(std::size_t(p.size), seed++, 0.7, 0.3));
    ek::CudaStorage::write(v.data(), p.value, p.size);
  });
}
template <class Layer>
void descend(Layer& layer) {
  layer.for_each_parameter([](ek::ParameterRef<float> p) {
    for (Index i = 0; i < p.size; ++i) p.value[i] -= 0.01f * p.gradient[i], p.gradient[i] = 0;
  });
}
template <class A, class B>
void copy_parameters(A& from, B& to) {
  std::map<std::string, const float*> values;
  from.for_each_parameter([&](ek::ParameterRef<float> p) { values[std::string(p.name)] = p.value; });
  to.for_each_parameter(
      [&](ek::ParameterRef<float> p) { ek::CudaStorage::copy(values.at(std::string(p.name)), p.value, p.size); });
}

// The calls that f made, without the launches; and the number of these.
template <class F>
std::pair<int, std::map<std::string, int>> calls_of(const F& f) {
  const auto before = emulator::record().calls;
  f();
  std::map<std::string, int> made;
  int launches = 0;
  for (const auto& [name, count] : emulator::record().calls) {
    const auto old = before.find(name);
    const int more = count - (old == before.end() ? 0 : old->second);
    if (name == "cudaLaunchKernelEx")
      launches = more;
    else if (more != 0)
      made[name] = more;
  }
  return {launches, made};
}
using Calls = std::map<std::string, int>;

inline const ek::CudaStream device(nullptr, small);

}  // namespace cuda_test
