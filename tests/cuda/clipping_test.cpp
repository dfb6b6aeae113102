// Gradient clipping on a device, against the same functions on the CPU.
#include "cuda/builds.hpp"
#include "cuda/device_memory.hpp"
#include "support/catch.hpp"
#include "support/data.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

using namespace cuda_test;
namespace ek = evenkeel;
using ek::Index;

namespace {

using Numbers = std::vector<double>;
const ek::CudaStream device(nullptr, {2, 232448, 90});

// The shape of a weight, (a, b, c), and which of the axes counts the output units.
struct Shape {
  Index a, b, c;
  int axis;
  std::size_t before = 0;  // elements ahead of every tensor: misaligned
  std::size_t size() const { return std::size_t(a * b * c); }
};
const std::vector<Shape> shapes{{5, 1, 1, 0},   {7, 33, 1, 0}, {33, 7, 1, 0, 1}, {2, 1000, 1, 0},
                                {1, 1, 5, 2},   {7, 1, 33, 2}, {33, 1, 7, 2, 1}, {96, 1, 3, 2},
                                {300, 1, 8, 2}, {5, 6, 9, 1},  {1, 8200, 1, 0}};

template <class T>
using Weight = Eigen::TensorMap<Eigen::Tensor<T, 3, Eigen::RowMajor>>;

// Memory that both devices reach: the emulator's is the host's.
template <class T>
struct Memory : DeviceMemory<T> {
  using DeviceMemory<T>::DeviceMemory;
  Weight<T> weight(const Shape& s) { return {this->data(), s.a, s.b, s.c}; }
};

// Every third value is small: of the units along each axis some are clipped, and where there are many some are not.
template <class T>
Numbers gradient_of(const Shape& s) {
  Numbers values = support::normal<T>(s.size(), s.size() + 1, 0.1, 1.5);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t unit = s.axis == 0   ? i / std::size_t(s.b * s.c)
                             : s.axis == 1 ? i / std::size_t(s.c) % std::size_t(s.b)
                                           : i % std::size_t(s.c);
    if (unit % 3 == 1) values[i] = double(static_cast<T>(values[i] * 1e-4));
  }
  return values;
}

// Both devices sum in double, in another order: a product may fall to the other side of a rounding to T.
template <class T>
void check_near(const Numbers& got, const Numbers& expected) {
  REQUIRE(got.size() == expected.size());
  const double epsilon = std::is_same_v<T, Eigen::bfloat16> ? 0x1p-7 : double(std::numeric_limits<T>::epsilon());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i]))) continue;
    const double error = std::abs(got[i] - expected[i]) / (std::abs(expected[i]) * epsilon);
    worst = std::max(worst, error < INFINITY ? error : INFINITY);
  }
  CHECK(worst <= (std::is_same_v<T, double> ? 64 : 1));
}

template <class T>
ek::ParameterRef<T> ref_of(Memory<T>& gradient) {
  return {"p", nullptr, gradient.data(), Index(gradient.size()), true};
}

// The first of three ranks; the norms of the others are known.
struct FirstOfThree {
  Numbers others;
  Numbers sent = {};
  static int rank() { return 0; }
  static int size() { return 3; }
  static cudaStream_t stream() { return nullptr; }
  void all_gather(const double* send, double* receive, Index count) {
    sent.assign(send, send + count);
    receive[0] = sent.at(0);
    std::copy(others.begin(), others.end(), receive + 1);
  }
  static void all_reduce_sum(double*, Index) {}
};

}  // namespace

TEMPLATE_TEST_CASE("adaptive clipping on a device is that of the CPU", "[cuda][clipping]", float, Eigen::bfloat16,
                   double) {
  using T = TestType;
  for (const Shape& s : shapes) {
    INFO(s.a << " x " << s.b << " x " << s.c << ", axis " << s.axis << ", before " << s.before << ", " << sizeof(T)
             << " bytes");
    const Numbers values = support::normal<T>(s.size(), s.size(), 0.1, 1.5), slopes = gradient_of<T>(s);
    Numbers first;
    // Before the weight a vector, one unit that is left alone, and nothing at all; behind it the last layer.
    const auto parameters_of = [&](auto& w, auto& dw, auto& b, auto& db) {
      auto gradient = dw.weight(s);
      return std::vector{ek::ClippedParameter(b.data(), db.data(), Index(b.size()), ek::Role::bias),
                         ek::ClippedParameter(w.data(), w.data(), 0, ek::Role::bias),
                         ek::ClippedParameter(w.weight(s), gradient, ek::Role::query, s.axis),
                         ek::ClippedParameter(w.weight(s), gradient, ek::Role::head, s.axis)};
    };
    Memory<T> w(values, s.before), expected(slopes, s.before), b(Numbers{1, 2, 3}),
        expected_b(Numbers{0.0078125, -0.015625, 0.0078125});
    const ek::ClippingReport report =
        ek::adaptive_gradient_clipping(ek::serial, parameters_of(w, expected, b, expected_b));
    CHECK(report.clipped > 0);
    CHECK(report.clipped < report.units);
    for (const Order order : orders) {
      use_order(order);
      Memory<T> got(slopes, s.before), got_b(Numbers{0.0078125, -0.015625, 0.0078125});
      const auto parameters = parameters_of(w, got, b, got_b);
      ek::ClippingSaved<ek::CudaStorage> saved;
      saved.reserve(device, parameters);
      ek::adaptive_gradient_clipping(device, parameters, saved);
      check_near<T>(got.values(), expected.values());
      check_near<T>(got_b.values(), expected_b.values());
      CHECK(saved.report().clipped == report.clipped);
      CHECK(saved.report().units == report.units);
      if (first.empty()) first = got.values();
      CHECK(got.values() == first);
      CHECK(w.values() == values);
      if (build != Build::plain) break;
    }
  }
}

TEMPLATE_TEST_CASE("the global norm on a device is that of the CPU", "[cuda][clipping]", float, Eigen::bfloat16,
                   double) {
  using T = TestType;
  const std::vector<std::size_t> sizes{1, 7, 0, 33, 1000, 20011};
  const auto gradients = [&](std::size_t before) {
    std::vector<std::unique_ptr<Memory<T>>> all;
    for (const std::size_t size : sizes)
      all.push_back(std::make_unique<Memory<T>>(support::normal<T>(size, size, 0.1, 1.5), before));
    return all;
  };
  for (const std::size_t before : {0, 1})
    for (const double limit : {1.0, 1e4}) {
      const auto refs_of = [](auto& all) {
        std::vector<ek::ParameterRef<T>> refs;
        for (auto& memory : all) refs.push_back(ref_of(*memory));
        return refs;
      };
      auto expected = gradients(before);
      const auto on_host = refs_of(expected);
      const double norm = ek::clip_global_gradient_norm(ek::serial, on_host, limit);
      double first = 0;
      for (const Order order : orders) {
        use_order(order);
        auto got = gradients(before);
        const auto parameters = refs_of(got);
        ek::ClippingSaved<ek::CudaStorage> saved;
        saved.reserve(device, parameters);
        ek::clip_global_gradient_norm(device, parameters, limit, saved);
        CHECK(std::abs(saved.norm() - norm) <= 1e-14 * norm);
        CHECK(DeviceMemory<double>::read(saved.norm_and_factor(), 2) ==
              Numbers{saved.norm(), limit < norm ? limit / saved.norm() : 1.0});
        for (std::size_t p = 0; p < sizes.size(); ++p) check_near<T>(got[p]->values(), expected[p]->values());
        if (first == 0) first = saved.norm();
        CHECK(saved.norm() == first);
        ek::global_gradient_norm(device, parameters, saved);
        CHECK(std::abs(saved.norm() - ek::global_gradient_norm(ek::serial, on_host)) <= 1e-3 * limit);
        CHECK(DeviceMemory<double>::read(saved.norm_and_factor(), 2)[1] == 1);
        if (build != Build::plain) break;
      }
    }
}

TEST_CASE("clipping on a device: gradients of any size, and such as are not finite", "[cuda][clipping]") {
  use_order(Order::random);
  constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const auto clip = [&](const Numbers& values, double limit) {
    Memory<double> gradient(values);
    const std::vector parameters{ref_of(gradient)};
    ek::ClippingSaved<ek::CudaStorage> saved;
    saved.reserve(device, parameters);
    ek::clip_global_gradient_norm(device, parameters, limit, saved);
    Numbers result = gradient.values();
    result.push_back(saved.norm());
    return result;
  };
  for (const double size : {1e-200, 1.0, 1e200}) {
    const Numbers clipped = clip({3 * size, 4 * size}, size), whole = clip({3 * size, 4 * size}, 5.0000001 * size);
    CHECK(std::abs(clipped[2] - 5 * size) <= 1e-15 * 5 * size);
    CHECK(std::abs(clipped[0] - 0.6 * size) <= 1e-15 * size);
    CHECK(whole[1] == 4 * size);
  }
  for (const double bad : {infinity, -infinity, nan}) {
    const Numbers left = clip({1, bad, 1}, 0.5);
    CHECK((left[0] == 1 && left[2] == 1 && !std::isfinite(left[3])));
    Memory<double> weight(Numbers{1, 1, 1, 2, 2, 2}), gradient(Numbers{1, bad, 1, 1, 1, 1});
    auto rows = Eigen::Map<Eigen::Matrix<double, 2, 3, Eigen::RowMajor>>(gradient.data());
    const std::vector parameters{ek::ClippedParameter(
        Eigen::Map<Eigen::Matrix<double, 2, 3, Eigen::RowMajor>>(weight.data()), rows, ek::Role::query, 0)};
    ek::ClippingSaved<ek::CudaStorage> saved;
    saved.reserve(device, parameters);
    ek::adaptive_gradient_clipping(device, parameters, saved);
    CHECK(saved.report().clipped == 1);
    CHECK((gradient.values()[0] == 1 && gradient.values()[2] == 1));
    CHECK(std::abs(gradient.values()[3] - 0.02) < 1e-15);
  }
  const std::vector<ek::ParameterRef<float>> none;
  ek::ClippingSaved<ek::CudaStorage> saved;
  saved.reserve(device, none);
  ek::clip_global_gradient_norm(device, none, 1, saved);
  CHECK(saved.norm() == 0);
  CHECK(saved.report().units == 0);
}

TEST_CASE("the global norm over ranks on a device", "[cuda][clipping]") {
  Memory<float> gradient(Numbers{3, 4});
  const std::vector parameters{ref_of(gradient)};
  ek::ClippingSaved<ek::CudaStorage> saved;
  saved.reserve(device, parameters, 3);
  FirstOfThree ranks{{10, 10}};
  ek::global_gradient_norm(device, parameters, saved, ranks);
  CHECK(ranks.sent == Numbers{5});
  CHECK(saved.norm() == 15);
  ek::clip_global_gradient_norm(device, parameters, 7.5, saved, ranks);
  CHECK(saved.norm() == 15);
  CHECK(gradient.values() == Numbers{1.5, 2});
  // A rank whose call fails sends a NaN before it throws, and one that hears it leaves its gradients alone.
  CHECK_THROWS_AS(ek::clip_global_gradient_norm(device, parameters, INFINITY, saved, ranks), ek::ShapeError);
  CHECK(std::isnan(ranks.sent.at(0)));
  ranks.others[0] = NAN;
  ek::clip_global_gradient_norm(device, parameters, 1, saved, ranks);
  CHECK(std::isnan(saved.norm()));
  CHECK(gradient.values() == Numbers{1.5, 2});
  ek::CudaStream elsewhere(reinterpret_cast<cudaStream_t>(&ranks), device.facts());
  CHECK_THROWS_AS(ek::global_gradient_norm(elsewhere, parameters, saved, ranks), ek::ShapeError);
}

TEST_CASE("clipping with a saved does on the CPU what it does without", "[cuda][clipping]") {
  Memory<float> weight(Numbers{1, 2}), gradient(Numbers{3, 4}), other(Numbers{3, 4});
  const std::vector parameters{ref_of(gradient)};
  ek::ClippingSaved<> saved;
  CHECK(saved.norm() == 0);
  saved.reserve(ek::serial, parameters);
  ek::global_gradient_norm(ek::serial, parameters, saved);
  CHECK((saved.norm() == 5 && saved.norm_and_factor()[1] == 1));
  ek::clip_global_gradient_norm(ek::serial, parameters, 2.5, saved);
  CHECK((saved.norm() == 5 && saved.norm_and_factor()[1] == 0.5));
  CHECK(gradient.values() == Numbers{1.5, 2});
  ek::adaptive_gradient_clipping(
      ek::serial, std::vector{ek::ClippedParameter(weight.data(), other.data(), 2, ek::Role::bias)}, saved);
  CHECK((saved.report().clipped == 1 && saved.report().units == 1));
}

TEST_CASE("clipping on a device says what is wrong, and allocates nothing", "[cuda][clipping]") {
  Memory<float> weight(Numbers{1, 2}), gradient(Numbers{3, 4});
  const std::vector parameters{ref_of(gradient)};
  const std::vector units{ek::ClippedParameter(weight.data(), gradient.data(), 2, ek::Role::bias)};
  ek::ClippingSaved<ek::CudaStorage> saved;
  CHECK_THROWS_AS(ek::clip_global_gradient_norm(device, parameters, 1, saved), ek::CudaError);
  CHECK_THROWS_AS(ek::adaptive_gradient_clipping(device, units, saved), ek::CudaError);
  saved.reserve(device, parameters);
  saved.reserve(device, units);
  for (const double wrong : {0.0, -1.0, double(INFINITY), double(NAN)}) {
    CHECK_THROWS_AS(ek::clip_global_gradient_norm(device, parameters, wrong, saved), ek::ShapeError);
    CHECK_THROWS_AS(ek::adaptive_gradient_clipping(device, units, saved, {.clip = wrong}), ek::ShapeError);
  }
  CHECK(gradient.values() == Numbers{3, 4});
}
