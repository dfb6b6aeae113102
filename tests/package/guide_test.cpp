// The code of the pages in examples/guide, between the marks that cmake/readme_snippet.cmake looks for, and what the pages say
// of it.
#include "evenkeel/evenkeel.hpp"
#include "evenkeel/tensor.hpp"
#include "support/catch.hpp"

#include <Eigen/Core>
#include <unsupported/Eigen/CXX11/Tensor>

#include <cmath>
#include <string>

namespace ek = evenkeel;

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::ArrayXf;
constexpr Eigen::Index rows = 6, width = 16;

Matrix batch(std::uint64_t seed) {
  Matrix x(rows, width);
  ek::RandomStream(seed, "batch").fill_normal(x.data(), x.size(), 0.5, 2.0);
  return x;
}

// [sublayer]
/// y = x * factor: anything with these three functions is a branch. A trainer has its attention and its FFN here.
struct Scaling {
  float factor;

  template <class Device, class X, class Y>
  void forward(const Device&, const X& x, Y&& y) {
    for (ek::Index i = 0; i < x.size(); ++i) y.data()[i] = factor * x.data()[i];
  }
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device&, const Dy& dy, const X&, Dx&& dx) {
    for (ek::Index i = 0; i < dy.size(); ++i) dx.data()[i] = factor * dy.data()[i];
  }
  template <class F>
  void for_each_parameter(F&&) {}
};
// [/sublayer]

}  // namespace

TEST_CASE("guide: norms over rows") {
  const Matrix x = batch(1), residual = batch(2), dy = batch(3);
  Matrix y(rows, width), sum(rows, width), dx(rows, width);
  // [rows]
  Vector weight = Vector::Ones(width), bias = Vector::Zero(width);    // (features)
  Vector dweight = Vector::Zero(width), dbias = Vector::Zero(width);  // gradients are added to what is here

  ek::LayerNormSaved<float> saved;  // statistics, from the forward to the backward
  ek::layer_norm(ek::serial, x, weight, bias, y, saved, {.eps = 1e-5});
  ek::layer_norm_backward(ek::serial, dy, x, weight, saved, dx, dweight, dbias);

  ek::RmsNormSaved<float> rms_saved;  // sum = x + residual and its norm, in one pass
  ek::add_rms_norm(ek::serial, x, residual, weight, sum, y, rms_saved, ek::Llama::rms_norm);
  ek::add_rms_norm_backward(ek::serial, dy, /*dsum*/ dy, sum, weight, rms_saved, dx, dweight);
  // [/rows]
  CHECK((sum - (x + residual)).cwiseAbs().maxCoeff() == 0);
  CHECK(std::abs(y.row(0).squaredNorm() / float(width) - 1) < 1e-4f);
}

TEST_CASE("README: free functions") {
  const Matrix x = batch(1), dy = batch(2);
  const ek::Serial device;
  const Vector weight = Vector::Ones(width);
  Vector dweight = Vector::Zero(width);
  Matrix y(rows, width), dx(rows, width);
  // [free]
  ek::RmsNormSaved<float> saved;
  ek::rms_norm(device, x, weight, y, saved, {.eps = 1e-6});
  ek::rms_norm_backward(device, dy, x, weight, saved, dx, dweight);
  // [/free]
  CHECK(dweight.isFinite().all());
}

TEST_CASE("guide: norms over channels") {
  using Images = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  const ek::Index channels = 8;
  Images x(4, channels, 3, 3), y(4, channels, 3, 3), dy(4, channels, 3, 3), dx(4, channels, 3, 3);
  ek::RandomStream(1, "images").fill_normal(x.data(), x.size(), 3.0, 2.0);
  dy.setConstant(0.25f);
  // [channels]
  ek::BatchNorm<float> batch_norm(channels);  // torch's defaults; {.axis = -1} for channels last
  batch_norm.forward(ek::serial, x, y);       // statistics of the batch, running ones follow
  batch_norm.backward(ek::serial, dy, x, dx);
  batch_norm.training = false;
  batch_norm.forward(ek::serial, x, y);  // running statistics

  ek::GroupNorm<float, ek::Silu> group_norm(channels, {.groups = 4});  // SiLU in the same pass
  group_norm.forward(ek::serial, x, y);
  // [/channels]
  const Eigen::Tensor<float, 0, Eigen::RowMajor> least = y.minimum();
  CHECK(least() > -0.3f);  // SiLU's least value is -0.278
}

TEST_CASE("guide: residual blocks") {
  const Matrix x = batch(4), dy = batch(5);
  Matrix y(rows, width), dx(rows, width);
  // [residual]
  ek::PreNorm block(ek::RmsNorm<float>(width), Scaling{0.5f});  // y = x + f(norm(x))
  block.forward(ek::serial, x, y);
  block.backward(ek::serial, dy, x, dx);

  ek::DeepNorm deep(ek::LayerNorm<float>(width), Scaling{0.5f}, ek::deepnorm_scales(24).alpha);
  ek::ReZero<float, Scaling> grown(Scaling{0.5f});  // y = x + alpha * f(x), alpha learned from 0
  grown.forward(ek::serial, x, y);
  // [/residual]
  CHECK((y - x).cwiseAbs().maxCoeff() == 0);
  int parameters = 0;
  deep.for_each_parameter([&](const auto&) { ++parameters; });
  CHECK(parameters == 2);
}

TEST_CASE("guide: initialization") {
  // [initialization]
  Matrix weight(32, 64);  // (out, in), as torch keeps it
  const ek::Fans fans = ek::fans_of_linear(64, 32);
  ek::kaiming_normal(weight, fans, ek::RandomStream(42, "ffn.weight"), {.gain = ek::relu_gain});

  const ek::Plan plan =
      ek::transformer_plan(ek::TransformerRecipe::gpt2, {.decoder_layers = 12, .width = 64, .heads = 4});
  plan.initialize(ek::Role::ffn_down, weight, fans, ek::RandomStream(42, "ffn_down.weight"));
  const double decay = plan.weight_decay_factor(ek::Role::ffn_down),
               rate = plan.learning_rate_factor(ek::Role::ffn_down);
  // [/initialization]
  CHECK(decay == 1);
  CHECK(rate == 1);
  CHECK(std::abs(std::sqrt(weight.squaredNorm() / 2048) - 0.02 / std::sqrt(24.0)) < 3e-4);
}

TEST_CASE("guide: norms that taper away") {
  const Matrix dy = batch(7);
  Matrix y(rows, width), dx(rows, width);
  // [taper]
  ek::Taper taper({.warmup_steps = 2, .end_step = 4});  // one gate for the whole network
  ek::TaperRmsNorm<float> norm(width, taper);
  for (int step = 0; step < 6; ++step) {
    const Matrix x = batch(static_cast<std::uint64_t>(step));
    norm.forward(ek::serial, x, y);  // a norm, a mixture, then y = factor * scale_weight * x
    norm.backward(ek::serial, dy, x, dx);
    taper.advance();  // after each update of the parameters
  }
  // [/taper]
  const Matrix x = batch(9);
  norm.forward(ek::serial, x, y);
  CHECK((y - static_cast<float>(norm.factor()) * x).cwiseAbs().maxCoeff() < 1e-5f);
}

TEST_CASE("guide: folding") {
  Matrix weight = batch(10);  // (out, in)
  const Matrix before = weight;
  const Vector gamma = Vector::LinSpaced(width, 0.5f, 1.5f);
  Vector bias = Vector::Zero(rows);
  // [fold]
  // x -> factor * gamma * x -> linear layer: the map goes into the layer's weight, (out, in).
  const ek::AffineMap map = ek::taper_norm_map(0.25, gamma, ek::none);
  ek::fold_into_next(map, weight, bias, weight, bias, {.axes = {.input = {1}, .output = {0}}});
  // [/fold]
  CHECK((weight.array().row(1) - 0.25f * before.array().row(1) * gamma.transpose()).abs().maxCoeff() < 1e-6f);
}

TEST_CASE("guide: probes") {
  // [probe]
  ek::Probe probe;
  Matrix x = batch(11);
  for (ek::Index layer = 0; layer < 24; ++layer) {
    probe.forward("block." + std::to_string(layer) + ".out", layer, x);
    x *= 1.6f;  // a stack that grows
  }
  const std::string in_words = probe.verdict().text();
  // [/probe]
  CHECK_FALSE(probe.verdict().healthy());
  CHECK(in_words.find("explod") != std::string::npos);
}

TEST_CASE("guide: conventions of other systems") {
  const Matrix x = batch(12);
  Matrix y(rows, width), gemma(rows, width);
  const Vector weight = Vector::Constant(width, 1.25f), offset = weight - 1;
  // [migration]
  ek::rms_norm(ek::serial, x, weight, y, ek::none, ek::Llama::rms_norm);
  ek::rms_norm(ek::serial, x, offset, gemma, ek::none, ek::Gemma::rms_norm);  // its weight is kept less 1
  ek::BatchNorm<float> keras(width, ek::Keras::batch_norm, ek::Keras::running);
  // [/migration]
  CHECK((y - gemma).cwiseAbs().maxCoeff() < 1e-6f);
  CHECK(keras.weight.size() == width);
}

TEST_CASE("guide: the same bits") {
  // [bits]
  Matrix x = batch(13), y(rows, width), one(1, width);
  ek::RmsNorm<float> norm(width);
  norm.forward(ek::serial, x, y);
  const Matrix row = x.row(3);
  norm.forward(ek::serial, row, one);
  const bool same = (one.array() == y.row(3).array()).all();  // whatever else is in the batch
  // [/bits]
  CHECK(same);
}
