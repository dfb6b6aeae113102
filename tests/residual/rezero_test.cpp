#include "residual/sublayers.hpp"

using namespace residual_test;

namespace {
constexpr ek::Index rows = 4, width = 6;

template <class Block>
Named alpha_of(Block& block) {
  for (const Named& p : parameters_of(block)) {
    if (p.name == "alpha") return p;
  }
  FAIL("no parameter is called alpha");
  return {};
}
}  // namespace

TEST_CASE("ReZero is the identity at the start, in both directions", "[residual][rezero]") {
  ek::ReZero<double, Linear<double>> block{Linear<double>(width)};
  const Named alpha = alpha_of(block);
  CHECK(alpha.size == 1);
  CHECK_FALSE(alpha.weight_decay);
  CHECK(*alpha.value == 0);
  for (const Named& p : parameters_of(block)) {
    if (p.name == "alpha") continue;
    for (std::size_t i = 0; i < p.size; ++i) p.value[i] = 0.1 * double(i + 1);
  }
  const Matrix<double> x = matrix_of(support::normal<double>(rows * width, 1, 0.5), rows);
  const Matrix<double> dy = matrix_of(support::normal<double>(rows * width, 2), rows);
  CHECK((forward(block, x).array() == x.array()).all());
  Matrix<double> dx(rows, width), branch(rows, width);
  block.backward(ek::serial, dy, x, dx);
  CHECK((dx.array() == dy.array()).all());

  // alpha alone moves at first: sum(dy * f(x)); the branch gets nothing.
  block.sublayer.forward(ek::serial, x, branch);
  const double expected = (dy.array() * branch.array()).sum();
  CHECK(expected != 0);
  CHECK(std::abs(*alpha.gradient - expected) < formula_tolerance * (1 + std::abs(expected)));
  for (const Named& p : parameters_of(block)) {
    if (p.name == "alpha") continue;
    for (std::size_t i = 0; i < p.size; ++i) CHECK(p.gradient[i] == 0);
  }
}

TEST_CASE("ReZero is x + alpha * f(x)", "[residual][rezero]") {
  ek::ReZero<double, Tanh<double>> block{Tanh<double>(width)};
  randomize(block, 3);
  const Matrix<double> x = matrix_of(support::normal<double>(rows * width, 4, 0.5), rows);
  Matrix<double> branch(rows, width);
  block.sublayer.forward(ek::serial, x, branch);
  CHECK((forward(block, x) - (x + *alpha_of(block).value * branch)).cwiseAbs().maxCoeff() < formula_tolerance);
}

TEST_CASE("ReZero's gradients equal central differences", "[residual][rezero]") {
  for (double alpha : {0.0, 0.7, -1.3}) {
    INFO("alpha " << alpha);
    ek::ReZero<double, Linear<double>> linear{Linear<double>(width)};
    randomize(linear, 5);
    *alpha_of(linear).value = alpha;
    check_gradients(linear, rows, width);
    ek::ReZero<double, Tanh<double>> curved{Tanh<double>(width)};
    randomize(curved, 6);
    *alpha_of(curved).value = alpha;
    check_gradients(curved, rows, width);
  }
}
