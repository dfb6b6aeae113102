// Facts that anyone can check against PyTorch, one printed line each.
#include "golden/golden.hpp"
#include "residual/sublayers.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace {

namespace ek = evenkeel;
using Matrix = residual_test::Matrix<float>;

Matrix matrix_of(const std::vector<double>& values, ek::Index rows, ek::Index cols) {
  Matrix m(rows, cols);
  for (ek::Index i = 0; i < m.size(); ++i) m.data()[i] = float(values[std::size_t(i)]);
  return m;
}

// Largest |got - expected| / max(1, |expected|).
double distance(const Matrix& got, const Matrix& expected) {
  return ((got - expected).array().abs() / expected.array().abs().max(1.0f)).maxCoeff();
}

TEST_CASE("fact 1: LayerNorm and RMSNorm are torch's, and only LayerNorm ignores a shift", "[invariants][norms]") {
  const golden::Standard& values = golden::standard_normal();
  const ek::Index rows = values.rows, d = values.features;
  const Matrix x = matrix_of(values.x, rows, d), shifted = (x.array() + 5.0f).matrix();
  Matrix layer(rows, d), rms(rows, d), layer_shifted(rows, d), rms_shifted(rows, d);
  ek::layer_norm(ek::serial, x, ek::none, ek::none, layer, ek::none);
  ek::layer_norm(ek::serial, shifted, ek::none, ek::none, layer_shifted, ek::none);
  ek::rms_norm(ek::serial, x, ek::none, rms, ek::none);
  ek::rms_norm(ek::serial, shifted, ek::none, rms_shifted, ek::none);

  const double layer_distance = distance(layer, matrix_of(values.layer_norm, rows, d));
  const double rms_distance = distance(rms, matrix_of(values.rms_norm, rows, d));
  const double layer_move = (layer - layer_shifted).cwiseAbs().maxCoeff();
  const double rms_move = (rms - rms_shifted).cwiseAbs().maxCoeff();
  std::printf("fact 1: distance to torch, LayerNorm %.2g, RMSNorm %.2g (expected up to 5e-7)\n", layer_distance,
              rms_distance);
  std::printf(
      "fact 1: moved by adding 5 to the input, LayerNorm %.2g (expected under 1e-4), RMSNorm %.2g (expected over "
      "1e-2)\n",
      layer_move, rms_move);
  CHECK(layer_distance <= 5e-7);
  CHECK(rms_distance <= 5e-7);
  CHECK(layer_move < 1e-4);
  CHECK(rms_move > 1e-2);
}

TEST_CASE("fact 2: BatchNorm centres each feature in training, follows the mean, and infers with what it has followed",
          "[invariants][norms]") {
  const ek::Index samples = 256, features = 8;
  Matrix x(samples, features), y(samples, features), inferred(samples, features);
  ek::RandomStream(2, "fact 2").fill_normal(x.data(), x.size(), 7.0, 3.0);
  ek::BatchNorm<float> norm(features);
  norm.forward(ek::serial, x, y);
  const double centre = y.cast<double>().colwise().mean().cwiseAbs().maxCoeff();
  const double followed = double(*std::min_element(norm.running.mean(), norm.running.mean() + features));
  norm.training = false;
  norm.forward(ek::serial, x, inferred);
  const double apart = (inferred - y).cwiseAbs().maxCoeff();
  std::printf("fact 2: largest mean of a feature after BatchNorm %.2g (expected up to 1e-6; input mean 7, spread 3)\n",
              centre);
  std::printf("fact 2: smallest running mean after one batch %.3f (expected near 0.7, it starts at 0)\n", followed);
  std::printf("fact 2: inference is apart from training by %.2f (expected over 1)\n", apart);
  CHECK(centre <= 1e-6);
  CHECK(followed > 0.5);
  CHECK(followed < 0.9);
  CHECK(apart > 1);
}

constexpr ek::Index width = 64, batch = 16;
constexpr std::size_t depth = 48;

// The norm of the last block's weight gradient over the first's: torch's default Linear, torch seed 0, loss
// mean(out^2).
template <class Block>
double gradient_ratio() {
  using Linear = residual_test::Linear<float>;
  ek::TorchRandom random(0);
  const auto draw = [&] {
    Linear linear(width);
    const ek::Fans fans{.in = width, .out = width};
    ek::torch_linear_uniform(linear.weight.value(), width * width, fans, random);
    ek::torch_linear_uniform(linear.bias.value(), width, fans, random);
    return linear;
  };
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < depth; ++i) blocks.emplace_back(ek::LayerNorm<float>(width, {.eps = 1e-5}), draw());
  Linear head = draw();
  Matrix x(batch, width);
  random.fill_normal(x.data(), x.size());

  std::vector<Matrix> inputs;
  for (Block& block : blocks) {
    inputs.push_back(x);
    Matrix y(batch, width);
    block.forward(ek::serial, x, y);
    x = y;
  }
  Matrix out(batch, width), gradient(batch, width);
  head.forward(ek::serial, x, out);
  head.backward(ek::serial, Matrix(out * (2.0f / float(out.size()))), x, gradient);
  for (std::size_t i = depth; i-- > 0;) {
    Matrix dx(batch, width);
    blocks[i].backward(ek::serial, gradient, inputs[i], dx);
    gradient = dx;
  }
  const auto norm = [](Block& block) {
    return Eigen::Map<const Eigen::ArrayXf>(block.sublayer.weight.gradient(), width * width)
        .cast<double>()
        .matrix()
        .norm();
  };
  return norm(blocks.back()) / norm(blocks.front());
}

TEST_CASE("fact 3: gradients of 48 blocks fade upwards in Pre-norm and grow in Post-norm", "[invariants][residual]") {
  const double pre = gradient_ratio<ek::PreNorm<ek::LayerNorm<float>, residual_test::Linear<float>>>();
  const double post = gradient_ratio<ek::PostNorm<ek::LayerNorm<float>, residual_test::Linear<float>>>();
  std::printf("fact 3: weight gradient of the last block over the first, Pre-norm %.4f (expected 0.4015)\n", pre);
  std::printf("fact 3: weight gradient of the last block over the first, Post-norm %.4f (expected 2.3457)\n", post);
  // Torch rounds its normals otherwise than we do, and 48 blocks carry that on: two decimals are safe.
  CHECK(std::abs(pre - 0.4015) < 5e-3);
  CHECK(std::abs(post - 2.3457) < 5e-3);
}

}  // namespace
