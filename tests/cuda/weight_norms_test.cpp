// Norms of weights on a device, against the same functions on the CPU.
#include "cuda/builds.hpp"
#include "cuda/device_memory.hpp"
#include "evenkeel/tensor.hpp"
#include "support/catch.hpp"
#include "support/cuda/launched.hpp"
#include "support/data.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace cuda_test;
namespace ek = evenkeel;
using ek::Index;

namespace {

const ek::CudaFacts few{2, 232448, 90};
using Numbers = std::vector<double>;

// The shape of a weight: (a, b, c), and which of the axes counts the output units.
struct Shape {
  Index a, b, c;
  int axis;
  std::size_t before = 0;  // elements ahead of every tensor: misaligned
  std::size_t size() const { return std::size_t(a * b * c); }
  std::size_t units() const { return std::size_t(axis == 0 ? a : axis == 1 ? b : c); }
};
// Units that are contiguous; units whose neighbours are neighbours in memory, as the last axis of a matrix; units between.
const std::vector<Shape> shapes{{5, 1, 1, 0},    {7, 33, 1, 0},   {33, 7, 1, 0, 1}, {3, 96, 1, 0},    {2, 1000, 1, 0},
                                {1, 8200, 1, 0}, {1, 1, 5, 2},    {7, 1, 33, 2},    {33, 1, 7, 2, 1}, {96, 1, 3, 2},
                                {1000, 1, 8, 2}, {8200, 1, 9, 2}, {5, 6, 9, 1},     {64, 3, 1, 1, 3}};

template <class T>
using Weight = Eigen::TensorMap<Eigen::Tensor<T, 3, Eigen::RowMajor>>;
template <class T>
using Vector = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;

// Memory that both devices reach: the emulator's is the host's.
template <class T>
struct Memory : DeviceMemory<T> {
  using DeviceMemory<T>::DeviceMemory;
  Vector<T> vector() { return {this->data(), Index(this->size())}; }
  Weight<T> weight(const Shape& s) { return {this->data(), s.a, s.b, s.c}; }
};

// The largest difference, in units of the type's rounding of the largest value; infinite where one is NaN.
template <class T>
double difference(const Numbers& got, const Numbers& expected) {
  double largest = 0, worst = got.size() == expected.size() ? 0 : INFINITY;
  for (const double e : expected) largest = std::max(largest, std::abs(e));
  for (std::size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
    const double error = std::abs(got[i] - expected[i]);
    worst = std::max(worst, error <= 0 ? 0 : error < INFINITY ? error : INFINITY);
  }
  const double epsilon = std::is_same_v<T, Eigen::bfloat16> ? 0x1p-7 : double(std::numeric_limits<T>::epsilon());
  return worst == 0 ? 0 : worst / (largest * epsilon);
}

using Sets = std::vector<Numbers>;
// Both devices sum in double, in another order: a value may fall to the other side of a rounding to T, rarely by more.
template <class T>
void check_equal(const Sets& got, const Sets& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    INFO("result " << k);
    CHECK(difference<T>(got[k], expected[k]) <= (std::is_same_v<T, double> ? 64 : 1));
    CHECK(std::any_of(got[k].begin(), got[k].end(), [](double x) { return x != 0; }));
  }
}

// run(device, storage, tensors...) on the device and on the CPU.
template <class T, class F>
void check_devices(const Shape& shape, const F& run) {
  static std::size_t turn = 0;
  use_order(orders[turn++ % orders.size()]);
  INFO(shape.a << " x " << shape.b << " x " << shape.c << ", axis " << shape.axis << ", before " << shape.before << ", "
               << sizeof(T) << " bytes");
  const Sets got = run(ek::CudaStream(nullptr, few), ek::CudaStorage());
  check_equal<T>(got, run(ek::serial, ek::HostStorage()));
  CHECK(got == run(ek::CudaStream(nullptr, few), ek::CudaStorage()));  // the same bits again
}

template <class T>
Numbers random(std::size_t size, std::uint64_t seed) {
  return support::normal<T>(size, seed, 0.1, 1.5);
}

template <class Storage>
using StorageOf = std::remove_cvref_t<Storage>;

}  // namespace

TEMPLATE_TEST_CASE("weight_norm on a device is that of the CPU", "[cuda][weight_norm]", float, Eigen::bfloat16) {
  using T = TestType;
  for (const Shape& s : shapes)
    for (const bool whole : {false, true}) {
      if (whole && s.size() > 500) continue;
      const std::size_t units = whole ? 1 : s.units();
      check_devices<T>(s, [&](const auto& device, const auto& storage) {
        Memory<T> v(random<T>(s.size(), 1), s.before), dw(random<T>(s.size(), 2), s.before), w(s.size(), s.before),
            dv(random<T>(s.size(), 3), s.before);
        Memory<T> g(random<T>(units, 4)), dg(random<T>(units, 5));
        ek::WeightNormSaved<ek::accumulator_t<T>, StorageOf<decltype(storage)>> saved;
        const ek::WeightNormOptions options{.axis = s.axis, .whole = whole};
        saved.reserve(device, v.weight(s), options);
        auto dg_map = dg.vector();
        ek::weight_norm(device, v.weight(s), g.vector(), w.weight(s), saved, options);
        ek::weight_norm_backward(device, dw.weight(s), v.weight(s), g.vector(), saved, dv.weight(s), dg_map);
        Sets sets{w.values(), dv.values(), dg.values()};
        ek::weight_norm_backward(device, dw.weight(s), v.weight(s), g.vector(), saved, dv.weight(s), dg_map,
                                 ek::GradientMode::overwrite);
        // Of one value per unit the direction is all there is: what its gradient is but for rounding is zero.
        if (s.size() > units) sets.push_back(dv.values());
        sets.push_back(dg.values());
        return sets;
      });
    }
}

TEST_CASE("weight_norm on a device: huge, tiny and zero directions", "[cuda][weight_norm]") {
  for (const double size : {1e-300, 1e300, 1e-30})
    for (const Shape& s : {Shape{3, 40, 1, 0}, Shape{40, 1, 3, 2}}) {
      check_devices<double>(s, [&](const auto& device, const auto& storage) {
        Numbers values = random<double>(s.size(), 1);
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] *= size;
          if ((s.axis == 0 ? i / 40 : i % 3) == 1) values[i] = 0;
        }
        Memory<double> v(values), w(s.size()), g(random<double>(3, 3));
        ek::WeightNormSaved<double, StorageOf<decltype(storage)>> saved;
        saved.reserve(device, v.weight(s), {.axis = s.axis});
        ek::weight_norm(device, v.weight(s), g.vector(), w.weight(s), saved, {.axis = s.axis});
        CHECK(w.values()[s.axis == 0 ? 41 : 4] == 0);
        return Sets{w.values()};
      });
    }
}

TEST_CASE("weight_norm_split on a device", "[cuda][weight_norm]") {
  const Shape s{7, 1, 33, 2};
  check_devices<float>(s, [&](const auto& device, const auto&) {
    Memory<float> w(random<float>(s.size(), 1)), v(s.size()), g(33);
    auto g_map = g.vector();
    ek::weight_norm_split(device, w.weight(s), v.weight(s), g_map, {.axis = 2});
    CHECK(v.values() == w.values());
    for (Index i = 0; i < s.a; ++i) w.data()[i * s.c + 5] = 0;
    CHECK_THROWS_AS(ek::weight_norm_split(device, w.weight(s), v.weight(s), g_map, {.axis = 2}), ek::ShapeError);
    return Sets{g.values()};
  });
}

TEST_CASE("weight standardization on a device is that of the CPU", "[cuda][weight_standardization]") {
  using T = float;
  for (const Shape& s : shapes)
    for (const int kind : {0, 1, 2}) {
      if (s.size() == s.units() || (s.size() > 5000 && kind != 1)) continue;
      check_devices<T>(s, [&](const auto& device, const auto& storage) {
        Memory<T> w(random<T>(s.size(), 1), s.before), dy(random<T>(s.size(), 2), s.before), y(s.size(), s.before),
            dw(random<T>(s.size(), 3), s.before);
        Memory<T> gain(random<T>(s.units(), 4)), dgain(random<T>(s.units(), 5));
        ek::WeightStandardizationSaved<float, StorageOf<decltype(storage)>> saved;
        saved.reserve(device, w.weight(s), s.axis);
        auto dgain_map = dgain.vector();
        if (kind == 0) {
          ek::weight_standardization(device, w.weight(s), y.weight(s), saved, {.axis = s.axis});
          for (const auto mode : {ek::GradientMode::overwrite, ek::GradientMode::accumulate})
            ek::weight_standardization_backward(device, dy.weight(s), w.weight(s), saved, dw.weight(s), mode);
        } else {
          ek::scaled_weight_standardization(device, w.weight(s), gain.vector(), y.weight(s), saved,
                                            {.eps_added = kind == 2, .axis = s.axis});
          for (const auto mode : {ek::GradientMode::overwrite, ek::GradientMode::accumulate})
            ek::scaled_weight_standardization_backward(device, dy.weight(s), w.weight(s), gain.vector(), saved,
                                                       dw.weight(s), dgain_map, mode);
        }
        return Sets{y.values(), dw.values(), dgain.values()};
      });
    }
}

TEST_CASE("weight standardization on a device: a constant unit becomes 0", "[cuda][weight_standardization]") {
  const Shape s{3, 40, 1, 0};
  for (const double value : {0.1, 1e30, 3e-40, 0.0}) {
    Memory<float> w(Numbers(s.size(), value)), y(s.size());
    const ek::CudaStream device(nullptr, few);
    ek::WeightStandardizationSaved<float, ek::CudaStorage> saved;
    saved.reserve(device, w.weight(s));
    ek::weight_standardization(device, w.weight(s), y.weight(s), saved, {.eps = 0});
    CHECK(y.values() == Numbers(s.size(), 0));
  }
}

TEST_CASE("spectral norm on a device is that of the CPU", "[cuda][spectral_norm]") {
  using T = float;
  for (const Shape& s : shapes)
    for (const bool has_gamma : {false, true}) {
      if (s.size() > 5000) continue;
      const std::size_t rows = s.units(), columns = s.size() / rows;
      check_devices<T>(s, [&](const auto& device, const auto& storage) {
        Memory<T> w(random<T>(s.size(), 1), s.before), dy(random<T>(s.size(), 2), s.before), y(s.size(), s.before),
            dw(random<T>(s.size(), 3), s.before);
        Memory<float> u(random<float>(rows, 4)), v(random<float>(columns, 5));
        Memory<T> gamma(random<T>(1, 6)), dgamma(random<T>(1, 7));
        ek::SpectralNormSaved<float, StorageOf<decltype(storage)>> saved;
        const ek::SpectralNormOptions options{.power_iterations = has_gamma ? 1 : 2, .axis = s.axis};
        saved.reserve(device, w.weight(s), options);
        auto u_map = u.vector(), v_map = v.vector();
        auto dgamma_map = dgamma.vector();
        for (int call = 0; call < 2; ++call) {
          const ek::GradientMode mode = call == 0 ? ek::GradientMode::overwrite : ek::GradientMode::accumulate;
          if (has_gamma) {
            ek::sigma_reparam(device, w.weight(s), gamma.vector(), u_map, v_map, y.weight(s), saved, options);
            ek::sigma_reparam_backward(device, dy.weight(s), w.weight(s), gamma.vector(), saved, dw.weight(s),
                                       dgamma_map, mode);
          } else {
            ek::spectral_norm(device, w.weight(s), u_map, v_map, y.weight(s), saved, options);
            ek::spectral_norm_backward(device, dy.weight(s), w.weight(s), saved, dw.weight(s), mode);
          }
        }
        const Sets vectors{u.values(), v.values()};
        CHECK(difference<float>(vectors[0], vectors[0]) == 0);
        return Sets{y.values(), u.values(), v.values(), dw.values(), dgamma.values()};
      });
    }
}

TEST_CASE("spectral norm on a device: inference, and a weight of zeros", "[cuda][spectral_norm]") {
  const Shape s{7, 33, 1, 0};
  const ek::CudaStream device(nullptr, few);
  for (const double size : {0.0, 1.0}) {
    Numbers values = random<float>(s.size(), 1);
    for (double& value : values) value *= size;
    Memory<float> w(values), y(s.size()), u(random<float>(7, 4)), v(random<float>(33, 5));
    const Numbers u_before = u.values(), v_before = v.values();
    ek::SpectralNormSaved<float, ek::CudaStorage> saved;
    const ek::SpectralNormOptions options{.power_iterations = size == 0 ? 1 : 0};
    saved.reserve(device, w.weight(s), options);
    auto u_map = u.vector(), v_map = v.vector();
    ek::spectral_norm(device, w.weight(s), u_map, v_map, y.weight(s), saved, options);
    CHECK(u.values() == u_before);
    CHECK(v.values() == v_before);
    CHECK((y.values() == Numbers(s.size(), 0)) == (size == 0));
  }
}

TEST_CASE("layers of weight norms in a device's memory", "[cuda][weight_norm]") {
  const Shape s{7, 3, 5, 0};
  const auto initial = [&] {
    Eigen::Tensor<float, 3, Eigen::RowMajor> tensor(s.a, s.b, s.c);
    const Numbers values = random<float>(s.size(), 1);
    std::copy(values.begin(), values.end(), tensor.data());
    return tensor;
  }();
  const auto run = [&](const auto& device, auto& layer) {
    Memory<float> w(s.size()), dw(random<float>(s.size(), 2));
    layer.reserve(device);
    layer.materialize(device, w.weight(s));
    layer.backward(device, dw.weight(s));
    Sets sets{w.values()};
    layer.for_each_parameter([&](ek::ParameterRef<float> p) {
      sets.push_back(DeviceMemory<float>::read(p.value, std::size_t(p.size)));
      sets.push_back(DeviceMemory<float>::read(p.gradient, std::size_t(p.size)));
    });
    return sets;
  };
  const auto check = [&]<template <class, class> class Layer>(const auto& options) {
    check_devices<float>(s, [&](const auto& device, const auto& storage) {
      Layer<float, StorageOf<decltype(storage)>> layer(initial, options);
      return run(device, layer);
    });
  };
  check.template operator()<ek::WeightNorm>(ek::WeightNormOptions{.axis = 1});
  check.template operator()<ek::WeightStandardization>(ek::WeightStandardizationOptions{});
  check.template operator()<ek::ScaledWeightStandardization>(ek::ScaledWeightStandardizationOptions{.eps_added = true});
  check.template operator()<ek::SpectralNorm>(ek::SpectralNormOptions{});
  check.template operator()<ek::SigmaReparam>(ek::SpectralNormOptions{.axis = 2});
  CHECK(emulator::never_launched("detail/weight_kernels.cuh") == std::set<std::string>{});
  CHECK(emulator::never_launched("detail/for_each_value.cuh") == std::set<std::string>{});
}

TEST_CASE("weight norms on a device allocate nothing", "[cuda][weight_norm]") {
  const Shape s{7, 33, 1, 0};
  Memory<float> v(random<float>(s.size(), 1)), w(s.size()), g(7);
  ek::WeightNormSaved<float, ek::CudaStorage> saved;
  CHECK_THROWS_AS(ek::weight_norm(ek::CudaStream(nullptr, few), v.weight(s), g.vector(), w.weight(s), saved),
                  ek::CudaError);
}
