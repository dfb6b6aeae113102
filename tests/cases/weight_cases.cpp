#include "cases/table.hpp"
#include "cases/weight_run.hpp"
#include "evenkeel/norms/weight_norm.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>

using namespace cases_test;

namespace {

using norms_test::RowMatrix, norms_test::vector_of;

void expect(const Case& c, const std::string& type, const std::string& name, const Values& got,
            const std::string& pointer) {
  INFO(name << " in " << type);
  CHECK(difference(got, c.values(pointer), c.limit(type, name)) == "");
}

template <class T>
std::vector<WeightResult> everywhere(const WeightCase& weight) {
  auto results = run_weights_everywhere(
      [&](const auto& device, Order order) { return run_weight_norm<T>(device, weight, order); });
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>)
    results.push_back(run_weight_norm_layer<T>(weight));
  return results;
}

// One forward for each axis that the case names: "dim0" with g_dim0 or g, "dim_minus1", and "none" with g_none.
void check_weight_norm(const Case& c) {
  const Tensor v = c.tensor("/inputs/v");
  const auto forwards = [&](const std::string& listed, std::optional<int> axis, const std::string& g) {
    if (!c.has("/expected/" + listed)) return;
    INFO(listed);
    for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
      const WeightCase weight{v.shape, v.values, {}, c.values("/inputs/" + g), axis};
      for (const WeightResult& result : everywhere<T>(weight)) expect(c, type, "w", result.w, "/expected/" + listed);
    });
  };
  const bool one_g = c.has("/inputs/g");
  forwards("dim0", 0, one_g ? "g" : "g_dim0");
  forwards("dim1", 1, one_g ? "g" : "g_dim1");
  forwards("dim_minus1", -1, "g");
  forwards("none", {}, "g_none");

  if (!c.has("/expected/g_length_2_with_dim1")) return;
  CHECK(c.text("/expected/g_length_2_with_dim1") == "error");
  const auto g = vector_of<float>(c.values("/inputs/g_dim0"));
  REQUIRE(g.size() == 2);
  const auto matrix =
      norms_test::matrix_of<RowMatrix<float>>(std::size_t(v.shape.at(0)), std::size_t(v.shape.at(1)), v.values);
  RowMatrix<float> w = RowMatrix<float>::Constant(matrix.rows(), matrix.cols(), 77);
  ek::WeightNormSaved<float> saved;
  CHECK_THROWS_AS(ek::weight_norm(ek::serial, matrix, g, w, saved, {.axis = 1}), ek::ShapeError);
  CHECK((w.array() == 77).all());
}

// The gradients of direction and length; the direction's is orthogonal to the direction.
void check_backward(const Case& c) {
  const Tensor v = c.tensor("/inputs/v");
  const WeightCase weight{v.shape, v.values, c.values("/inputs/dW"), c.values("/inputs/g"),
                          int(c.number("/params/dim"))};
  CHECK(*weight.axis == 0);
  for_each_type<double, float>(c, [&]<class T>(Type<T>, const std::string& type) {
    for (const WeightResult& result : everywhere<T>(weight)) {
      expect(c, type, "w", result.w, "/expected/w");
      expect(c, type, "dv", result.dv, "/expected/dv");
      expect(c, type, "dg", result.dg, "/expected/dg");
      const auto columns = std::size_t(v.shape.at(1));
      for (std::size_t row = 0; row < std::size_t(v.shape.at(0)); ++row) {
        double along = 0, size = 0;
        for (std::size_t i = row * columns; i < (row + 1) * columns; ++i) {
          along += result.dv.at(i) * v.values.at(i);
          size += std::abs(result.dv.at(i) * v.values.at(i));
        }
        CHECK(std::abs(along) <= 2 * epsilon_of<T>() * size);  // each dv is off by one rounding of its own
      }
    }
  });
}

// The largest singular value of a 2 x 2 matrix.
double largest_singular_value(const Values& w) {
  const double squares = w.at(0) * w.at(0) + w.at(1) * w.at(1) + w.at(2) * w.at(2) + w.at(3) * w.at(3);
  const double determinant = w.at(0) * w.at(3) - w.at(1) * w.at(2);
  return std::sqrt((squares + std::sqrt(squares * squares - 4 * determinant * determinant)) / 2);
}

// One step as listed, 200 steps to the singular value itself. W stays as it is (run_spectral_norm looks), and the
// gradient takes u and v for constants.
void check_spectral_norm(const Case& c) {
  const Tensor w = c.tensor("/inputs/W");
  SpectralCase one{
      .shape = w.shape, .w = w.values, .dw_hat = {1, -2, 0.5, 3}, .u = c.values("/inputs/u0"), .v = {0, 1}};
  one.iterations = int(c.number("/params/n_power_iterations"));
  SpectralCase many = one;
  many.iterations = 200;
  for_each_type<double, float>(c, [&]<class T>(Type<T>, const std::string& type) {
    const auto everywhere_of = [&](const SpectralCase& spectral) {
      auto results = run_weights_everywhere(
          [&](const auto& device, Order order) { return run_spectral_norm<T>(device, spectral, order); });
      results.push_back(run_spectral_norm_layer<T>(spectral));
      return results;
    };
    for (const SpectralResult& result : everywhere_of(one)) {
      expect(c, type, "v", result.v, "/expected/a/v");
      expect(c, type, "u", result.u, "/expected/a/u");
      expect(c, type, "sigma", {result.sigma}, "/expected/a/sigma");
      expect(c, type, "W_sn", result.w_hat, "/expected/a/W_sn");
      const Values u = c.values("/expected/a/u"), v = c.values("/expected/a/v"), w_sn = c.values("/expected/a/W_sn");
      double dot = 0;
      for (std::size_t i = 0; i < 4; ++i) dot += one.dw_hat[i] * w_sn.at(i);
      Values dw;
      for (std::size_t i = 0; i < 4; ++i)
        dw.push_back((one.dw_hat[i] - dot * u.at(i / 2) * v.at(i % 2)) / c.number("/expected/a/sigma"));
      INFO("dW in " << type);
      CHECK(difference(result.dw, dw, c.limit(type, "dW")) == "");
    }
    for (const SpectralResult& result : everywhere_of(many)) {
      expect(c, type, "sigma", {result.sigma}, "/expected/b/sigma");
      INFO("200 steps in " << type);
      CHECK(difference({largest_singular_value(result.w_hat)}, {1}, c.limit(type, "sigma")) == "");
    }
  });
}

}  // namespace

void cases_test::add_weight_cases(Table& table) {
  table["weight_norm.forward"] = check_weight_norm;
  table["weight_norm.backward"] = check_backward;
  table["spectral_norm.forward"] = check_spectral_norm;
}
