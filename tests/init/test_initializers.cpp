#include "evenkeel/init/initializers.hpp"
#include "init/torch_values.hpp"
#include "support/catch.hpp"

#include <Eigen/Core>
#include <unsupported/Eigen/CXX11/Tensor>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

namespace ek = evenkeel;

namespace {

const ek::RandomStream stream(42, "weight");

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// The spread of n independent values is off by less than five of its standard deviations: 1/sqrt(2 n) relatively for a
// normal distribution, sqrt(0.2 / n) for a uniform one, which is less.
template <class Tensor>
void check_spread(const Tensor& tensor, double std) {
  const double n = static_cast<double>(tensor.size());
  double sum = 0, squares = 0;
  for (ek::Index i = 0; i < static_cast<ek::Index>(tensor.size()); ++i) {
    const double v = static_cast<double>(tensor.data()[i]);
    sum += v;
    squares += v * v;
  }
  CHECK(std::abs(sum / n) < 5 * std / std::sqrt(n));
  CHECK(std::abs(std::sqrt(squares / n) / std - 1) < 5 / std::sqrt(2 * n));
}

template <class Tensor>
double largest(const Tensor& tensor) {
  double result = 0;
  for (ek::Index i = 0; i < static_cast<ek::Index>(tensor.size()); ++i) {
    result = std::max(result, std::abs(static_cast<double>(tensor.data()[i])));
  }
  return result;
}

template <class Tensor>
concept can_fill = requires(Tensor& tensor) {
  ek::uniform(tensor, 0.0, 1.0, stream);
};

static_assert(can_fill<std::vector<double>>);
static_assert(can_fill<Eigen::Tensor<Eigen::half, 3, Eigen::RowMajor>>);
static_assert(!can_fill<const Eigen::MatrixXf>, "a constant is not written to");
static_assert(!can_fill<const Eigen::Matrix<Eigen::half, 3, 3>>);
static_assert(!can_fill<Eigen::MatrixXi>, "integers have no such distribution");
static_assert(!can_fill<float*>, "a pointer needs a size");

}  // namespace

TEST_CASE("the formulas of standard deviations, bounds and gains") {
  const auto near = [](double value) { return Approx(value).epsilon(1e-14); };
  CHECK(ek::linear_gain == 1);
  CHECK(ek::sigmoid_gain == 1);
  CHECK(ek::tanh_gain == near(1.6666666666666667));
  CHECK(ek::relu_gain == near(1.4142135623730951));
  CHECK(ek::selu_gain == 0.75);
  CHECK(ek::leaky_relu_gain() == near(1.4141428569978354));
  CHECK(ek::leaky_relu_gain(std::sqrt(5.0)) == near(0.5773502691896257));
  CHECK(ek::leaky_relu_gain(0) == near(ek::relu_gain));

  CHECK(ek::xavier_std(ek::fans_of({256, 256, 3, 3}, {.input = {1}, .output = {0}})) == near(0.020833333333333332));
  CHECK(ek::xavier_std({.in = 6, .out = 2}, 3) == near(1.5));
  CHECK(ek::kaiming_std({.in = 64, .out = 9}) == near(0.1767766952966369));
  CHECK(ek::kaiming_std({.in = 64, .out = 9}, {.gain = ek::leaky_relu_gain()}) == near(0.17676785712472942));
  CHECK(ek::kaiming_std({.in = 64, .out = 9}, {.gain = ek::linear_gain, .mode = ek::FanMode::out}) == near(1.0 / 3));
  CHECK(ek::gpt2_residual_std(12) == near(0.00408248290463863));
  CHECK(ek::gpt2_residual_std(48) == near(0.002041241452319315));
}

// 1 / std(f(z)) for z ~ N(0, 1), by Simpson's rule on either side of 0, where some f have a kink.
TEST_CASE("gains of normalizer-free networks are exact, and the published ones near them") {
  const auto integral = [](const auto& f) {
    constexpr int n = 2000;
    constexpr double h = 14.0 / n, density = 0.3989422804014327;
    double sum = 0;
    for (const double side : {-1.0, 1.0})
      for (int i = 0; i <= n; ++i) {
        const double z = side * h * i;
        sum += (i == 0 || i == n ? 1 : i % 2 ? 4 : 2) * h / 3 * density * std::exp(-z * z / 2) * f(z);
      }
    return sum;
  };
  const auto check = [&](double gain, const auto& f) {
    const double mean = integral(f);
    const double variance = integral([&](double z) { return (f(z) - mean) * (f(z) - mean); });
    CHECK(std::abs(gain * std::sqrt(variance) - 1) < 1e-9);
  };
  const auto sigmoid = [](double z) { return 1 / (1 + std::exp(-z)); };
  using Exact = ek::NfnetGain;
  check(Exact::identity, [](double z) { return z; });
  check(Exact::relu, [](double z) { return std::max(z, 0.0); });
  check(Exact::leaky_relu, [](double z) { return z > 0 ? z : 0.01 * z; });
  check(Exact::silu, [&](double z) { return z * sigmoid(z); });
  check(Exact::gelu, [](double z) { return 0.5 * z * std::erfc(-z / std::sqrt(2.0)); });
  check(Exact::gelu_tanh,
        [](double z) { return 0.5 * z * (1 + std::tanh(0.7978845608028654 * (z + 0.044715 * z * z * z))); });
  check(Exact::tanh, [](double z) { return std::tanh(z); });
  check(Exact::sigmoid, sigmoid);
  check(Exact::softplus, [](double z) { return std::log1p(std::exp(z)); });
  check(Exact::elu, [](double z) { return z > 0 ? z : std::expm1(z); });
  check(Exact::selu, [](double z) { return 1.0507009873554805 * (z > 0 ? z : 1.6732632423543772 * std::expm1(z)); });

  using Published = ek::NfnetPublishedGain;
  for (const auto& [published, exact] : {std::pair(Published::relu, Exact::relu),
                                         {Published::leaky_relu, Exact::leaky_relu},
                                         {Published::silu, Exact::silu},
                                         {Published::gelu, Exact::gelu},
                                         {Published::tanh, Exact::tanh},
                                         {Published::sigmoid, Exact::sigmoid},
                                         {Published::softplus, Exact::softplus},
                                         {Published::elu, Exact::elu},
                                         {Published::celu, Exact::elu},
                                         {Published::log_sigmoid, Exact::softplus},
                                         {Published::selu, Exact::selu}}) {
    CHECK(std::abs(published / exact - 1) < 9e-4);
    CHECK(std::abs(published / exact - 1) > 5e-5);
  }
  CHECK(Published::relu == 1.7139588594436646);
  // Those without an exact twin; glu is a * sigmoid(b) with two independent inputs.
  const auto check_published = [&](double gain, double variance) {
    CHECK(std::abs(gain * std::sqrt(variance) - 1) < 1.3e-3);
    CHECK(std::abs(gain * std::sqrt(variance) - 1) > 1e-4);
  };
  const auto square = [](double v) { return v * v; };
  const auto relu6 = [](double z) { return std::clamp(z, 0.0, 6.0); };
  const double relu6_mean = integral(relu6);
  check_published(Published::relu6, integral([&](double z) { return square(relu6(z) - relu6_mean); }));
  check_published(Published::soft_sign, integral([&](double z) { return square(z / (1 + std::abs(z))); }));
  check_published(Published::glu, integral([&](double z) { return square(sigmoid(z)); }));
  CHECK(Published::identity == 1);
  CHECK(std::abs(Published::log_softmax - 1) < 3e-4);  // of many classes: z less a constant
}

// 256 x 512 values; the bound is reached within 1 part in 5000 but for a seed in e^26.
TEST_CASE("weights have the spread and the bound of their initializer") {
  Eigen::MatrixXf weight(512, 256);
  const ek::Fans fans = ek::fans_of_linear(256, 512);
  const auto check_uniform = [&](double std) {
    check_spread(weight, std);
    CHECK(largest(weight) <= std * std::sqrt(3.0) * (1 + 1e-6));
    CHECK(largest(weight) > std * std::sqrt(3.0) * (1 - 2e-4));
  };
  ek::xavier_uniform(weight, fans, stream, ek::tanh_gain);
  check_uniform(ek::tanh_gain * std::sqrt(2.0 / 768));
  ek::xavier_normal(weight, fans, stream, ek::tanh_gain);
  check_spread(weight, ek::tanh_gain * std::sqrt(2.0 / 768));
  ek::kaiming_uniform(weight, fans, stream);
  check_uniform(std::sqrt(2.0 / 256));
  ek::kaiming_uniform(weight, fans, stream, {.gain = 1, .mode = ek::FanMode::out});
  check_uniform(std::sqrt(1.0 / 512));
  ek::kaiming_normal(weight, fans, stream);
  check_spread(weight, std::sqrt(2.0 / 256));
  ek::kaiming_normal(weight, fans, stream, {.mode = ek::FanMode::out});
  check_spread(weight, std::sqrt(2.0 / 512));
  ek::torch_linear_uniform(weight, fans, stream);
  check_uniform(1 / std::sqrt(3.0 * 256));
  ek::gpt2_normal(weight, stream);
  check_spread(weight, 0.02);
  ek::gpt2_residual_normal(weight, 12, stream);
  check_spread(weight, 0.00408248290463863);
  ek::gpt2_residual_normal(weight, 12, stream);
  check_spread(weight, 0.00408248290463863);  // initialized twice is not scaled twice
  ek::uniform(weight, 2, 3, stream);
  CHECK(weight.minCoeff() >= 2);
  CHECK(weight.maxCoeff() <= 3);
  ek::normal(weight, 5, 0, stream);
  CHECK((weight.array() == 5).all());
}

TEST_CASE("every kind of tensor gets the same values in memory order") {
  constexpr ek::Index n = 24;
  std::vector<float> expected(n);
  ek::normal(expected, 0, 1, stream);
  const auto check = [&](const float* data) { CHECK(std::equal(data, data + n, expected.begin())); };

  Eigen::MatrixXf columns(4, 6);
  ek::normal(columns, 0, 1, stream);
  check(columns.data());
  CHECK(columns(1, 0) == expected[1]);
  RowMatrix rows(4, 6);
  ek::normal(rows, 0, 1, stream);
  check(rows.data());
  CHECK(rows(0, 1) == expected[1]);
  Eigen::Array<float, 24, 1> array;
  ek::normal(array, 0, 1, stream);
  check(array.data());
  Eigen::Tensor<float, 3, Eigen::RowMajor> tensor(2, 3, 4);
  ek::normal(tensor, 0, 1, stream);
  check(tensor.data());

  std::vector<float> memory(n);
  const auto clear = [&] { std::fill(memory.begin(), memory.end(), 0.0f); };
  ek::normal(Eigen::TensorMap<Eigen::Tensor<float, 2>>(memory.data(), 4, 6), 0, 1, stream);
  check(memory.data());
  clear();
  ek::normal(Eigen::Map<Eigen::VectorXf>(memory.data(), n), 0, 1, stream);
  check(memory.data());
  clear();
  ek::normal(std::span<float>(memory), 0, 1, stream);
  check(memory.data());
  clear();
  ek::normal(memory.data(), n, 0, 1, stream);
  check(memory.data());

  // A shard takes the stream from its offset on; pieces of a larger matrix without gaps are filled like any other.
  clear();
  ek::normal(memory.data(), 10, 0, 1, stream);
  ek::normal(memory.data() + 10, n - 10, 0, 1, stream.from(10));
  check(memory.data());
  columns.setZero();
  ek::normal(columns.leftCols(2), 0, 1, stream);
  ek::normal(columns.rightCols(4), 0, 1, stream.from(8));
  check(columns.data());
  ek::Index ones = 0;
  ek::constant(columns, 1);
  for (const float v : columns.reshaped()) ones += v == 1;
  CHECK(ones == n);
}

TEST_CASE("a pointer and a size give what the tensor gives") {
  Eigen::MatrixXf tensor(8, 8), memory(8, 8);
  const ek::Fans fans{.in = 8, .out = 4};
  const auto check = [&] { CHECK(tensor == memory); };
  ek::constant(tensor, 3);
  ek::constant(memory.data(), 64, 3);
  check();
  ek::uniform(tensor, -1, 2, stream);
  ek::uniform(memory.data(), 64, -1, 2, stream);
  check();
  ek::xavier_uniform(tensor, fans, stream, 2);
  ek::xavier_uniform(memory.data(), 64, fans, stream, 2);
  check();
  ek::xavier_normal(tensor, fans, stream, 2);
  ek::xavier_normal(memory.data(), 64, fans, stream, 2);
  check();
  ek::kaiming_uniform(tensor, fans, stream, {.mode = ek::FanMode::out});
  ek::kaiming_uniform(memory.data(), 64, fans, stream, {.mode = ek::FanMode::out});
  check();
  ek::kaiming_normal(tensor, fans, stream, {.mode = ek::FanMode::out});
  ek::kaiming_normal(memory.data(), 64, fans, stream, {.mode = ek::FanMode::out});
  check();
  ek::torch_linear_uniform(tensor, fans, stream);
  ek::torch_linear_uniform(memory.data(), 64, fans, stream);
  check();
  ek::gpt2_normal(tensor, stream);
  ek::gpt2_normal(memory.data(), 64, stream);
  check();
  ek::gpt2_residual_normal(tensor, 3, stream);
  ek::gpt2_residual_normal(memory.data(), 64, 3, stream);
  check();
}

TEMPLATE_TEST_CASE("weights in every scalar", "", double, Eigen::half, Eigen::bfloat16) {
  Eigen::Matrix<TestType, Eigen::Dynamic, Eigen::Dynamic> weight(100, 100);
  const ek::Fans fans = ek::fans_of_linear(100, 100);
  ek::kaiming_normal(weight, fans, stream);
  check_spread(weight, std::sqrt(2.0 / 100));
  ek::xavier_uniform(weight, fans, stream);
  check_spread(weight, std::sqrt(1.0 / 100));
  ek::constant(weight, 0.5);
  CHECK(double(weight(99, 99)) == 0.5);
  if constexpr (!std::is_same_v<TestType, double>) {
    Eigen::MatrixXf wide(100, 100);
    ek::kaiming_normal(weight, fans, stream);
    ek::kaiming_normal(wide, fans, stream);
    bool rounded = true;
    for (ek::Index i = 0; i < wide.size(); ++i) {
      rounded = rounded && float(weight.data()[i]) == float(static_cast<TestType>(wide.data()[i]));
    }
    CHECK(rounded);
  }
}

TEST_CASE("a TorchRandom gives torch's layers") {
  ek::TorchRandom random(0);
  RowMatrix weight(32, 64);
  Eigen::RowVectorXf bias(32);
  Eigen::Tensor<float, 2, Eigen::RowMajor> x(16, 64);
  ek::torch_linear_uniform(weight, ek::fans_of_linear(64, 32), random);
  ek::torch_linear_uniform(bias, ek::fans_of_linear(64, 32), random);
  ek::normal(x, 0.0, 1.0, random);
  for (int i = 0; i < 3; ++i) {
    CHECK(weight(31, 61 + i) == torch_values::linear[i]);
    CHECK(bias(29 + i) == torch_values::linear[3 + i]);
  }
  for (int i = 0; i < 4; ++i) CHECK(std::abs(x(0, i) - torch_values::linear[6 + i]) <= 2.4e-7);

  const auto convolution = ek::fans_of({8, 3, 2, 2}, {.input = {1}, .output = {0}});
  std::vector<float> w(96);
  random.seed(5);
  ek::xavier_uniform(std::span(w).first(24), {.in = 6, .out = 4}, random, ek::tanh_gain);
  CHECK(std::equal(w.begin(), w.begin() + 6, torch_values::xavier_uniform));
  random.seed(5);
  ek::kaiming_uniform(w, convolution, random);
  CHECK(std::equal(w.begin(), w.begin() + 6, torch_values::kaiming_uniform));
  random.seed(5);
  ek::xavier_normal(std::span(w).first(24), {.in = 6, .out = 4}, random);
  for (std::size_t i = 0; i < 6; ++i) CHECK(std::abs(w[i] - torch_values::xavier_normal[i]) <= 2.4e-7);
  random.seed(5);
  ek::kaiming_normal(w, convolution, random, {.mode = ek::FanMode::out});
  for (std::size_t i = 0; i < 6; ++i) CHECK(std::abs(w[i] - torch_values::kaiming_normal[i]) <= 2.4e-7);
}

TEST_CASE("a weight without elements is left alone and draws nothing") {
  Eigen::MatrixXf weight(0, 5);
  ek::TorchRandom random(0);
  const ek::Fans fans = ek::fans_of({0, 5}, {.input = {0}, .output = {1}});
  ek::xavier_uniform(weight, fans, random);
  ek::xavier_normal(weight, fans, random);
  ek::kaiming_uniform(weight, fans, random);
  ek::kaiming_normal(weight, fans, random);
  ek::torch_linear_uniform(weight, fans, random);
  ek::gpt2_normal(weight, random);
  ek::constant(weight, 1);
  CHECK(random.next_uniform<float>() == torch_values::rand[0]);
}

TEST_CASE("initializers say which argument is wrong, before they write") {
  Eigen::MatrixXf weight = Eigen::MatrixXf::Constant(3, 4, 7);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  CHECK_THROWS_AS(ek::xavier_uniform(weight, {.in = 0, .out = 3}, stream), ek::ShapeError);
  CHECK_THROWS_WITH(ek::xavier_uniform(weight, {.in = 0, .out = 3}, stream),
                    "xavier_uniform: fans.in is 0, expected at least 1");
  CHECK_THROWS_WITH(ek::xavier_normal(weight, {.in = 4, .out = -3}, stream),
                    "xavier_normal: fans.out is -3, expected at least 1");
  CHECK_THROWS_WITH(ek::kaiming_uniform(weight, {.in = 4}, stream, {.mode = ek::FanMode::out}),
                    "kaiming_uniform: fans.out is 0, expected at least 1");
  CHECK_THROWS_WITH(ek::kaiming_normal(weight, {.out = 4}, stream),
                    "kaiming_normal: fans.in is 0, expected at least 1");
  CHECK_THROWS_WITH(ek::torch_linear_uniform(weight, {.out = 4}, stream),
                    "torch_linear_uniform: fans.in is 0, expected at least 1");
  CHECK_THROWS_WITH(ek::xavier_uniform(weight, {.in = 4, .out = 3}, stream, -1),
                    "xavier_uniform: gain is -1, expected a finite number of at least 0");
  CHECK_THROWS_WITH(ek::gpt2_residual_normal(weight, 0, stream),
                    "gpt2_residual_normal: layers is 0, expected at least 1");
  CHECK_THROWS_WITH(ek::uniform(weight, 2, 1, stream), "uniform: lo is 2 and hi is 1, expected lo <= hi");
  CHECK_THROWS_WITH(ek::uniform(weight, 0, infinity, stream), "uniform: hi - lo is inf, expected a finite number");
  CHECK_THROWS_WITH(ek::normal(weight, 0, -0.5, stream), "normal: std is -0.5, expected a finite number of at least 0");
  CHECK_THROWS_WITH(ek::normal(weight, infinity, 1, stream), "normal: mean is inf, expected a finite number");
  CHECK_THROWS_WITH(ek::normal(weight.data(), -3, 0, 1, stream), "normal: size is -3, expected at least 0");
  CHECK_THROWS_WITH(ek::constant(weight.data(), -3, 0), "constant: size is -3, expected at least 0");
  CHECK((weight.array() == 7).all());
}

TEST_CASE("a tensor with gaps is refused") {
  Eigen::MatrixXf memory = Eigen::MatrixXf::Constant(6, 4, 7);
  using Stride = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
  CHECK_THROWS_WITH(ek::normal(memory.topRows(3), 0, 1, stream),
                    "normal: the tensor has strides 1 and 6, expected 1 and 3, elements without gaps");
  CHECK_THROWS_AS(ek::constant(memory.row(2), 1), ek::ShapeError);
  CHECK_THROWS_AS(ek::constant(memory.diagonal(), 1), ek::ShapeError);
  CHECK_THROWS_AS(ek::gpt2_normal(Eigen::Map<Eigen::MatrixXf, 0, Stride>(memory.data(), 3, 2, Stride(6, 2)), stream),
                  ek::ShapeError);
  CHECK_THROWS_AS(ek::uniform(Eigen::Ref<Eigen::MatrixXf>(memory.bottomRows(2)), 0, 1, stream), ek::ShapeError);
  CHECK((memory.array() == 7).all());

  // Strides that say the same as no strides.
  ek::constant(Eigen::Map<Eigen::MatrixXf, 0, Stride>(memory.data(), 6, 2, Stride(6, 1)), 1);
  ek::constant(memory.row(5).leftCols(1), 2);
  CHECK(memory(4, 1) == 1);
  CHECK(memory(5, 0) == 2);
  CHECK(memory(5, 1) == 1);
}
