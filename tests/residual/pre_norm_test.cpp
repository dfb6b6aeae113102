#include "residual/sublayers.hpp"

using namespace residual_test;

namespace {
constexpr ek::Index rows = 4, width = 6;
}

TEST_CASE("pre-norm is x + f(norm(x))", "[residual][pre_norm]") {
  const Matrix<double> x = matrix_of(support::normal<double>(rows * width, 1, 0.5), rows);
  ek::PreNorm block{ek::LayerNorm<double>(width), Linear<double>(width)};
  randomize(block, 2);
  const auto p = parameters_of(block);
  REQUIRE(p.size() == 4);
  Linear<double>& f = block.sublayer;
  double *weight = nullptr, *bias = nullptr;
  block.norm.for_each_parameter([&](ek::ParameterRef<double> r) { (r.name == "weight" ? weight : bias) = r.value; });
  Matrix<double> branch(rows, width);
  f.forward(ek::serial, scaled(layer_norm(x, 1e-5), weight, bias), branch);
  CHECK((forward(block, x) - (x + branch)).cwiseAbs().maxCoeff() < formula_tolerance);

  ek::PreNorm rms{ek::RmsNorm<double>(width), Tanh<double>(width)};
  randomize(rms, 3);
  rms.norm.for_each_parameter([&](ek::ParameterRef<double> r) { weight = r.value; });
  rms.sublayer.forward(ek::serial, scaled(rms_norm(x, 1e-6), weight, nullptr), branch);
  CHECK((forward(rms, x) - (x + branch)).cwiseAbs().maxCoeff() < formula_tolerance);
}

TEST_CASE("pre-norm's gradients equal central differences", "[residual][pre_norm]") {
  ek::PreNorm linear{ek::LayerNorm<double>(width, {.eps = 1e-3}), Linear<double>(width)};
  randomize(linear, 4);
  check_gradients(linear, rows, width);
  ek::PreNorm curved{ek::RmsNorm<double>(width), Tanh<double>(width)};
  randomize(curved, 5);
  check_gradients(curved, rows, width);
}

TEST_CASE("pre-norm blocks nest", "[residual][pre_norm]") {
  ek::PreNorm block{ek::RmsNorm<double>(width), ek::PreNorm(ek::LayerNorm<double>(width), Tanh<double>(width))};
  randomize(block, 6);
  check_gradients(block, rows, width);
}
