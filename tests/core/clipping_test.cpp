#include "evenkeel/clipping.hpp"

#include "support/catch.hpp"
#include "support/devices.hpp"
#include "support/tolerance.hpp"

#include <Eigen/Core>
#include <unsupported/Eigen/CXX11/Tensor>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace ek = evenkeel;

namespace {

using RowMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// One unit, written plainly: the formula of the paper.
double scale_of(double gradient_norm, double weight_norm, double clip = 0.01) {
  const double bound = clip * std::max(weight_norm, 1e-3);
  return gradient_norm > bound ? bound / std::max(gradient_norm, 1e-6) : 1;
}

bool near(double a, double b) { return std::abs(a - b) <= 1e-14 * std::abs(b); }

// Some units above the bound, some below.
template <class Matrix>
void fill(Matrix& weight, Matrix& gradient) {
  for (ek::Index i = 0; i < weight.rows(); ++i)
    for (ek::Index j = 0; j < weight.cols(); ++j) {
      using T = typename Matrix::Scalar;
      weight(i, j) = T(std::sin(double(1 + 7 * i + 3 * j)));
      gradient(i, j) = T((i % 3 == 0 ? 1e-3 : 1e-1) * std::cos(double(2 + 5 * i + 11 * j)));
    }
}

}  // namespace

TEST_CASE("adaptive clipping scales each output unit whose gradient is large beside its weight") {
  RowMatrix weight(7, 5), gradient(7, 5);
  for (const bool outputs_first : {true, false}) {
    fill(weight, gradient);
    const RowMatrix before = gradient;
    const std::array parameters{ek::ClippedParameter(weight, gradient, ek::Role::query, outputs_first ? 0 : 1)};
    const ek::ClippingReport report = ek::adaptive_gradient_clipping(ek::serial, parameters);
    ek::Index clipped = 0;
    const ek::Index units = outputs_first ? 7 : 5;
    for (ek::Index unit = 0; unit < units; ++unit) {
      const double g = outputs_first ? before.row(unit).norm() : before.col(unit).norm();
      const double w = outputs_first ? weight.row(unit).norm() : weight.col(unit).norm();
      const double scale = scale_of(g, w);
      clipped += scale != 1;
      for (ek::Index i = 0; i < (outputs_first ? 5 : 7); ++i) {
        const ek::Index row = outputs_first ? unit : i, col = outputs_first ? i : unit;
        CHECK(near(gradient(row, col), before(row, col) * scale));
      }
    }
    CHECK(report.units == units);
    CHECK(report.clipped == clipped);
    CHECK(report.share() == double(clipped) / double(units));
    CHECK(clipped > 0);
    if (outputs_first) CHECK(clipped < 7);
    const ek::ClippingReport again = ek::adaptive_gradient_clipping(ek::serial, parameters, {.clip = 0.0100001});
    CHECK(again.clipped == 0);
  }
}

TEST_CASE("adaptive clipping: small weights, small gradients, and gradients exactly at the bound") {
  // norm(W) counts as 1e-3 at least, so the bound is 1e-5; a gradient under 1e-6 is never above a bound, unless clip is
  // small: then its norm counts as 1e-6.
  Eigen::VectorXd weight = Eigen::VectorXd::Zero(2), gradient(2);
  gradient << 3e-5, 4e-5;
  const std::array parameters{ek::ClippedParameter(weight, gradient, ek::Role::bias)};
  CHECK(ek::adaptive_gradient_clipping(ek::serial, parameters).clipped == 1);
  CHECK(near(gradient[0], 0.6e-5));
  CHECK(near(gradient[1], 0.8e-5));
  gradient << 3e-8, 4e-8;
  CHECK(ek::adaptive_gradient_clipping(ek::serial, parameters).clipped == 0);
  CHECK(ek::adaptive_gradient_clipping(ek::serial, parameters, {.clip = 1e-6}).clipped == 1);
  CHECK(near(gradient[0], 3e-8 * (1e-9 / 1e-6)));
  weight << 300, 400;
  gradient << 3, 4;  // exactly clip * norm(W)
  CHECK(ek::adaptive_gradient_clipping(ek::serial, parameters).clipped == 0);
  CHECK(gradient[1] == 4);
}

TEST_CASE("adaptive clipping: vectors and numbers are one unit, the last layer is left out") {
  RowMatrix weight = RowMatrix::Ones(3, 4);
  for (const ek::Role role : {ek::Role::head, ek::Role::classifier, ek::Role::stem}) {
    RowMatrix gradient = RowMatrix::Ones(3, 4);
    const auto report =
        ek::adaptive_gradient_clipping(ek::serial, std::vector{ek::ClippedParameter(weight, gradient, role, 0)});
    CHECK(report.units == (role == ek::Role::stem ? 3 : 0));
    CHECK(report.clipped == report.units);
    CHECK(report.share() == (role == ek::Role::stem ? 1 : 0));
    CHECK((gradient.array() == 1).all() == (role != ek::Role::stem));
  }
  RowMatrix memory = RowMatrix::Ones(4, 3), gradients = RowMatrix::Zero(4, 3);
  gradients.col(1) << 3, 0, 4, 0;
  ek::Parameter<double> bias("bias", 2);
  bias.fill(1);
  bias.gradient()[0] = 0.6;
  bias.gradient()[1] = 0.8;
  double number = 2, number_gradient = -1;
  auto strided = gradients.col(1);
  const std::array parameters{ek::ClippedParameter(memory.col(1), strided, ek::Role::norm_weight, 0),
                              ek::ClippedParameter(bias.ref(), ek::Role::bias),
                              ek::ClippedParameter(&number, &number_gradient, 1, ek::Role::branch_scale)};
  const auto report = ek::adaptive_gradient_clipping(ek::serial, parameters);
  CHECK(report.units == 3);
  CHECK(report.clipped == 3);
  CHECK(near(gradients(0, 1), 3 * (0.01 * 2 / 5)));
  CHECK(near(gradients(2, 1), 4 * (0.01 * 2 / 5)));
  CHECK(gradients.col(0).isZero());
  CHECK(near(bias.gradient()[0], 0.6 * (0.01 * std::sqrt(2.0))));
  CHECK(near(number_gradient, -0.02));
}

TEST_CASE("adaptive clipping: a convolution in both storage orders, with outputs at either end") {
  // 5 outputs, each 3 x 2 x 2 values.
  Eigen::Tensor<double, 4, Eigen::RowMajor> rows(5, 3, 2, 2), drows(5, 3, 2, 2);
  Eigen::Tensor<double, 4> columns(5, 3, 2, 2), dcolumns(5, 3, 2, 2), last(2, 2, 3, 5), dlast(2, 2, 3, 5);
  std::array<double, 5> w{}, g{};
  for (ek::Index o = 0; o < 5; ++o)
    for (ek::Index c = 0; c < 3; ++c)
      for (ek::Index y = 0; y < 2; ++y)
        for (ek::Index x = 0; x < 2; ++x) {
          const double value = std::sin(double(o + 2 * c + 3 * y + 5 * x));
          const double slope = std::cos(double(o + 7 * c + 2 * y + 3 * x)) * (o == 2 ? 1e-4 : 1);
          rows(o, c, y, x) = columns(o, c, y, x) = last(y, x, c, o) = value;
          drows(o, c, y, x) = dcolumns(o, c, y, x) = dlast(y, x, c, o) = slope;
          w[std::size_t(o)] += value * value;
          g[std::size_t(o)] += slope * slope;
        }
  const auto before = drows;
  const Eigen::TensorMap<Eigen::Tensor<double, 4>> column_map(columns.data(), 5, 3, 2, 2);
  Eigen::TensorMap<Eigen::Tensor<double, 4>> dcolumn_map(dcolumns.data(), 5, 3, 2, 2);
  const std::array parameters{ek::ClippedParameter(rows, drows, ek::branch_layer(1), 0),
                              ek::ClippedParameter(column_map, dcolumn_map, ek::Role::shortcut, 0),
                              ek::ClippedParameter(last, dlast, ek::Role::stem, -1)};
  const auto report = ek::adaptive_gradient_clipping(ek::serial, parameters);
  CHECK(report.units == 15);
  CHECK(report.clipped == 12);
  for (ek::Index o = 0; o < 5; ++o) {
    const double scale = scale_of(std::sqrt(g[std::size_t(o)]), std::sqrt(w[std::size_t(o)]));
    for (ek::Index c = 0; c < 3; ++c)
      for (ek::Index y = 0; y < 2; ++y)
        for (ek::Index x = 0; x < 2; ++x) {
          const double expected = before(o, c, y, x) * scale;
          CHECK(near(drows(o, c, y, x), expected));
          CHECK(near(dcolumns(o, c, y, x), expected));
          CHECK(near(dlast(y, x, c, o), expected));
        }
  }
}

TEST_CASE("clipping and the global norm do not depend on the device") {
  // More than 256 blocks of 2^14 values, the last one short.
  constexpr ek::Index size = (ek::Index(257) << 14) + 77;
  Eigen::VectorXf values = Eigen::VectorXf::Ones(size), start(size);
  for (ek::Index i = 0; i < size; ++i) start[i] = float((i * 7919) % 1000 - 500) * 1e-3f;
  long double squares = 0;  // of double alone the plain sum would be the worse of the two
  for (ek::Index i = 0; i < size; ++i) squares += double(start[i]) * double(start[i]);
  const double exact = double(std::sqrt(squares));
  Eigen::Matrix<Eigen::bfloat16, Eigen::Dynamic, Eigen::Dynamic> weight(99, 40), slopes(99, 40), first_slopes;
  Eigen::VectorXf first;
  double first_norm = 0;
  bool begun = false;
  support::for_each_device([&](const auto& device) {
    Eigen::VectorXf gradient = start;
    const std::vector parameters{ek::ParameterRef<float>{"a", values.data(), gradient.data(), 5, true},
                                 ek::ParameterRef<float>{"b", values.data() + 5, gradient.data() + 5, size - 5, true}};
    const double norm = ek::clip_global_gradient_norm(device, parameters, 1.0);
    fill(weight, slopes);
    const auto report =
        ek::adaptive_gradient_clipping(device, std::array{ek::ClippedParameter(weight, slopes, ek::Role::value, 0)});
    CHECK(report.clipped == 66);
    CHECK(report.units == 99);
    if (!begun) {
      begun = true;
      first = gradient;
      first_norm = norm;
      first_slopes = slopes;
      CHECK(std::abs(norm - exact) <= support::tolerance(std::size_t(size), exact, 2.3e-16));
      CHECK(std::abs(ek::global_gradient_norm(device, parameters) - 1) < 1e-7);  // float gradients, rounded
      for (ek::Index i = 0; i < size; i += 9973)
        CHECK(std::abs(double(gradient[i]) - double(start[i]) / exact) <= 6e-8 * std::abs(double(start[i]) / exact));
      const double w = weight.row(1).cast<double>().norm(), g = slopes.row(1).cast<double>().norm();
      CHECK(std::abs(g / (0.01 * w) - 1) < 2e-3);  // bfloat16's 2^-9, mostly cancelling over 40 values
    }
    CHECK(norm == first_norm);
    CHECK(gradient == first);
    CHECK((slopes.array() == first_slopes.array()).all());
  });
}

TEST_CASE("gradients that are not finite, or of any size, are dealt with as documented") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {infinity, nan}) {
    Eigen::VectorXd weight = Eigen::VectorXd::Ones(3), gradient = Eigen::VectorXd::Ones(3);
    gradient[1] = bad;
    CHECK(ek::adaptive_gradient_clipping(ek::serial, std::array{ek::ClippedParameter(weight, gradient, ek::Role::bias)})
              .clipped == 0);
    const std::array parameters{ek::ParameterRef<double>{"a", weight.data(), gradient.data(), 3, true}};
    CHECK_FALSE(std::isfinite(ek::clip_global_gradient_norm(ek::serial, parameters, 1.0)));
    CHECK(gradient[0] == 1);
    CHECK(gradient[2] == 1);
  }
  for (const double size : {1e-200, 1e200}) {  // whose squares are 0 and infinite
    Eigen::Vector2d weight(3 * size, 4 * size), gradient(3 * size, 4 * size);
    const std::array parameters{ek::ParameterRef<double>{"a", weight.data(), gradient.data(), 2, true}};
    CHECK(near(ek::global_gradient_norm(ek::serial, parameters), 5 * size));
    const auto report =
        ek::adaptive_gradient_clipping(ek::serial, std::array{ek::ClippedParameter(weight, gradient, ek::Role::bias)});
    CHECK(report.clipped == (size > 1 ? 1 : 0));
    CHECK(near(gradient[0], size > 1 ? 0.03 * size : 3 * size));
  }
  CHECK(ek::global_gradient_norm(ek::serial, std::vector<ek::ParameterRef<float>>{}) == 0);
  Eigen::Vector2d weight(1, 1), gradient(3, 4);
  const std::array parameters{ek::ParameterRef<double>{"a", weight.data(), gradient.data(), 2, true}};
  CHECK(ek::clip_global_gradient_norm(ek::serial, parameters, 5) == 5);
  CHECK(gradient[0] == 3);
}

TEST_CASE("clipping says which argument is wrong") {
  RowMatrix weight = RowMatrix::Ones(3, 4), gradient = RowMatrix::Ones(3, 4), other = RowMatrix::Ones(4, 3);
  const std::array parameters{ek::ClippedParameter(weight, gradient, ek::Role::query, 0)};
  const std::vector<ek::ParameterRef<double>> none;
  CHECK_THROWS_AS(ek::ClippedParameter(weight, other, ek::Role::query, 0), ek::ShapeError);
  CHECK_THROWS_WITH(ek::ClippedParameter(weight, other, ek::Role::query, 0),
                    "ClippedParameter: gradient is 4x3, weight is 3x4");
  CHECK_THROWS_WITH(ek::ClippedParameter(weight, gradient, ek::Role::query),
                    "ClippedParameter: no axis is named, expected that of the output units (weight is 3x4)");
  CHECK_THROWS_WITH(ek::ClippedParameter(weight, gradient, ek::Role::query, 2),
                    "ClippedParameter: axis 2 is out of range, weight has 2 axes (weight is 3x4)");
  CHECK_THROWS_WITH(ek::adaptive_gradient_clipping(ek::serial, parameters, {.clip = 0}),
                    "adaptive_gradient_clipping: clip is 0, expected a finite number above 0");
  CHECK_THROWS_WITH(ek::adaptive_gradient_clipping(ek::serial, parameters, {.least_weight = -1}),
                    "adaptive_gradient_clipping: least_weight is -1, expected a finite number above 0");
  CHECK_THROWS_WITH(ek::adaptive_gradient_clipping(ek::serial, parameters, {.least_gradient = 0}),
                    "adaptive_gradient_clipping: least_gradient is 0, expected a finite number above 0");
  CHECK_THROWS_WITH(ek::clip_global_gradient_norm(ek::serial, none, 0),
                    "clip_global_gradient_norm: limit is 0, expected a finite number above 0");
  CHECK((gradient.array() == 1).all());
}
