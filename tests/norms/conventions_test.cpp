// What each convention's word sets, stated once.
#include "evenkeel/conventions.hpp"

#include "support/catch.hpp"

#include <Eigen/Core>

#include <cmath>

namespace ek = evenkeel;

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// What running statistics of (0, 1) become after the batch 1, 2, 6: mean 3, variance 14/3, unbiased 7.
std::pair<double, double> running_after(const ek::BatchNormOptions& options, const ek::RunningOptions& running) {
  const Matrix x{{1}, {2}, {6}};
  Matrix y(3, 1);
  ek::BatchNorm<float> norm(1, options, running);
  norm.forward(ek::serial, x, y);
  return {double(norm.running.mean()[0]), double(norm.running.var()[0])};
}

template <class Options>
double first_of(const Options& options, std::initializer_list<float> weights = {}) {
  const Matrix x{{3, -4, 0, 5}};
  Matrix y(1, 4);
  if (weights.size() == 0) {
    ek::rms_norm(ek::serial, x, ek::none, y, ek::none, options);
  } else {
    Eigen::VectorXf weight(4);
    std::copy(weights.begin(), weights.end(), weight.data());
    ek::rms_norm(ek::serial, x, weight, y, ek::none, options);
  }
  return double(y(0, 0));
}

}  // namespace

TEST_CASE("Torch: eps 1e-5, momentum of the new value, unbiased, machine epsilon in RMSNorm", "[norms][conventions]") {
  CHECK(ek::Torch::layer_norm.eps == 1e-5);
  CHECK(ek::Torch::group_norm(4).eps == 1e-5);
  CHECK(ek::Torch::batch_norm.axis.axis[0] == 1);
  const auto [mean, var] = running_after(ek::Torch::batch_norm, ek::Torch::running);
  CHECK(mean == Approx(0.1 * 3));
  CHECK(var == Approx(0.9 + 0.1 * 7));
  const Matrix tiny{{0x1p-12f, -0x1p-12f, 0x1p-11f, -0x1p-11f}};
  Matrix y(1, 4);
  ek::rms_norm(ek::serial, tiny, ek::none, y, ek::none, ek::Torch::rms_norm);
  CHECK(double(y(0, 0)) == Approx(0.4714045207910317));
}

TEST_CASE("Keras: eps 1e-3, channels last, momentum of the old value, biased", "[norms][conventions]") {
  CHECK(ek::Keras::layer_norm.eps == 1e-3);
  CHECK(ek::Keras::group_norm().groups == 32);
  CHECK(ek::Keras::group_norm(4).axis.axis[0] == -1);
  CHECK(ek::Keras::batch_norm.axis.axis[0] == -1);
  const auto [mean, var] = running_after(ek::Keras::batch_norm, ek::Keras::running);
  CHECK(mean == Approx(0.01 * 3));
  CHECK(var == Approx(0.99 + 0.01 * 14 / 3));
}

TEST_CASE("Llama rounds xhat before the weight, Gemma adds 1 to the weight and rounds once", "[norms][conventions]") {
  CHECK(first_of(ek::Llama::rms_norm) == Approx(3 / std::sqrt(12.5)));
  CHECK(first_of(ek::Gemma::rms_norm, {0.5f, 0, 0, 0}) == Approx(1.5 * 3 / std::sqrt(12.5)));
  CHECK(first_of(ek::Llama::rms_norm, {0.5f, 0, 0, 0}) == Approx(0.5 * 3 / std::sqrt(12.5)));
  using Half = Eigen::Matrix<Eigen::bfloat16, 1, Eigen::Dynamic, Eigen::RowMajor>;
  Half x(4), y(4), weight(4);
  x << Eigen::bfloat16(1), Eigen::bfloat16(-3), Eigen::bfloat16(5), Eigen::bfloat16(-7);
  weight.setConstant(Eigen::bfloat16(1.703125f));
  ek::rms_norm(ek::serial, x, weight, y, ek::none, ek::Llama::rms_norm);
  for (int i = 0; i < 4; ++i) {
    const float xhat = static_cast<float>(x(i)) / std::sqrt(21.0f + 1e-6f);
    const Eigen::bfloat16 rounded(xhat);
    CHECK(static_cast<float>(y(i)) == static_cast<float>(Eigen::bfloat16(static_cast<float>(rounded) * 1.703125f)));
  }
}
