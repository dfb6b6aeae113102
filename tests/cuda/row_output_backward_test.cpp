// Backward from y on a device, after forwards in place, against the CPU's.
#include "cuda/builds.hpp"
#include "cuda/device_memory.hpp"
#include "support/catch.hpp"
#include "support/cuda/launched.hpp"
#include "support/data.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

using namespace cuda_test;
namespace ek = evenkeel;
using ek::Index;

namespace {

using Numbers = std::vector<double>;
using Sets = std::vector<Numbers>;
const ek::CudaStream cuda(nullptr, {2, 232448, 90});

struct Case {
  Index rows, length;
  bool unit_offset = false, has_weight = true;
  Index more = 0;          // room for features beside those that are kept
  std::size_t before = 0;  // elements ahead of every tensor: misaligned
};

// In effect 0, tiny, and small beside the bias, on the device and on the CPU alike.
template <class T>
Numbers weights_of(const Case& c) {
  Numbers weight = support::normal<T>(std::size_t(c.length), 1, 0.5, 1.0);
  for (std::size_t i = 0; i < weight.size(); ++i)
    if (i % 5 == 1 || i % 5 == 2) weight[i] = double(static_cast<T>(c.unit_offset ? -1 : i % 5 == 1 ? 0 : 1e-6));
  return weight;
}
template <class T>
Numbers biases_of(const Case& c) {
  Numbers bias = support::normal<T>(std::size_t(c.length), 2);
  for (std::size_t i = 3; i < bias.size(); i += 5) bias[i] = 100;
  return bias;
}

// (y, dx, dweight, dbias) of a norm in place.
template <bool Centred, class T, int StorageOrder, class Device, class Storage>
Sets run(const Device& device, const Storage&, const Case& c, Index room) {
  using A = ek::accumulator_t<T>;
  using Matrix = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, Eigen::Dynamic, StorageOrder>>;
  using Vector = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;
  const auto size = std::size_t(c.rows * c.length), n = std::size_t(c.length);
  DeviceMemory<T> y_memory(support::normal<T>(size, 3, 0.25, 1.5), c.before),
      dx_memory(support::normal<T>(size, 4), c.before);
  DeviceMemory<T> weight(weights_of<T>(c), c.before), bias(biases_of<T>(c)), dweight(Numbers(n, 0.5)),
      dbias(Numbers(n, 0.25));
  Matrix y(y_memory.data(), c.rows, c.length), dx(dx_memory.data(), c.rows, c.length);
  const auto vector = [&](DeviceMemory<T>& m) { return Vector(m.data(), c.length); };
  std::conditional_t<Centred, ek::LayerNormSaved<A, Storage>, ek::RmsNormSaved<A, Storage>> saved;
  saved.reserve_from_output(device, y, room, 1);
  const auto both = [&](const auto& w, auto&& dw) {
    auto db = vector(dbias);
    if constexpr (Centred) {
      ek::layer_norm(device, y, w, vector(bias), y, saved,
                     {.eps = 1e-5, .axis = 1, .unit_offset = c.unit_offset, .backward_from_output = true});
      ek::layer_norm_backward_from_output(device, dx, y, w, vector(bias), saved, dx, dw, db);
    } else {
      ek::rms_norm(device, y, w, y, saved,
                   {.eps = 1e-5, .axis = 1, .unit_offset = c.unit_offset, .backward_from_output = true});
      ek::rms_norm_backward_from_output(device, dx, y, w, ek::none, saved, dx, dw, db);
    }
  };
  if (c.has_weight)
    both(vector(weight), vector(dweight));
  else
    both(ek::none, ek::none);
  return {y_memory.values(), dx_memory.values(), dweight.values(), dbias.values()};
}

template <bool Centred, class T>
Index kept_features(const Case& c) {
  if (!c.has_weight) return 0;
  const Numbers weight = weights_of<T>(c), bias = Centred ? biases_of<T>(c) : Numbers(weight.size(), 0);
  Index kept = 0;
  for (std::size_t i = 0; i < weight.size(); ++i) {
    const double w = std::abs(weight[i] + c.unit_offset);
    kept += w * 8 <= std::abs(bias[i]) || w < 1e-18;
  }
  return kept;
}

template <bool Centred, class T, int StorageOrder>
void check(const Case& c) {
  const Index kept = kept_features<Centred, T>(c);
  INFO(c.rows << " x " << c.length << ", unit offset " << c.unit_offset << ", weight " << c.has_weight << ", " << kept
              << " kept, before " << c.before << ", " << sizeof(T) << " bytes");
  const Sets expected = run<Centred, T, StorageOrder>(ek::serial, ek::HostStorage(), c, 0);
  Sets first;
  for (const Order order : orders) {
    use_order(order);
    const Sets got = run<Centred, T, StorageOrder>(cuda, ek::CudaStorage(), c, std::min(c.length, kept + c.more));
    if (first.empty()) first = got;
    CHECK(got == first);
  }
  const double epsilon = std::is_same_v<T, Eigen::bfloat16> ? 0x1p-7 : double(std::numeric_limits<T>::epsilon());
  for (std::size_t k = 0; k < expected.size(); ++k) {
    INFO("result " << k);
    double largest = 0, worst = 0;
    for (std::size_t i = 0; i < expected[k].size(); ++i) {
      const double error = std::abs(first[k][i] - expected[k][i]);
      largest = std::max(largest, std::abs(expected[k][i]));
      worst = std::max(worst, error < INFINITY ? error : INFINITY);
    }
    // Sums in another order, of values that y gives back to a few roundings of itself.
    CHECK(worst <= (std::is_same_v<T, Eigen::bfloat16> ? 2 : 32) * epsilon * largest);
  }
  if (kept == 0) return;
  // Too little room is not known before the device has looked: nothing of dx is a number then.
  const Sets lacking = run<Centred, T, StorageOrder>(cuda, ek::CudaStorage(), c, kept - 1);
  CHECK(std::all_of(lacking[1].begin(), lacking[1].end(), [](double x) { return std::isnan(x); }));
}

}  // namespace

TEST_CASE("layer_norm_backward_from_output on a device is that of the CPU", "[cuda][layer_norm]") {
  for (const Case& c : {Case{1, 4}, Case{9, 5, true}, Case{13, 37, false, true, 3, 1}, Case{13, 36, false, false},
                        Case{300, 64, true, true, 1}, Case{3, 2500}})
    check<true, float, Eigen::RowMajor>(c);
  check<true, float, Eigen::ColMajor>({130, 33, false, true, 1000});
  CHECK(emulator::never_launched("detail/output_backward_cuda.cuh") == std::set<std::string>{});
}
TEST_CASE("rms_norm_backward_from_output on a device is that of the CPU", "[cuda][rms_norm]") {
  for (const Case& c : {Case{9, 5}, Case{13, 37, true, true, 3, 1}, Case{13, 40, false, false}, Case{64, 264}})
    check<false, Eigen::bfloat16, Eigen::RowMajor>(c);
}

TEST_CASE("a backward from y on a device needs room", "[cuda][layer_norm]") {
  DeviceMemory<float> x(support::normal<float>(24, 1)), y(std::size_t(24));
  using Matrix = Eigen::Map<Eigen::Array<float, 3, 8, Eigen::RowMajor>>;
  Matrix in(x.data()), out(y.data());
  ek::LayerNormSaved<float, ek::CudaStorage> saved;
  const ek::LayerNormOptions options{.axis = 1, .backward_from_output = true};
  CHECK_THROWS_AS(saved.reserve_from_output(cuda, in, 9, 1), ek::ShapeError);
  CHECK_THROWS_AS(saved.reserve_from_output(cuda, in, -1, 1), ek::ShapeError);
  saved.reserve(cuda, in, 1);
  CHECK_THROWS_WITH(ek::layer_norm(cuda, in, ek::none, ek::none, out, saved, options),
                    "layer_norm: saved has no room for a backward from the output; call "
                    "saved.reserve_from_output(device, x, features) before the forward");
  CHECK(std::isnan(y.values()[0]));
  saved.reserve_from_output(cuda, in, 0, 1);
  ek::layer_norm(cuda, in, ek::none, ek::none, out, saved);
  CHECK_THROWS_AS(ek::layer_norm_backward_from_output(cuda, in, out, ek::none, ek::none, saved, in, ek::none, ek::none),
                  ek::ShapeError);
}
