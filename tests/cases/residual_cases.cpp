#include "cases/table.hpp"
#include "evenkeel/evenkeel.hpp"
#include "norms/norm_under_test.hpp"
#include "support/devices.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <limits>
#include <map>

using namespace cases_test;
namespace ek = evenkeel;
using norms_test::ColMatrix, norms_test::RowMatrix, norms_test::matrix_of, norms_test::values_of;

namespace {

// A branch whose output is given, and which keeps the gradient that reaches it. Nothing flows on to its input.
template <class Matrix>
struct GivenBranch {
  Matrix f, df;

  template <class Device, class X, class Y>
  void forward(const Device&, const X&, Y&& y) {
    y = f;
  }
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device&, const Dy& dy, const X&, Dx&& dx) {
    df = dy;
    dx.setZero();
  }
  template <class F>
  void for_each_parameter(F&&) {}
};

template <class T, class Matrix, class Device>
void check_rezero_on(const Device& device, const Case& c, const std::string& type) {
  const Shape shape = c.tensor("/inputs/x").shape;
  const auto matrix = [&](const Values& values) {
    return Matrix(matrix_of<RowMatrix<T>>(std::size_t(shape.at(0)), std::size_t(shape.at(1)), values));
  };
  const auto listed = [](const Matrix& m) { return values_of(RowMatrix<T>(m)); };
  const Matrix x = matrix(c.values("/inputs/x")), dy = matrix(c.values("/inputs/dy"));
  Matrix y(x), dx(x);
  const auto run = [&](const Matrix& f) {
    ek::ReZero<T, GivenBranch<Matrix>> block{{f, {}}};
    CHECK(double(*block.alpha.value()) == c.number("/params/alpha"));
    y.setConstant(std::numeric_limits<T>::quiet_NaN());
    dx = y;
    block.forward(device, x, y);
    block.backward(device, dy, x, dx);
    return block;
  };
  auto block = run(matrix(c.values("/inputs/f")));
  CHECK(bit_difference(listed(y), c.values("/expected/y")) == "");
  CHECK(bit_difference(listed(dx), c.values("/expected/dx")) == "");
  CHECK(difference(listed(block.sublayer.df), c.values("/expected/df"), {}) == "");
  CHECK(difference({double(*block.alpha.gradient())}, c.values("/expected/dalpha"), c.limit(type, "dalpha")) == "");

  // A large finite branch is kept out by alpha = 0.
  const Matrix large = Matrix::Constant(x.rows(), x.cols(), std::numeric_limits<T>::max());
  run(large);
  CHECK(bit_difference(listed(y), c.values("/expected/y")) == "");

  // With f = 0 too the branch is dead: nothing can move alpha.
  auto dead = run(Matrix::Zero(x.rows(), x.cols()));
  CHECK(double(*dead.alpha.gradient()) == 0);
  CHECK(difference(listed(dead.sublayer.df), c.values("/expected/df"), {}) == "");
  CHECK(bit_difference(listed(dx), c.values("/expected/dx")) == "");
}

// dalpha adds up over all rows.
template <class T>
void check_rezero_rows(const Case& c, const std::string& type) {
  const Values x = c.values("/inputs/x"), f = c.values("/inputs/f"), dy = c.values("/inputs/dy");
  const auto rows = [](const Values& row) {
    RowMatrix<T> m(5, Eigen::Index(row.size()));
    for (Eigen::Index r = 0; r < m.rows(); ++r)
      for (Eigen::Index i = 0; i < m.cols(); ++i) m(r, i) = T(row[std::size_t(i)]);
    return m;
  };
  ek::ReZero<T, GivenBranch<RowMatrix<T>>> block{{rows(f), {}}};
  RowMatrix<T> y(rows(x)), dx(rows(x));
  block.forward(ek::serial, rows(x), y);
  block.backward(ek::serial, rows(dy), rows(x), dx);
  CHECK(difference({double(*block.alpha.gradient())}, {5 * c.number("/expected/dalpha")}, c.limit(type, "dalpha")) ==
        "");
}

void check_rezero(const Case& c) {
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    check_rezero_on<T, RowMatrix<T>>(ek::serial, c, type);
    check_rezero_on<T, ColMatrix<T>>(ek::serial, c, type);
    for (const int threads : support::thread_counts)
      check_rezero_on<T, RowMatrix<T>>(support::ThreadPool(threads).device(), c, type);
    check_rezero_rows<T>(c, type);
  });
}

template <class T>
void check_layer_scale_of(const Case& c, const std::string& type) {
  const Shape shape = c.tensor("/inputs/x").shape;
  const auto tensor = [&](const char* name) { return matrix_of<RowMatrix<T>>(2, 3, c.values(name)); };
  const RowMatrix<T> x = tensor("/inputs/x"), f = tensor("/inputs/f"), dy = tensor("/inputs/dy");
  const Values gamma = c.values("/params/gamma");
  const auto check = [&](const auto& result, const char* name) {
    CHECK(difference(values_of(RowMatrix<T>(result)), c.values(std::string("/expected/") + name),
                     c.limit(type, name)) == "");
  };
  REQUIRE((shape == Shape{2, 3} && gamma.size() == 3));
  ek::LayerScale<T, GivenBranch<RowMatrix<T>>> block({f, {}}, 3, 1);
  for (int i = 0; i < 3; ++i) block.scale.value()[i] = T(gamma[std::size_t(i)]);
  RowMatrix<T> y(2, 3), dx(2, 3);
  const Eigen::Map<const RowMatrix<T>> dgamma(block.scale.gradient(), 1, 3);
  block.forward(ek::serial, x, y);
  block.backward(ek::serial, dy, x, dx);
  check(y, "y");
  check(dx, "dx");
  check(block.sublayer.df, "df");
  check(dgamma, "dgamma");

  // Channels first, (1, 3, 2): one image, whose two places were the rows.
  using Channels = Eigen::TensorMap<Eigen::Tensor<T, 3, Eigen::RowMajor>>;
  const auto transposed = [](RowMatrix<T>& m) { return Channels(m.data(), 1, 3, 2); };
  RowMatrix<T> xt = x.transpose(), ft = f.transpose(), dyt = dy.transpose(), yt(3, 2), dft(3, 2);
  Eigen::Array<T, 3, 1> weight(block.scale.value()), dweight;
  ek::LayerScaleSaved<ek::accumulator_t<T>> saved;
  ek::layer_scale(ek::serial, transposed(xt), transposed(ft), weight, transposed(yt), saved, {.axis = 1});
  ek::layer_scale_backward(ek::serial, transposed(dyt), transposed(ft), weight, saved, transposed(dft), dweight,
                           ek::GradientMode::overwrite);
  check(yt.transpose(), "y");
  check(dft.transpose(), "df");
  check(dweight.matrix().transpose(), "dgamma");
}

void check_layer_scale(const Case& c) {
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) { check_layer_scale_of<T>(c, type); });
}

// A step of decoupled weight decay without a gradient, by the groups that the layers report.
template <class T, class Layer>
void decay(Layer&& layer) {
  layer.for_each_parameter([](ek::ParameterRef<T> p) {
    for (ek::Index i = 0; p.weight_decay && i < p.size; ++i) p.value[i] -= T(0.1) * T(0.5) * p.value[i];
  });
}

template <class T>
void check_scale_parameters_of(const Case& c, const std::string& type) {
  using Branch = GivenBranch<RowMatrix<T>>;
  const Eigen::Index dim = Eigen::Index(c.number("/inputs/dim"));
  const Values depths = c.values("/inputs/depths"), starts = c.values("/expected/depth_init");
  for (std::size_t i = 0; i < depths.size(); ++i)
    CHECK(difference({ek::layer_scale_start(ek::Index(depths[i]))}, {starts[i]}, c.limit(type, "depth_init")) == "");

  ek::LayerScale<T, Branch> scale({}, dim, c.number("/params/init"));
  const auto gamma = [&] { return Values(scale.scale.value(), scale.scale.value() + dim); };
  const auto is_at_start = [&] { return difference(gamma(), c.values("/expected/gamma"), c.limit(type, "gamma")); };
  CHECK(is_at_start() == "");
  scale.scale.fill(T(3));
  scale.reset();
  CHECK(is_at_start() == "");

  // Each parameter at 2 before the step: what decays is 1.9 after it.
  std::map<std::string, Values> after;
  const auto step = [&](auto&& layer, const std::map<std::string, std::string>& names) {
    layer.for_each_parameter([](ek::ParameterRef<T> p) { std::fill_n(p.value, p.size, T(2)); });
    decay<T>(layer);
    layer.for_each_parameter(
        [&](ek::ParameterRef<T> p) { after[names.at(std::string(p.name))] = Values(p.value, p.value + p.size); });
  };
  step(ek::LayerNorm<T>(dim), {{"weight", "norm gain"}, {"bias", "norm bias"}});
  step(scale, {{"scale", "layer_scale gamma"}});
  step(ek::ReZero<T, Branch>({}), {{"alpha", "rezero alpha"}});
  step(ek::SkipInit<T, Branch>({}), {{"alpha", "skipinit alpha"}});
  step(ek::WeightNorm<T>(RowMatrix<T>(RowMatrix<T>::Ones(dim, dim))),
       {{"original0", "weight_norm g"}, {"original1", "matrix"}});
  const auto is_all = [&](const std::string& name, double value) {
    INFO(name);
    REQUIRE_FALSE(after[name].empty());
    CHECK(difference(after[name], Values(after[name].size(), value), c.limit(type, name)) == "");
  };
  for (std::size_t i = 0; i < c.size("/expected/no_decay"); ++i)
    is_all(c.text("/expected/no_decay/" + std::to_string(i)), 2);
  is_all("matrix", c.number("/expected/matrix_after_step"));
}

void check_scale_parameters(const Case& c) {
  for_each_type<double, float>(
      c, [&]<class T>(Type<T>, const std::string& type) { check_scale_parameters_of<T>(c, type); });
}

}  // namespace

void cases_test::add_residual_cases(Table& table) {
  table["rezero.forward / backward"] = check_rezero;
  table["layer_scale.forward / backward"] = check_layer_scale;
  table["layer_scale / rezero / skipinit / norm parameters"] = check_scale_parameters;
}
