// What stands between a branch and the stream: LayerScale, depth scale, SkipInit, NFNet's betas, stochastic depth.
#include "evenkeel/tensor.hpp"
#include "residual/sublayers.hpp"
#include "support/devices.hpp"

#include <cmath>
#include <limits>
#include <type_traits>

using namespace residual_test;

namespace {
constexpr ek::Index rows = 4, width = 6;
template <class T>
using Vector = Eigen::Array<T, Eigen::Dynamic, 1>;
template <int Rank, int Layout>
using Tensor = Eigen::Tensor<double, Rank, Layout>;
constexpr int row_major = Eigen::RowMajor, col_major = Eigen::ColMajor;

template <class T>
Matrix<T> random_matrix(ek::Index r, ek::Index c, std::uint64_t seed) {
  return matrix_of(support::normal<T>(std::size_t(r * c), seed, 0.3), r).template cast<T>();
}

template <class X>
void fill(X&& x, std::uint64_t seed) {
  const Values values = support::normal<double>(std::size_t(x.size()), seed, 0.3);
  for (std::size_t i = 0; i < values.size(); ++i) x.data()[i] = values[i];
}

// A branch of one value everywhere, through which nothing flows back.
struct Constant {
  double value = 1;

  template <class Device, class X, class Y>
  void forward(const Device&, const X&, Y&& y) {
    y.setConstant(value);
  }
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device&, const Dy&, const X&, Dx&& dx) {
    dx.setZero();
  }
  template <class F>
  void for_each_parameter(F&&) {}
};

template <class Block>
double branch_distance(Block& block, double scale) {
  const Matrix<double> x = random_matrix<double>(rows, width, 1);
  Matrix<double> branch(rows, width);
  block.sublayer.forward(ek::serial, x, branch);
  return (forward(block, x) - (x + scale * branch)).cwiseAbs().maxCoeff();
}
}  // namespace

TEMPLATE_TEST_CASE("layer_scale is x + scale * f, and its gradients are sums over the rows", "[residual][layer_scale]",
                   double, float) {
  using T = TestType;
  using Wide = Matrix<double>;
  const T epsilon = std::numeric_limits<T>::epsilon();
  for (const ek::Index r : {1, 3, 130})
    for (const ek::Index n : {1, 2, 7, 16, 33}) {
      INFO(r << " x " << n);
      const Matrix<T> x = random_matrix<T>(r, n, 1), f = random_matrix<T>(r, n, 2), dy = random_matrix<T>(r, n, 3);
      const Vector<T> scale = random_matrix<T>(n, 1, 4).array();
      Matrix<T> y = Matrix<T>::Constant(r, n, NAN), df = y;
      Vector<T> dscale = Vector<T>::Constant(n, T(2));
      ek::LayerScaleSaved<T> saved;
      ek::layer_scale(ek::serial, x, f, scale, y, saved);
      ek::layer_scale_backward(ek::serial, dy, f, scale, saved, df, dscale);
      const Wide wide_f = f.template cast<double>(), wide_dy = dy.template cast<double>();
      const auto weights = scale.template cast<double>().matrix().asDiagonal();
      const Wide scaled = wide_f * weights;
      CHECK((y.template cast<double>() - x.template cast<double>() - scaled).cwiseAbs().maxCoeff() < 16 * epsilon);
      CHECK((df.template cast<double>() - wide_dy * weights).cwiseAbs().maxCoeff() < 8 * epsilon);
      const Eigen::RowVectorXd sums = wide_dy.cwiseProduct(wide_f).colwise().sum();
      const double size = wide_dy.cwiseProduct(wide_f).cwiseAbs().colwise().sum().maxCoeff();
      const Eigen::RowVectorXd got = dscale.template cast<double>().matrix().transpose();
      CHECK((got.array() - 2 - sums.array()).abs().maxCoeff() < 16 * epsilon * (2 + size));

      // Overwritten, and df where dy was or where f was; without dscale the same df.
      Vector<T> again = Vector<T>::Constant(n, NAN);
      Matrix<T> in_dy = dy, in_f = f, in_x = x;
      ek::layer_scale_backward(ek::serial, in_dy, f, scale, saved, in_dy, again, ek::GradientMode::overwrite);
      CHECK((again.template cast<double>().matrix().transpose() - sums).cwiseAbs().maxCoeff() <
            16 * epsilon * (1 + size));
      CHECK((in_dy.array() == df.array()).all());
      ek::layer_scale_backward(ek::serial, dy, in_f, scale, saved, in_f, ek::none);
      CHECK((in_f.array() == df.array()).all());
      ek::layer_scale(ek::serial, in_x, f, scale, in_x, ek::none);
      CHECK((in_x.array() == y.array()).all());

      // Of ones it is the plain sum.
      ek::layer_scale(ek::serial, x, f, Vector<T>::Ones(n).eval(), y, ek::none);
      CHECK((y.array() == (x + f).array()).all());
    }
}

TEMPLATE_TEST_CASE_SIG("layer_scale follows the channels of images", "[residual][layer_scale]",
                       ((int Layout, int Axis), Layout, Axis), (row_major, 1), (col_major, 2), (row_major, 3)) {
  using Images = Tensor<4, Layout>;
  Images x(2, 3, 5, 4), f(2, 3, 5, 4), dy(2, 3, 5, 4), y(2, 3, 5, 4), df(2, 3, 5, 4);
  fill(x, 1), fill(f, 2), fill(dy, 3);
  const ek::Index channels = x.dimension(Axis);
  Vector<double> scale(channels), dscale = Vector<double>::Zero(channels), expected = dscale;
  fill(scale, 4);
  ek::LayerScaleSaved<double> saved;
  ek::layer_scale(ek::serial, x, f, scale, y, saved, {.axis = Axis});
  ek::layer_scale_backward(ek::serial, dy, f, scale, saved, df, dscale);
  double distance = 0;
  for (ek::Index n = 0; n < 2; ++n)
    for (ek::Index c = 0; c < 3; ++c)
      for (ek::Index h = 0; h < 5; ++h)
        for (ek::Index w = 0; w < 4; ++w) {
          const ek::Index at[] = {n, c, h, w};
          const double lambda = scale[at[Axis]];
          distance = std::max(distance, std::abs(y(n, c, h, w) - x(n, c, h, w) - lambda * f(n, c, h, w)));
          distance = std::max(distance, std::abs(df(n, c, h, w) - lambda * dy(n, c, h, w)));
          expected[at[Axis]] += dy(n, c, h, w) * f(n, c, h, w);
        }
  CHECK(distance < formula_tolerance);
  CHECK((dscale - expected).abs().maxCoeff() < formula_tolerance * 10);
}

TEST_CASE("layer_scale gives the same bits for every device and thread count", "[residual][layer_scale]") {
  const Matrix<double> x = random_matrix<double>(257, 33, 1), f = random_matrix<double>(257, 33, 2);
  const Vector<double> scale = random_matrix<double>(33, 1, 3).array();
  const auto run = [&](const auto& device) {
    Matrix<double> y(257, 33), df(257, 33);
    Vector<double> dscale = Vector<double>::Ones(33);
    ek::LayerScaleSaved<double> saved;
    ek::layer_scale(device, x, f, scale, y, saved);
    ek::layer_scale_backward(device, x, f, scale, saved, df, dscale);
    return std::vector<Values>{values_of(y), values_of(df), Values(dscale.data(), dscale.data() + 33)};
  };
  const auto expected = run(ek::serial);
  support::for_each_device([&](const auto& device) { CHECK(run(device) == expected); });
}

TEST_CASE("layer_scale says what is wrong", "[residual][layer_scale]") {
  using Catch::Matchers::Message;
  Matrix<double> x = random_matrix<double>(rows, width, 1), f = x, y = x, narrow(rows, width - 1);
  const Vector<double> scale = Vector<double>::Ones(width), short_scale = Vector<double>::Ones(width - 1);
  ek::LayerScaleSaved<double> saved;
  CHECK_THROWS_MATCHES(ek::layer_scale(ek::serial, x, f, short_scale, y, saved), ek::ShapeError,
                       Message("layer_scale: scale has 5 values, x has 6 features (x is 4x6, axis 1)"));
  CHECK_THROWS_MATCHES(ek::layer_scale(ek::serial, x, narrow, scale, y, saved), ek::ShapeError,
                       Message("layer_scale: f is 4x5, x is 4x6, axis 1"));
  CHECK_THROWS_MATCHES(ek::layer_scale_backward(ek::serial, x, f, scale, saved, y, ek::none), ek::ShapeError,
                       Message("layer_scale_backward: saved is empty, expected the one that the forward filled"));
  ek::layer_scale(ek::serial, x, f, scale, f, saved);
  CHECK_THROWS_MATCHES(ek::layer_scale_backward(ek::serial, x, f, scale, saved, y, ek::none), ek::ShapeError,
                       Message("layer_scale_backward: saved comes from an in-place forward, which has overwritten f; "
                               "expected a forward whose y is not its x"));
  CHECK_THROWS_MATCHES(ek::FeatureJoin<double>(0, 0.1), ek::ShapeError,
                       Message("LayerScale: the block has 0 features, expected 1 or more"));
  CHECK_THROWS_MATCHES(ek::layer_scale_start(0), ek::ShapeError,
                       Message("layer_scale_start: depth is 0, expected 1 or more"));
}

TEST_CASE("LayerScale starts by the depth, and a reset brings that back", "[residual][layer_scale]") {
  for (const auto& [depth, start] : {std::pair{1, 0.1}, {18, 0.1}, {19, 1e-5}, {24, 1e-5}, {25, 1e-6}, {1000, 1e-6}})
    CHECK(ek::layer_scale_start(depth) == start);
  ek::LayerScale<double, Tanh<double>> block(Tanh<double>(width), width, ek::layer_scale_start(24));
  const auto p = parameters_of(block);
  REQUIRE(p.size() == 2);
  CHECK((p[1].name == "scale" && p[1].size == width && !p[1].weight_decay));
  const auto is_start = [&] { return (Eigen::Map<Eigen::ArrayXd>(p[1].value, width) == 1e-5).all(); };
  CHECK(is_start());
  randomize(block, 3);
  CHECK_FALSE(is_start());
  block.reset();
  CHECK(is_start());
}

TEST_CASE("LayerScale's gradients equal central differences", "[residual][layer_scale]") {
  ek::LayerScale<double, Tanh<double>> block(Tanh<double>(width), width, 0.1);
  randomize(block, 2);
  check_gradients(block, rows, width);
  ek::ResidualBlock behind_norm(ek::RmsNorm<double>(width), ek::FeatureJoin<double>(width, 0.1), Tanh<double>(width));
  randomize(behind_norm, 3);
  check_gradients(behind_norm, rows, width);
}

TEST_CASE("SkipInit starts as the identity", "[residual][rezero]") {
  ek::SkipInit<double, Tanh<double>> block(Tanh<double>{width});
  block.sublayer.scale.fill(1);
  const Matrix<double> x = random_matrix<double>(rows, width, 1);
  CHECK((forward(block, x).array() == x.array()).all());
  *block.alpha.value() = 0.5;
  CHECK(branch_distance(block, 0.5) < formula_tolerance);
  block.reset();
  CHECK((forward(block, x).array() == x.array()).all());
}

TEST_CASE("depth scale divides by the root of the number of branches", "[residual][depth_scale]") {
  ek::DepthScale<double, Tanh<double>> block(Tanh<double>(width), 24);
  randomize(block, 2);
  CHECK(branch_distance(block, 1 / std::sqrt(24.0)) < formula_tolerance);
  CHECK(branch_distance(block, 0) > 0.01);
  check_gradients(block, rows, width);
  CHECK_THROWS_MATCHES(ek::depth_scale(0), ek::ShapeError,
                       Catch::Matchers::Message("depth_scale: there are 0 branches, expected 1 or more"));
}

TEST_CASE("NFNet's betas follow the variance of the stream", "[residual][nfnet]") {
  ek::NfnetVariance variance(0.2);
  const double first[] = {1, 1.0198, 1.0392, 1.1136};
  const int depth[] = {1, 2, 6, 3};
  double next = 1;  // the square of beta
  for (int stage = 0; stage < 4; ++stage)
    for (int block = 0; block < depth[stage]; ++block) {
      INFO("stage " << stage << ", block " << block);
      CHECK(std::abs(variance.variance() - next) < 1e-14);
      const double beta = variance.next(block == 0);
      if (block == 0) CHECK(std::abs(beta - first[stage]) < 5e-5);
      CHECK(std::abs(beta * beta - next) < 1e-14);
      next = (block == 0 ? 1 : next) + 0.04;
    }
}

TEST_CASE("NFNet blocks are x + alpha * f(x / beta)", "[residual][nfnet]") {
  const double alpha = 0.2, beta = 1.3;
  const Matrix<double> x = random_matrix<double>(rows, width, 1), z = x / beta;
  Matrix<double> f(rows, width), shortcut(rows, width);
  ek::NfnetBlock<double, Tanh<double>> block(Tanh<double>(width), alpha, beta);
  randomize(block, 2);
  block.sublayer.forward(ek::serial, z, f);
  CHECK((forward(block, x) - (x + alpha * f)).cwiseAbs().maxCoeff() < formula_tolerance);
  check_gradients(block, rows, width);

  ek::NfnetTransition<double, Tanh<double>, Linear<double>> transition{Tanh<double>(width), Linear<double>(width),
                                                                       alpha, beta};
  randomize(transition, 3);
  transition.sublayer.forward(ek::serial, z, f);
  transition.shortcut.forward(ek::serial, z, shortcut);
  CHECK((forward(transition, x) - (shortcut + alpha * f)).cwiseAbs().maxCoeff() < formula_tolerance);
  check_gradients(transition, rows, width);
  CHECK_THROWS_MATCHES((ek::NfnetBlock<double, Tanh<double>>(Tanh<double>(width), alpha, 0)), ek::ShapeError,
                       Catch::Matchers::Message("NfnetBlock: beta is 0.000000, expected a number above 0"));
}

namespace {
using Dropped = ek::StochasticDepth<double, Constant>;

// What each sample's branch is multiplied by.
Values factors(const ek::StochasticDepthOptions& options, std::uint64_t step, ek::Index samples) {
  Dropped block({}, options);
  block.step = step;
  const Matrix<double> y = forward(block, Matrix<double>::Zero(samples, 3));
  CHECK((y.col(0) == y.col(1) && y.col(0) == y.col(2)));
  return values_of(y.col(0));
}
}  // namespace

TEST_CASE("stochastic depth drops at its rate and keeps the mean", "[residual][stochastic_depth]") {
  const ek::Index samples = 10000;
  for (double rate : {0.1, 0.5, 0.9}) {
    INFO("rate " << rate);
    double dropped = 0, kept = 0;
    for (const double factor : factors({.rate = rate, .seed = 7}, 0, samples)) {
      dropped += factor == 0;
      kept += factor == 1 / (1 - rate);
    }
    CHECK(dropped + kept == double(samples));
    const double deviation = std::sqrt(rate * (1 - rate) / double(samples));
    CHECK(std::abs(dropped / double(samples) - rate) < 4 * deviation);
  }
}

TEST_CASE("stochastic depth draws by seed, layer, step and sample alone", "[residual][stochastic_depth]") {
  const ek::StochasticDepthOptions options{.rate = 0.5, .seed = 1, .layer = 2};
  const Values base = factors(options, 3, 64);
  CHECK(factors(options, 3, 64) == base);
  const Values longer = factors(options, 3, 100);
  CHECK(Values(longer.begin(), longer.begin() + 64) == base);
  CHECK(factors(options, 4, 64) != base);
  CHECK(factors({.rate = 0.5, .seed = 2, .layer = 2}, 3, 64) != base);
  CHECK(factors({.rate = 0.5, .seed = 1, .layer = 3}, 3, 64) != base);
  CHECK(factors({.rate = 0.5, .seed = 1, .layer = 3}, 2, 64) != base);

  // The draws are value `sample` of the stream that the header names, and a smaller rate keeps all that a larger keeps.
  const ek::RandomStream stream(1, ek::stream_id("stochastic_depth") + (std::uint64_t(2) << 40) + 3);
  for (std::uint64_t i = 0; i < 64; ++i) CHECK((base[i] == 0) == (stream.uniform<float>(i) < 0.5f));
  const Values fewer = factors({.rate = 0.25, .seed = 1, .layer = 2}, 3, 64);
  for (std::size_t i = 0; i < 64; ++i) CHECK((base[i] == 0 || fewer[i] != 0));
}

TEST_CASE("stochastic depth drops nothing in inference or at rate 0", "[residual][stochastic_depth]") {
  ek::StochasticDepth<double, Tanh<double>> block(Tanh<double>(width), {.rate = 0.75});
  randomize(block, 2);
  CHECK(branch_distance(block, 1) > 0.01);
  block.training = false;
  CHECK(branch_distance(block, 1) == 0);
  check_gradients(block, rows, width);
  ek::StochasticDepth<double, Tanh<double>> always(Tanh<double>(width), {});
  randomize(always, 3);
  CHECK(branch_distance(always, 1) == 0);
}

TEST_CASE("stochastic depth's gradients equal central differences", "[residual][stochastic_depth]") {
  ek::StochasticDepth<double, Tanh<double>> block(Tanh<double>(width), {.rate = 0.5, .seed = 5});
  randomize(block, 2);
  check_gradients(block, 8, width);

  // The backward has the draws of its forward, whatever the step is by then.
  const Matrix<double> x = random_matrix<double>(8, width, 3), dy = random_matrix<double>(8, width, 4);
  Matrix<double> dx(8, width), later(8, width);
  forward(block, x);
  block.backward(ek::serial, dy, x, dx);
  forward(block, x);
  block.step = 9;
  block.backward(ek::serial, dy, x, later);
  CHECK(later == dx);
  forward(block, x);
  block.backward(ek::serial, dy, x, later);
  CHECK(later != dx);
}

TEST_CASE("stochastic depth drops whole samples, along their axis", "[residual][stochastic_depth]") {
  Tensor<3, row_major> x(40, 3, 5), y(40, 3, 5);
  Tensor<3, col_major> last_x(3, 5, 40), last_y(3, 5, 40);
  x.setZero(), last_x.setZero();
  Dropped block({}, {.rate = 0.5, .seed = 1}), last({}, {.rate = 0.5, .seed = 1, .sample_axis = -1});
  block.forward(ek::serial, x, y);
  last.forward(ek::serial, last_x, last_y);
  const Values expected = factors({.rate = 0.5, .seed = 1}, 0, 40);
  for (ek::Index n = 0; n < 40; ++n)
    for (ek::Index i = 0; i < 3; ++i)
      for (ek::Index j = 0; j < 5; ++j)
        CHECK((y(n, i, j) == expected[std::size_t(n)] && last_y(i, j, n) == y(n, i, j)));

  // A branch that has overflowed does not reach the samples that drop it.
  Dropped broken({std::numeric_limits<double>::quiet_NaN()}, {.rate = 0.5, .seed = 1});
  broken.forward(ek::serial, x, y);
  for (ek::Index n = 0; n < 40; ++n) CHECK((std::isnan(y(n, 1, 1)) == (expected[std::size_t(n)] != 0)));

  support::for_each_device([&](const auto& device) {
    Tensor<3, row_major> on_device(40, 3, 5);
    block.forward(device, x, on_device);
    block.forward(ek::serial, x, y);
    CHECK(std::equal(y.data(), y.data() + y.size(), on_device.data()));
  });
}

TEST_CASE("stochastic depth says what is wrong", "[residual][stochastic_depth]") {
  using Catch::Matchers::Message;
  for (const auto& [rate, text] : {std::pair{1.0, "1.000000"}, {-0.5, "-0.500000"}})
    CHECK_THROWS_MATCHES(
        ek::StochasticJoin<double>({.rate = rate}), ek::ShapeError,
        Message(std::string("StochasticDepth: the rate is ") + text + ", expected 0 or more and below 1"));
  Tensor<3, row_major> x(2, 3, 5), y(2, 3, 5);
  x.setZero();
  Dropped block({}, {.rate = 0.5, .sample_axis = 1});
  CHECK_THROWS_MATCHES(block.forward(ek::serial, x, y), ek::ShapeError,
                       Message("StochasticDepth: the sample axis is 1, expected the first or the last of two or more "
                               "axes (x is 2x3x5)"));
}
