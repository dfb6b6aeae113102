// QK-norm on a device, against the same layers on the CPU. Queries and keys lie in a fused buffer.
#include "cuda/builds.hpp"
#include "cuda/device_memory.hpp"
#include "evenkeel/norms/qk_norm.hpp"
#include "support/catch.hpp"
#include "support/data.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

using namespace cuda_test;
namespace ek = evenkeel;
using ek::Index;

namespace {

using T = float;
using Numbers = std::vector<double>;
constexpr ek::QkHeads heads{.queries = 4, .keys = 2, .features = 20};
constexpr Index tokens = 9, pitch = (4 + 2 + 2) * 20 + 3;

struct Fused {
  DeviceMemory<T> memory;
  explicit Fused(std::uint64_t seed) : memory(support::normal<T>(std::size_t(tokens * pitch), seed)) {}
  ek::AxisView<T> q() { return ek::heads_view(memory.data(), tokens, pitch, heads.queries, heads.features); }
  ek::AxisView<T> k() { return ek::heads_view(memory.data() + 80, tokens, pitch, heads.keys, heads.features); }
};

// A layer's outputs, and its gradients after an accumulating backward.
template <class Device, class Layer>
std::vector<Numbers> run(const Device& device, Layer& norm) {
  Fused x(1), dy(2), y(3), dx(4);
  norm.for_each_parameter([&](ek::ParameterRef<T> p) {
    const Numbers start = support::normal<T>(std::size_t(p.size), 5, 1, 0.5);
    for (std::size_t i = 0; i < start.size(); ++i) p.value[i] = p.gradient[i] = T(start[i]);
  });
  norm.reserve(device, x.q(), x.k());
  norm.forward(device, x.q(), x.k(), y.q(), y.k());
  norm.backward(device, dy.q(), dy.k(), x.q(), x.k(), dx.q(), dx.k());
  std::vector<Numbers> all{y.memory.values(), dx.memory.values()};
  norm.for_each_parameter(
      [&](ek::ParameterRef<T> p) { all.push_back(DeviceMemory<T>::read(p.gradient, std::size_t(p.size))); });
  return all;
}

void check_equal(const std::vector<Numbers>& got, const std::vector<Numbers>& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    INFO("result " << k);
    REQUIRE(got[k].size() == expected[k].size());
    double worst = 0, largest = 0;
    for (std::size_t i = 0; i < got[k].size(); ++i) {
      worst = std::fmax(worst, std::abs(got[k][i] - expected[k][i]));
      largest = std::fmax(largest, std::abs(expected[k][i]));
      if (!std::isfinite(got[k][i])) FAIL_CHECK("not finite");
    }
    CHECK(largest > 0.1);
    CHECK(worst <= 1e-5 * largest);  // sums of 180 rows of floats, in another order
  }
}

}  // namespace

TEST_CASE("QkNorm on a device is that of the CPU", "[cuda][qk_norm]") {
  use_order(Order::skew);
  for (const auto mode : {ek::QkNormMode::per_head, ek::QkNormMode::full_width}) {
    ek::QkNorm<T> on_cpu(mode, heads);
    ek::QkNorm<T, ek::RmsNorm<T, ek::CudaStorage>> on_device(mode, heads);
    check_equal(run(ek::CudaStream(nullptr, {2, 232448, 90}), on_device), run(ek::serial, on_cpu));
  }
}

TEST_CASE("QkL2Norm on a device is that of the CPU", "[cuda][qk_norm]") {
  use_order(Order::random);
  for (const bool per_head : {false, true}) {
    ek::QkL2Norm<T> on_cpu(heads, 3, {.scale_per_head = per_head});
    ek::QkL2Norm<T, ek::CudaStorage> on_device(heads, 3, {.scale_per_head = per_head});
    check_equal(run(ek::CudaStream(nullptr, {2, 232448, 90}), on_device), run(ek::serial, on_cpu));
  }
}
