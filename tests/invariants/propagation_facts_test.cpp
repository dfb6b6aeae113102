// Facts about signals in deep stacks, one printed line each.
#include "evenkeel/probe/signal_statistics.hpp"
#include "residual/sublayers.hpp"

#include <Eigen/Core>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace {

namespace ek = evenkeel;
using Matrix = residual_test::Matrix<float>;

TEST_CASE("fact 4: Kaiming keeps the second moment through a ReLU, LeCun halves it", "[invariants][init]") {
  const ek::Index width = 512, rows = 4096;
  const ek::Fans fans = ek::fans_of_linear(width, width);
  Matrix x(rows, width), w(width, width);
  ek::RandomStream(4, "input").fill_normal(x.data(), x.size());
  const auto statistics = [&](double gain) {
    ek::kaiming_normal(w, fans, ek::RandomStream(4, "weight"), {.gain = gain});
    return ek::signal_statistics((x * w.transpose()).cwiseMax(0.0f));
  };
  const ek::SignalStatistics kaiming = statistics(ek::relu_gain), lecun = statistics(1);
  const double variance = kaiming.second_moment - kaiming.mean * kaiming.mean;
  std::printf(
      "fact 4: E[y^2] behind Linear 512 and ReLU, Kaiming %.3f (expected 1.00), 1/fan_in %.3f (expected 0.50)\n",
      kaiming.second_moment, lecun.second_moment);
  std::printf("fact 4: Var(y), Kaiming %.3f (expected 0.68)\n", variance);
  CHECK(std::abs(kaiming.second_moment - 1) < 0.02);
  CHECK(std::abs(lecun.second_moment - 0.5) < 0.02);
  CHECK(std::abs(variance - 0.68) < 0.02);
}

TEST_CASE("fact 5: a residual stream of 50 layers grows 101 times, or twice with 1/sqrt(2N)",
          "[invariants][residual]") {
  const ek::Index layers = 50, samples = 100000;
  Eigen::ArrayXd write(samples);
  const auto growth = [&](double scale) {
    Eigen::ArrayXd x(samples);
    ek::RandomStream(5, "stream").fill_normal(x.data(), samples);
    const double before = ek::signal_statistics(x).second_moment;
    for (ek::Index l = 0; l < 2 * layers; ++l) {
      ek::RandomStream(5, "write " + std::to_string(l)).fill_normal(write.data(), samples);
      ek::residual_sum(ek::serial, x, write, x, scale);
    }
    return ek::signal_statistics(x).second_moment / before;
  };
  const double plain = growth(1), scaled = growth(1 / std::sqrt(2.0 * double(layers)));
  std::printf(
      "fact 5: variance of a stream after 50 layers, unscaled %.2f (expected 101), 1/sqrt(2N) %.3f (expected 2)\n",
      plain, scaled);
  CHECK(std::abs(plain / 101 - 1) < 0.015);
  CHECK(std::abs(scaled / 2 - 1) < 0.015);
}

// The standard deviation of a stream after each of `depth` blocks that `block` makes of it: block(l, x, branch), the
// branch being LayerNorm and a linear layer of gain 1.
template <class Block>
std::vector<double> stream_std(std::size_t depth, const Block& block) {
  const ek::Index width = 128, rows = 64;
  Matrix x(rows, width), normed(rows, width), branch(rows, width);
  ek::RandomStream(6, "input").fill_normal(x.data(), x.size());
  std::vector<double> result;
  for (std::size_t l = 1; l <= depth; ++l) {
    residual_test::Linear<float> linear(width);
    ek::kaiming_normal(linear.weight.value(), width * width, ek::fans_of_linear(width, width),
                       ek::RandomStream(6, "weight " + std::to_string(l)), {.gain = 1});
    const auto sublayer = [&](const Matrix& input) { linear.forward(ek::serial, input, branch); };
    block(x, normed, branch, sublayer);
    const ek::SignalStatistics s = ek::signal_statistics(x);
    result.push_back(std::sqrt(s.second_moment - s.mean * s.mean));
  }
  return result;
}

TEST_CASE("fact 6: a Pre-norm stream grows as the root of its depth, and four scales bound it",
          "[invariants][residual]") {
  constexpr std::size_t depth = 64;
  const auto pre_norm = [&](double scale) {
    return stream_std(depth, [&](Matrix& x, Matrix& normed, Matrix& branch, const auto& sublayer) {
      ek::layer_norm(ek::serial, x, ek::none, ek::none, normed, ek::none);
      sublayer(normed);
      ek::residual_sum(ek::serial, x, branch, x, float(scale));
    });
  };
  const auto deep_norm = stream_std(depth, [&](Matrix& x, Matrix& normed, Matrix& branch, const auto& sublayer) {
    sublayer(x);
    ek::residual_sum(ek::serial, branch, x, normed, float(std::pow(2.0 * double(depth), 0.25)));
    ek::layer_norm(ek::serial, normed, ek::none, ek::none, x, ek::none);
  });
  const auto plain = pre_norm(1), depth_scale = pre_norm(1 / std::sqrt(double(depth))), rezero = pre_norm(0),
             layer_scale = pre_norm(1e-6);
  const double root = std::log2(plain[63] / plain[15]) / 2;  // depth 64 over depth 16
  std::printf("fact 6: std of a Pre-norm stream at depth 16 %.2f, at 64 %.2f: depth^%.2f (expected 0.5)\n", plain[15],
              plain[63], root);
  std::printf(
      "fact 6: std at depth 64, DeepNorm %.2f, 1/sqrt(N branches) %.2f, ReZero %.2f, LayerScale %.2f (bounded)\n",
      deep_norm[63], depth_scale[63], rezero[63], layer_scale[63]);
  CHECK(std::abs(root - 0.5) < 0.06);
  CHECK(std::abs(plain[63] / std::sqrt(65.0) - 1) < 0.1);
  CHECK(std::abs(deep_norm[63] - 1) < 0.01);
  CHECK(std::abs(depth_scale[63] - std::sqrt(2.0)) < 0.1);
  CHECK(rezero[63] == rezero[0]);
  CHECK(std::abs(layer_scale[63] - rezero[63]) < 1e-4);
}

}  // namespace
