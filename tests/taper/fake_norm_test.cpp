#include "evenkeel/taper/fake_norm.hpp"

#include "residual/sublayers.hpp"

namespace ek = evenkeel;

namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr ek::Index rows = 6, width = 11;

Matrix batch(std::uint64_t seed, double spread = 1) {
  const auto v = support::normal<double>(std::size_t(rows * width), seed, 0.5, spread);
  return Eigen::Map<const Matrix>(v.data(), rows, width);
}
double mean_sigma(const Matrix& x, double eps) {
  double sum = 0;
  for (ek::Index r = 0; r < x.rows(); ++r) sum += std::sqrt((x.row(r).array() - x.row(r).mean()).square().mean() + eps);
  return sum / double(x.rows());
}

}  // namespace

TEST_CASE("FakeLayerNorm is LayerNorm until it is frozen, then divides by the average sigma", "[taper]") {
  ek::FakeLayerNorm<double> fake(width, {.eps = 1e-3, .rate = 0.3});
  ek::LayerNorm<double> real(width, {.eps = 1e-3});
  residual_test::randomize(fake, 1);
  residual_test::randomize(real, 1);
  Matrix y(rows, width), dx(rows, width), real_y(rows, width), real_dx(rows, width);
  double sum = 0;
  for (int t = 0; t < 3; ++t) {
    const Matrix x = batch(std::uint64_t(t), 1 + t);
    fake.forward(ek::serial, batch(9, 50), y);  // a validation does not count
    fake.forward(ek::serial, x, y);
    fake.backward(ek::serial, y, x, dx);
    fake.backward(ek::serial, y, x, dx, ek::GradientMode::overwrite);  // nor does a second backward
    real.forward(ek::serial, x, real_y);
    real.backward(ek::serial, y, x, real_dx, ek::GradientMode::overwrite);
    CHECK(y == real_y);
    CHECK(dx == real_dx);
    sum += 0.3 * std::pow(0.7, 2 - t) * mean_sigma(x, 1e-3);
  }
  const double sigma = sum / (1 - std::pow(0.7, 3));
  ek::FakeLayerNorm<double> again(width, {.eps = 1e-3, .rate = 0.3});
  again.restore(fake.state());
  fake.freeze();
  again.freeze();
  CHECK(fake.average() == Approx(sigma).epsilon(1e-13));
  CHECK(again.average() == fake.average());
  CHECK(fake.frozen());
  const Matrix x = batch(7, 4);
  fake.forward(ek::serial, x, y);
  const auto map = fake.linear_map();
  CHECK(map.centred);
  for (ek::Index r = 0; r < rows; ++r)
    for (ek::Index i = 0; i < width; ++i) {
      const double h = x(r, i) - x.row(r).mean(), w = fake.real.weight.value()[i], b = fake.real.bias.value()[i];
      CHECK(y(r, i) == Approx(h / sigma * w + b).epsilon(1e-12).margin(1e-14));
      CHECK(y(r, i) == Approx(h * map.scale[std::size_t(i)] + map.offset[std::size_t(i)]).epsilon(1e-12).margin(1e-14));
    }
}

TEST_CASE("FakeLayerNorm's gradients equal central differences, real and frozen, in a residual block", "[taper]") {
  for (const bool frozen : {false, true}) {
    ek::PreNorm block{ek::FakeLayerNorm<double>(6, {.eps = 1e-3}), residual_test::Tanh<double>(6)};
    residual_test::randomize(block, 4);
    if (frozen) block.norm.freeze(1.3);
    residual_test::check_gradients(block, 4, 6);
  }
}

TEST_CASE("FakeLayerNorm names what comes at the wrong time", "[taper][errors]") {
  ek::FakeLayerNorm<double> fake(width);
  CHECK_THROWS_WITH(fake.freeze(),
                    "FakeLayerNorm::freeze: got no batches, expected 1 or more that went forward and "
                    "backward, or freeze(sigma)");
  CHECK_THROWS_WITH(fake.freeze(0), "FakeLayerNorm::freeze: got sigma 0.000000, expected a finite number above 0");
  CHECK_THROWS_WITH(fake.linear_map(), "FakeLayerNorm::linear_map: got a real LayerNorm, expected one after freeze()");
  fake.freeze(2);
  CHECK_THROWS_WITH(fake.freeze(),
                    "FakeLayerNorm::freeze: got a layer whose sigma is 2.000000 already, expected one "
                    "that is not frozen yet");
  CHECK_THROWS_WITH(fake.restore({.sigma = {}, .average = -1}),
                    "FakeLayerNorm::restore: got the average -1.000000, "
                    "expected a finite number of at least 0");
  CHECK_THROWS_AS(fake.restore({.sigma = {.sum = 1, .weight = 0, .count = 2}}), ek::StateError);
  CHECK(fake.average() == 2);
  CHECK_THROWS_AS(ek::FakeLayerNorm<double>(0), ek::ShapeError);
  CHECK_THROWS_AS(ek::FakeLayerNorm<double>(4, {.rate = 0}), ek::ShapeError);
}
