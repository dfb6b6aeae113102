// Facts that anyone can check against PyTorch, one printed line each.
#include "golden/golden.hpp"
#include "residual/sublayers.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
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

template <class Block>
struct Stack {
  std::vector<Block> blocks;
  residual_test::Linear<float> head;
};

/// Blocks of draw()'s layers, and a head.
template <class Block, class Draw>
Stack<Block> stack_of(std::size_t depth, const Draw& draw) {
  std::vector<Block> blocks;
  for (std::size_t l = 0; l < depth; ++l) blocks.emplace_back(ek::LayerNorm<float>(width, {.eps = 1e-5}), draw());
  return {std::move(blocks), draw()};
}

/// Norms of weight gradients of the loss mean(out^2), in the first block and in the last.
struct GradientNorms {
  double first, last;
};
template <class Block>
GradientNorms gradient_norms(Stack<Block>& stack, Matrix x, bool final_norm) {
  const std::size_t depth = stack.blocks.size();
  std::vector<Matrix> inputs;
  for (Block& block : stack.blocks) {
    inputs.push_back(x);
    Matrix y(x.rows(), width);
    block.forward(ek::serial, x, y);
    x = y;
  }
  Matrix normalized = x, out = x, gradient = x;
  ek::LayerNorm<float> norm(width);
  if (final_norm) norm.forward(ek::serial, x, normalized);
  stack.head.forward(ek::serial, normalized, out);
  stack.head.backward(ek::serial, Matrix(out * (2.0f / float(out.size()))), normalized, gradient);
  if (final_norm) norm.backward(ek::serial, Matrix(gradient), x, gradient);
  for (std::size_t l = depth; l-- > 0;) {
    Matrix dx(x.rows(), width);
    stack.blocks[l].backward(ek::serial, gradient, inputs[l], dx);
    gradient = dx;
  }
  const auto norm_of = [](Block& block) {
    const Eigen::Map<const Eigen::ArrayXf> dweight(block.sublayer.weight.gradient(), width * width);
    return dweight.cast<double>().matrix().norm();
  };
  return {norm_of(stack.blocks.front()), norm_of(stack.blocks.back())};
}

using Pre = ek::PreNorm<ek::LayerNorm<float>, residual_test::Linear<float>>;
using Post = ek::PostNorm<ek::LayerNorm<float>, residual_test::Linear<float>>;

/// The last block's norm over the first's: 48 blocks, torch's default Linear, torch seed 0.
template <class Block>
double gradient_ratio() {
  ek::TorchRandom random(0);
  auto stack = stack_of<Block>(48, [&] {
    residual_test::Linear<float> linear(width);
    const ek::Fans fans{.in = width, .out = width};
    ek::torch_linear_uniform(linear.weight.value(), width * width, fans, random);
    ek::torch_linear_uniform(linear.bias.value(), width, fans, random);
    return linear;
  });
  Matrix x(batch, width);
  random.fill_normal(x.data(), x.size());
  const GradientNorms norms = gradient_norms(stack, x, false);
  return norms.last / norms.first;
}

TEST_CASE("fact 3: gradients of 48 blocks fade upwards in Pre-norm and grow in Post-norm", "[invariants][residual]") {
  const double pre = gradient_ratio<Pre>(), post = gradient_ratio<Post>();
  std::printf("fact 3: weight gradient of the last block over the first, Pre-norm %.4f (expected 0.4015)\n", pre);
  std::printf("fact 3: weight gradient of the last block over the first, Post-norm %.4f (expected 2.3457)\n", post);
  // Torch rounds its normals otherwise than we do, and 48 blocks carry that on: two decimals are safe.
  CHECK(std::abs(pre - 0.4015) < 5e-3);
  CHECK(std::abs(post - 2.3457) < 5e-3);
}

/// The mean norm in the last block over ten seeds: branches of gain 1, the head behind a norm, one row (rows of a stack
/// of linear layers grow alike with depth, and their gradients would add up).
template <class Block>
double last_gradient(std::size_t depth, bool final_norm) {
  double sum = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    int drawn = 0;
    auto stack = stack_of<Block>(depth, [&] {
      residual_test::Linear<float> linear(width);
      Eigen::Map<Matrix> weight(linear.weight.value(), width, width);
      ek::xavier_normal(weight, ek::fans_of_linear(width, width), ek::RandomStream(seed, std::to_string(drawn++)));
      return linear;
    });
    Matrix x(1, width);
    ek::RandomStream(seed, "input").fill_normal(x.data(), x.size());
    sum += gradient_norms(stack, x, final_norm).last;
  }
  return sum / 10;
}

TEST_CASE("fact 3: the last block's gradient is Post-norm's at any depth, and falls as 1/sqrt(depth) in Pre-norm",
          "[invariants][residual]") {
  // Xiong et al. 2020, theorem 1 and its counterpart.
  std::vector<double> logs, pre, post;
  for (const std::size_t depth : {6, 12, 24, 48, 96}) {
    const double of_pre = last_gradient<Pre>(depth, true), of_post = last_gradient<Post>(depth, false);
    std::printf(
        "fact 3: depth %zu, ten seeds: weight gradient of the last block, Pre-norm %.3f (times sqrt(1 + depth) %.3f), "
        "Post-norm %.3f\n",
        depth, of_pre, of_pre * std::sqrt(1.0 + double(depth)), of_post);
    logs.push_back(std::log(1.0 + double(depth)));
    pre.push_back(std::log(of_pre));
    post.push_back(std::log(of_post));
  }
  const auto slope = [&](const std::vector<double>& y) {
    return (y.back() - y.front()) / (logs.back() - logs.front());
  };
  std::printf("fact 3: power of 1 + depth, Pre-norm %.3f (expected -0.5), Post-norm %.3f (expected 0)\n", slope(pre),
              slope(post));
  CHECK(std::abs(slope(pre) + 0.5) < 0.05);
  CHECK(std::abs(slope(post)) < 0.05);
}

}  // namespace
