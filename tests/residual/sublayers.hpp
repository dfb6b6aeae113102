// Two sublayers for the placements: anything with forward, backward and for_each_parameter is one.
#pragma once

#include "evenkeel/evenkeel.hpp"
#include "support/catch.hpp"
#include "support/data.hpp"
#include "support/gradient_check.hpp"

#include <Eigen/Core>

#include <cstddef>
#include <string>
#include <vector>

namespace residual_test {

namespace ek = evenkeel;
using Values = std::vector<double>;
template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// y = x W^T + b, W of (out, in) as torch keeps it.
template <class T>
class Linear {
 public:
  explicit Linear(ek::Index width) : width_(width), weight("weight", width * width), bias("bias", width, false) {}

  template <class Device, class X, class Y>
  void forward(const Device&, const X& x, Y&& y) {
    Matrix<T> product = matrix(x) * map(weight.value()).transpose();
    product.rowwise() += Eigen::Map<const Eigen::Matrix<T, 1, Eigen::Dynamic>>(bias.value(), width_);
    store(product, y);
  }
  template <class Device, class DY, class X, class DX>
  void backward(const Device&, const DY& dy, const X& x, DX&& dx) {
    const Matrix<T> g = matrix(dy);
    map(weight.gradient()) += g.transpose() * matrix(x);
    Eigen::Map<Eigen::Matrix<T, 1, Eigen::Dynamic>>(bias.gradient(), width_) += g.colwise().sum();
    store(Matrix<T>(g * map(weight.value())), dx);
  }
  template <class F>
  void for_each_parameter(F&& f) {
    f(weight.ref());
    f(bias.ref());
  }

 private:
  // The placements may hand over any tensor type, so only data() and size() are asked of it.
  template <class X>
  Matrix<T> matrix(const X& x) const {
    return Eigen::Map<const Matrix<T>>(x.data(), x.size() / width_, width_);
  }
  template <class Y>
  void store(const Matrix<T>& values, Y&& y) const {
    Eigen::Map<Matrix<T>>(y.data(), values.rows(), values.cols()) = values;
  }
  Eigen::Map<Matrix<T>> map(T* data) const { return {data, width_, width_}; }

  ek::Index width_;

 public:
  ek::Parameter<T> weight, bias;
};

// y = tanh(scale * x) with one scale per feature: not linear, so a gradient taken at the wrong input shows.
template <class T>
class Tanh {
 public:
  explicit Tanh(ek::Index width) : scale("scale", width) {}

  template <class Device, class X, class Y>
  void forward(const Device&, const X& x, Y&& y) {
    for (ek::Index i = 0; i < x.size(); ++i) y.data()[i] = std::tanh(scale.value()[i % scale.size()] * x.data()[i]);
  }
  template <class Device, class DY, class X, class DX>
  void backward(const Device&, const DY& dy, const X& x, DX&& dx) {
    for (ek::Index i = 0; i < x.size(); ++i) {
      const T at = x.data()[i], s = scale.value()[i % scale.size()], t = std::tanh(s * at);
      const T g = dy.data()[i] * (1 - t * t);
      scale.gradient()[i % scale.size()] += g * at;
      dx.data()[i] = g * s;
    }
  }
  template <class F>
  void for_each_parameter(F&& f) {
    f(scale.ref());
  }

  ek::Parameter<T> scale;
};

struct Named {
  std::string name;
  double* value;
  double* gradient;
  std::size_t size;
  bool weight_decay;
};

template <class Block>
std::vector<Named> parameters_of(Block& block) {
  std::vector<Named> all;
  block.for_each_parameter([&](ek::ParameterRef<double> p) {
    all.push_back({std::string(p.name), p.value, p.gradient, std::size_t(p.size), p.weight_decay});
  });
  return all;
}

template <class Block>
void randomize(Block& block, std::uint64_t seed) {
  for (const Named& p : parameters_of(block)) {
    const Values values = support::normal<double>(p.size, seed++, 0.3, 0.6);
    for (std::size_t i = 0; i < p.size; ++i) p.value[i] = values[i];
  }
}

inline Matrix<double> matrix_of(const Values& values, ek::Index rows) {
  return Eigen::Map<const Matrix<double>>(values.data(), rows, ek::Index(values.size()) / rows);
}

inline Values values_of(const Matrix<double>& m) { return {m.data(), m.data() + m.size()}; }

template <class Block>
Matrix<double> forward(Block& block, const Matrix<double>& x) {
  Matrix<double> y = Matrix<double>::Constant(x.rows(), x.cols(), NAN);
  block.forward(ek::serial, x, y);
  return y;
}

// The input's gradient and every parameter's, against central differences of sum(y * cotangent).
template <class Block>
void check_gradients(Block& block, ek::Index rows, ek::Index width) {
  const Values point = support::normal<double>(std::size_t(rows * width), 101, 0.2);
  const Values cotangent = support::normal<double>(std::size_t(rows * width), 102);
  const Matrix<double> x = matrix_of(point, rows), dy = matrix_of(cotangent, rows);
  const auto loss_at = [&](const Matrix<double>& input) {
    return support::weighted_sum(values_of(forward(block, input)), cotangent);
  };
  using support::central_differences, support::gradient_distance, support::gradient_tolerance;
  const Values by_x = central_differences([&](const Values& p) { return loss_at(matrix_of(p, rows)); }, point);
  std::vector<Values> by_parameter;
  for (const Named& p : parameters_of(block)) {
    const Values start(p.value, p.value + p.size);
    by_parameter.push_back(central_differences(
        [&](const Values& values) {
          std::copy(values.begin(), values.end(), p.value);
          return loss_at(x);
        },
        start));
    std::copy(start.begin(), start.end(), p.value);
  }

  Matrix<double> dx = Matrix<double>::Constant(rows, width, NAN);
  forward(block, x);
  block.backward(ek::serial, dy, x, dx);
  CHECK(gradient_distance(values_of(dx), by_x) < gradient_tolerance);
  const auto parameters = parameters_of(block);
  REQUIRE(parameters.size() == by_parameter.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    INFO("parameter " << parameters[i].name);
    const Values got(parameters[i].gradient, parameters[i].gradient + parameters[i].size);
    CHECK(gradient_distance(got, by_parameter[i]) < gradient_tolerance);
  }

  // A second backward doubles the parameter gradients, and writes dx again; dx may take the place of dy.
  Matrix<double> in_place = dy;
  forward(block, x);
  block.backward(ek::serial, in_place, x, in_place);
  CHECK((in_place.array() == dx.array()).all());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Values half(parameters[i].gradient, parameters[i].gradient + parameters[i].size);
    for (double& v : half) v /= 2;
    CHECK(gradient_distance(half, by_parameter[i]) < gradient_tolerance);
  }
}

// The formulas of the norms, in double and by the book.
inline Matrix<double> layer_norm(const Matrix<double>& x, double eps) {
  Matrix<double> centred = x.colwise() - x.rowwise().mean();
  const Eigen::VectorXd rstd =
      (centred.rowwise().squaredNorm() / double(x.cols())).unaryExpr([&](double v) { return 1 / std::sqrt(v + eps); });
  return rstd.asDiagonal() * centred;
}

inline Matrix<double> rms_norm(const Matrix<double>& x, double eps) {
  const Eigen::VectorXd rstd =
      (x.rowwise().squaredNorm() / double(x.cols())).unaryExpr([&](double v) { return 1 / std::sqrt(v + eps); });
  return rstd.asDiagonal() * x;
}

inline Matrix<double> scaled(Matrix<double> x, const double* weight, const double* bias) {
  for (ek::Index i = 0; i < x.size(); ++i) {
    x.data()[i] = x.data()[i] * weight[i % x.cols()] + (bias == nullptr ? 0 : bias[i % x.cols()]);
  }
  return x;
}

// Ten roundings of numbers near 10.
inline constexpr double formula_tolerance = 1e-13;

}  // namespace residual_test
