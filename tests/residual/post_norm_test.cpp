#include "residual/sublayers.hpp"

using namespace residual_test;

namespace {
constexpr ek::Index rows = 4, width = 6;
}

TEST_CASE("post-norm is norm(x + f(x))", "[residual][post_norm]") {
  const Matrix<double> x = matrix_of(support::normal<double>(rows * width, 1, 0.5), rows);
  ek::PostNorm block{ek::LayerNorm<double>(width), Linear<double>(width)};
  randomize(block, 2);
  REQUIRE(parameters_of(block).size() == 4);
  double *weight = nullptr, *bias = nullptr;
  block.norm.for_each_parameter([&](ek::ParameterRef<double> r) { (r.name == "weight" ? weight : bias) = r.value; });
  Matrix<double> branch(rows, width);
  block.sublayer.forward(ek::serial, x, branch);
  const Matrix<double> expected = scaled(layer_norm(x + branch, 1e-5), weight, bias);
  CHECK((forward(block, x) - expected).cwiseAbs().maxCoeff() < formula_tolerance);

  ek::PostNorm rms{ek::RmsNorm<double>(width), Tanh<double>(width)};
  randomize(rms, 3);
  rms.norm.for_each_parameter([&](ek::ParameterRef<double> r) { weight = r.value; });
  rms.sublayer.forward(ek::serial, x, branch);
  const Matrix<double> expected_rms = scaled(rms_norm(x + branch, 1e-6), weight, nullptr);
  CHECK((forward(rms, x) - expected_rms).cwiseAbs().maxCoeff() < formula_tolerance);
}

TEST_CASE("post-norm's gradients equal central differences", "[residual][post_norm]") {
  ek::PostNorm linear{ek::LayerNorm<double>(width, {.eps = 1e-3}), Linear<double>(width)};
  randomize(linear, 4);
  check_gradients(linear, rows, width);
  ek::PostNorm curved{ek::RmsNorm<double>(width), Tanh<double>(width)};
  randomize(curved, 5);
  check_gradients(curved, rows, width);
}
