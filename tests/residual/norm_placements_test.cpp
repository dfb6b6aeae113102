// Blocks whose norm stands after the branch, and the passes that norm and sum share.
#include "residual/sublayers.hpp"

#include <cmath>
#include <limits>

using namespace residual_test;

namespace {
constexpr ek::Index rows = 4, width = 6;
using Vector = Eigen::Array<double, Eigen::Dynamic, 1>;

Matrix<double> random_matrix(ek::Index r, ek::Index c, std::uint64_t seed) {
  return matrix_of(support::normal<double>(std::size_t(r * c), seed, 0.3), r);
}
double distance(const Matrix<double>& a, const Matrix<double>& b) { return (a - b).cwiseAbs().maxCoeff(); }

// What a block with a norm reads besides x.
template <class Sublayer>
Matrix<double> branch_of(Sublayer& f, const Matrix<double>& x) {
  Matrix<double> y(x.rows(), x.cols());
  f.forward(ek::serial, x, y);
  return y;
}
template <class Norm>
Matrix<double> affine(Norm& norm, const Matrix<double>& xhat) {
  return scaled(xhat, norm.weight.value(), norm.bias.size() > 0 ? norm.bias.value() : nullptr);
}

// A norm that does nothing.
struct NoNorm {
  using Scalar = double;
  template <class Device, class X, class Y>
  void forward(const Device&, const X& x, Y&& y) {
    y = x;
  }
  template <class Device, class X, class Residual, class Y>
  void forward_add(const Device&, const X& x, const Residual& residual, Y&& y) {
    y = x + residual;
  }
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device&, const Dy& dy, const X&, Dx&& dx) {
    dx = dy;
  }
  template <class Device, class Dy, class Dsum, class X, class Dx>
  void add_backward(const Device&, const Dy& dy, const Dsum& dsum, const X&, Dx&& dx) {
    dx = dy + dsum;
  }
  template <class F>
  void for_each_parameter(F&&) {}
};
}  // namespace

TEST_CASE("DeepNorm is norm(alpha * x + f(x))", "[residual][deep_norm]") {
  const Matrix<double> x = random_matrix(rows, width, 1);
  ek::DeepNorm block{ek::RmsNorm<double>(width), Tanh<double>(width), 1.7};
  randomize(block, 2);
  REQUIRE(parameters_of(block).size() == 2);
  const Matrix<double> sum = 1.7 * x + branch_of(block.sublayer, x);
  CHECK(distance(forward(block, x), affine(block.norm, rms_norm(sum, 1e-6))) < formula_tolerance);
  check_gradients(block, rows, width);

  // With alpha = 1 it is post-norm.
  const Matrix<double> dy = random_matrix(rows, width, 3);
  Matrix<double> dx(rows, width), post_dx(rows, width);
  ek::DeepNorm one{ek::RmsNorm<double>(width), Tanh<double>(width), 1};
  ek::PostNorm post{ek::RmsNorm<double>(width), Tanh<double>(width)};
  randomize(one, 4), randomize(post, 4);
  CHECK(forward(one, x) == forward(post, x));
  one.backward(ek::serial, dy, x, dx);
  post.backward(ek::serial, dy, x, post_dx);
  CHECK(dx == post_dx);
  for (std::size_t i = 0; i < 2; ++i) {
    const Named a = parameters_of(one)[i], b = parameters_of(post)[i];
    CHECK(Values(a.gradient, a.gradient + a.size) == Values(b.gradient, b.gradient + b.size));
  }
}

TEST_CASE("the norm after the branch is x + norm(f(x))", "[residual][output_norm]") {
  const Matrix<double> x = random_matrix(rows, width, 1);
  ek::OutputNorm block{Tanh<double>(width), ek::RmsNorm<double>(width, {.eps = 1e-3})};
  randomize(block, 2);
  REQUIRE(parameters_of(block).size() == 2);
  const Matrix<double> xhat = rms_norm(branch_of(block.sublayer, x), 1e-3);
  CHECK(distance(forward(block, x), x + affine(block.output_norm, xhat)) < formula_tolerance);
  check_gradients(block, rows, width);
}

TEST_CASE("the sandwich is x + norm(f(norm(x)))", "[residual][sandwich]") {
  const Matrix<double> x = random_matrix(rows, width, 1);
  ek::Sandwich block{ek::RmsNorm<double>(width), Tanh<double>(width), ek::RmsNorm<double>(width, {.eps = 1e-3})};
  randomize(block, 2);
  REQUIRE(parameters_of(block).size() == 3);
  const Matrix<double> f = branch_of(block.sublayer, affine(block.norm, rms_norm(x, 1e-6)));
  CHECK(distance(forward(block, x), x + affine(block.output_norm, rms_norm(f, 1e-3))) < formula_tolerance);
  check_gradients(block, rows, width);

  ek::Sandwich bare{NoNorm(), Tanh<double>(width), NoNorm()};
  randomize(bare, 3);
  CHECK(forward(bare, x) == x + branch_of(bare.sublayer, x));
  check_gradients(bare, rows, width);
}

TEST_CASE("LayerNorm Scaling multiplies the whole output", "[residual][layer_norm_scaling]") {
  CHECK(ek::layer_norm_scaling(1) == 1);
  CHECK(ek::layer_norm_scaling(16) == 0.25);
  CHECK_THROWS_MATCHES(ek::layer_norm_scaling(0), ek::ShapeError,
                       Catch::Matchers::Message("layer_norm_scaling: layer is 0, expected 1 or more"));
  const Matrix<double> x = random_matrix(rows, width, 1);
  const double scale = ek::layer_norm_scaling(3);
  ek::OutputNorm block{Tanh<double>(width), ek::ScaledLayerNorm<double>(width, {.scale = scale, .eps = 1e-3})};
  CHECK((Eigen::Map<Vector>(block.output_norm.weight.value(), width) == 1).all());
  randomize(block, 2);
  const Matrix<double> normed = scale * affine(block.output_norm, layer_norm(branch_of(block.sublayer, x), 1e-3));
  CHECK(distance(forward(block, x), x + normed) < formula_tolerance);
  check_gradients(block, rows, width);

  // A huge row goes through the math in double, or in scaled double.
  const Matrix<double> huge = 1e200 * x;
  Matrix<double> y(rows, width), dx(rows, width), small_y(rows, width), small_dx(rows, width);
  ek::ScaledLayerNorm<double> norm(width, {.scale = scale, .eps = 0});
  norm.forward(ek::serial, huge, y);
  norm.backward(ek::serial, x, huge, dx);
  norm.forward(ek::serial, x, small_y);
  CHECK(distance(small_y, scale * layer_norm(x, 0)) < formula_tolerance);
  norm.backward(ek::serial, x, x, small_dx);
  CHECK(distance(y, small_y) < formula_tolerance);
  CHECK(distance(1e200 * dx, small_dx) < formula_tolerance * 10);
}

// Lengths below, at and above a pack, in place and not; the loops are those of add_norm_test.
TEST_CASE("the sums that norms are fused with equal their parts", "[residual][add_norm]") {
  const double epsilon = std::numeric_limits<double>::epsilon();
  for (const ek::Index n : {1, 7, 16, 33, 77}) {
    INFO("length " << n);
    const Matrix<double> x = random_matrix(5, n, 1), residual = random_matrix(5, n, 2);
    const Vector weight = random_matrix(n, 1, 3).array(), bias = random_matrix(n, 1, 4).array();
    Matrix<double> sum(5, n), y(5, n), normed(5, n), added(5, n), in_place = residual;
    ek::RmsNormSaved<double> rms_saved, rms_parts;
    ek::LayerNormSaved<double> saved, parts;
    const auto near = [&](const Matrix<double>& got, const Matrix<double>& expected) {
      return distance(got, expected) <= 8 * epsilon * (1 + expected.cwiseAbs().maxCoeff());
    };

    ek::add_rms_norm(ek::serial, x, residual, 1.5, weight, sum, y, rms_saved);
    CHECK(near(sum, x + 1.5 * residual));
    ek::rms_norm(ek::serial, sum, weight, normed, rms_parts);
    CHECK(y == normed);
    for (int r = 0; r < 5; ++r) CHECK(rms_saved.rstd(r) == rms_parts.rstd(r));
    ek::add_rms_norm(ek::serial, x, in_place, 1.5, weight, in_place, y, ek::none);
    CHECK(in_place == sum);
    ek::add_layer_norm(ek::serial, x, residual, -0.5, weight, bias, sum, y, saved);
    CHECK(near(sum, x - 0.5 * residual));
    ek::layer_norm(ek::serial, sum, weight, bias, normed, parts);
    CHECK(y == normed);

    ek::rms_norm_add(ek::serial, x, residual, weight, y, rms_saved);
    ek::rms_norm(ek::serial, x, weight, normed, rms_parts);
    CHECK(near(y, residual + normed));
    for (int r = 0; r < 5; ++r) CHECK(rms_saved.rstd(r) == rms_parts.rstd(r));
    ek::layer_norm_add(ek::serial, x, residual, weight, bias, y, saved);
    ek::layer_norm(ek::serial, x, weight, bias, normed, parts);
    CHECK(near(y, residual + normed));
    added = residual;
    ek::layer_norm_add(ek::serial, x, added, weight, bias, added, ek::none);
    CHECK(added == y);

    // A row whose squares overflow.
    const double large = std::sqrt(std::numeric_limits<double>::max());
    const Matrix<double> huge = large * x;
    ek::rms_norm(ek::serial, huge, weight, normed, ek::none);
    ek::rms_norm_add(ek::serial, huge, residual, weight, y, ek::none);
    CHECK(near(y, residual + normed));
    const Matrix<double> zero = Matrix<double>::Zero(5, n);
    ek::add_rms_norm(ek::serial, zero, huge, 2.0, weight, sum, y, ek::none);
    CHECK(sum == 2 * huge);
    ek::rms_norm(ek::serial, sum, weight, normed, ek::none);
    CHECK(y == normed);
  }
}
