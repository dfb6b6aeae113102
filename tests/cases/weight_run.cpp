#include "cases/weight_run.hpp"

#include "evenkeel/tensor.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace cases_test {

namespace {

using norms_test::vector_of, norms_test::values_of;
constexpr auto overwrite = ek::GradientMode::overwrite;

// Where element `at` of the row-major list lies in a tensor of that order.
std::size_t place(const Shape& shape, Order order, std::size_t at) {
  if (order == Order::row_major) return at;
  std::size_t position = 0, stride = 1;
  for (std::size_t a = 0; a < shape.size(); ++a) stride *= std::size_t(shape[a]);
  for (std::size_t a = shape.size(); a-- > 0;) {
    const auto extent = std::size_t(shape[a]);
    stride /= extent;
    position += at % extent * stride;
    at /= extent;
  }
  return position;
}

template <class Tensor>
void put(Tensor& tensor, const Shape& shape, Order order, const Values& values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    tensor.data()[place(shape, order, i)] = static_cast<typename Tensor::Scalar>(values[i]);
}
template <class Tensor>
Values taken(const Tensor& tensor, const Shape& shape, Order order) {
  Values values;
  for (std::size_t i = 0; i < std::size_t(tensor.size()); ++i)
    values.push_back(static_cast<double>(tensor.data()[place(shape, order, i)]));
  return values;
}

// Calls f with an empty tensor of the shape.
template <class T, int Rank, class F>
void with_rank(const Shape& shape, Order order, const F& f) {
  Eigen::array<Eigen::Index, Rank> extents;
  std::copy(shape.begin(), shape.end(), extents.begin());
  if (order == Order::row_major)
    f(Eigen::Tensor<T, Rank, Eigen::RowMajor>(extents));
  else
    f(Eigen::Tensor<T, Rank>(extents));
}
template <class T, class F>
void with_tensor(const Shape& shape, Order order, const F& f) {
  if (shape.size() == 1) return with_rank<T, 1>(shape, order, f);
  if (shape.size() == 2) return with_rank<T, 2>(shape, order, f);
  if (shape.size() == 3) return with_rank<T, 3>(shape, order, f);
  if (shape.size() == 4) return with_rank<T, 4>(shape, order, f);
  throw std::runtime_error("a weight of more than four axes");
}

ek::WeightNormOptions options_of(const WeightCase& c) {
  ek::WeightNormOptions options;
  if (c.axis)
    options.axis = *c.axis;
  else
    options.whole = true;
  return options;
}

// The columns of a column-major matrix are counted in its own order: the first of the other axes is the fastest.
std::size_t column(const SpectralCase& c, Order order, std::size_t at) {
  return c.axis == 1 ? at : place(Shape(c.shape.begin() + 1, c.shape.end()), order, at);
}

}  // namespace

template <class T, class Device>
WeightResult run_weight_norm(const Device& device, const WeightCase& c, Order order) {
  WeightResult result;
  with_tensor<T>(c.shape, order, [&](auto v) {
    auto w = v, dw = v, dv = v;
    put(v, c.shape, order, c.v);
    w.setConstant(norms_test::nan_of<T>());
    dv.setConstant(norms_test::nan_of<T>());
    const auto g = vector_of<T>(c.g);
    auto dg = vector_of<T>(Values(c.g.size(), NAN));
    ek::WeightNormSaved<ek::accumulator_t<T>> saved;
    ek::weight_norm(device, v, g, w, saved, options_of(c));
    result.w = taken(w, c.shape, order);
    if (c.dw.empty()) return;
    put(dw, c.shape, order, c.dw);
    ek::weight_norm_backward(device, dw, v, g, saved, dv, dg, overwrite);
    result.dv = taken(dv, c.shape, order);
    result.dg = values_of(dg);
  });
  return result;
}

template <class T>
WeightResult run_weight_norm_layer(const WeightCase& c) {
  WeightResult result;
  with_tensor<T>(c.shape, Order::row_major, [&](auto v) {
    auto w = v, dw = v;
    put(v, c.shape, Order::row_major, c.v);
    ek::WeightNorm<T> layer(v, options_of(c));
    for (std::size_t i = 0; i < c.g.size(); ++i) layer.g().value()[i] = static_cast<T>(c.g[i]);
    layer.materialize(ek::serial, w);
    result.w = values_of(w);
    if (c.dw.empty()) return;
    put(dw, c.shape, Order::row_major, c.dw);
    layer.backward(ek::serial, dw, overwrite);
    result.dv = Values(layer.v().gradient(), layer.v().gradient() + layer.v().size());
    result.dg = Values(layer.g().gradient(), layer.g().gradient() + layer.g().size());
  });
  return result;
}

template <class T, class Device>
SpectralResult run_spectral_norm(const Device& device, const SpectralCase& c, Order order) {
  SpectralResult result;
  with_tensor<T>(c.shape, order, [&](auto w) {
    auto w_hat = w, dw_hat = w, dw = w;
    put(w, c.shape, order, c.w);
    const auto before = values_of(w);
    w_hat.setConstant(norms_test::nan_of<T>());
    dw.setConstant(norms_test::nan_of<T>());
    auto u = vector_of<T>(c.u), v = vector_of<T>(c.v);
    for (std::size_t i = 0; i < c.v.size(); ++i) v(Eigen::Index(column(c, order, i))) = static_cast<T>(c.v[i]);
    ek::SpectralNormSaved<ek::accumulator_t<T>> saved;
    ek::spectral_norm(device, w, u, v, w_hat, saved, {.power_iterations = c.iterations, .axis = c.axis});
    result.w_hat = taken(w_hat, c.shape, order);
    result.u = values_of(u);
    for (std::size_t i = 0; i < c.v.size(); ++i)
      result.v.push_back(static_cast<double>(v(Eigen::Index(column(c, order, i)))));
    result.sigma = static_cast<double>(saved.sigma());
    if (!c.dw_hat.empty()) {
      put(dw_hat, c.shape, order, c.dw_hat);
      ek::spectral_norm_backward(device, dw_hat, w, saved, dw, overwrite);
      result.dw = taken(dw, c.shape, order);
    }
    CHECK(bit_difference(values_of(w), before) == "");
  });
  return result;
}

template <class T>
SpectralResult run_spectral_norm_layer(const SpectralCase& c) {
  SpectralResult result;
  with_tensor<T>(c.shape, Order::row_major, [&](auto w) {
    auto w_hat = w, dw_hat = w;
    put(w, c.shape, Order::row_major, c.w);
    ek::SpectralNorm<T> layer(w, {.power_iterations = c.iterations, .axis = c.axis});
    layer.u() = vector_of<T>(c.u);
    layer.v() = vector_of<T>(c.v);
    layer.materialize(ek::serial, w_hat);
    result.w_hat = values_of(w_hat);
    result.u = values_of(layer.u());
    result.v = values_of(layer.v());
    result.sigma = static_cast<double>(layer.saved.sigma());
    CHECK(bit_difference(Values(layer.weight().value(), layer.weight().value() + layer.weight().size()),
                         values_of(w)) == "");
    if (c.dw_hat.empty()) return;
    put(dw_hat, c.shape, Order::row_major, c.dw_hat);
    layer.backward(ek::serial, dw_hat, overwrite);
    result.dw = Values(layer.weight().gradient(), layer.weight().gradient() + layer.weight().size());
  });
  return result;
}

template <class T, class Device>
WeightResult run_standardization(const Device& device, const WeightCase& c, WeightStandardizationKind kind, double eps,
                                 Order order) {
  WeightResult result;
  with_tensor<T>(c.shape, order, [&](auto w) {
    auto w_hat = w, dw_hat = w, dw = w;
    put(w, c.shape, order, c.v);
    put(dw_hat, c.shape, order, c.dw);
    w_hat.setConstant(norms_test::nan_of<T>());
    dw.setConstant(norms_test::nan_of<T>());
    ek::WeightStandardizationSaved<ek::accumulator_t<T>> saved;
    if (kind == WeightStandardizationKind::plain) {
      ek::weight_standardization(device, w, w_hat, saved, {.eps = eps});
      ek::weight_standardization_backward(device, dw_hat, w, saved, dw, overwrite);
    } else {
      const auto gain = vector_of<T>(c.g);
      auto dgain = vector_of<T>(Values(c.g.size(), NAN));
      const bool added = kind == WeightStandardizationKind::scaled_added;
      ek::scaled_weight_standardization(device, w, gain, w_hat, saved, {.eps_added = added, .eps = eps});
      ek::scaled_weight_standardization_backward(device, dw_hat, w, gain, saved, dw, dgain, overwrite);
      result.dg = values_of(dgain);
    }
    result.w = taken(w_hat, c.shape, order);
    result.dv = taken(dw, c.shape, order);
  });
  return result;
}

template <class T>
OnesResult run_weight_norm_of_ones(const Eigen::ThreadPoolDevice& device, Eigen::Index n, Eigen::Index repetitions) {
  const norms_test::Vector<T> v = norms_test::Vector<T>::Ones(n), g = norms_test::Vector<T>::Ones(1);
  norms_test::Vector<T> w(n);
  ek::WeightNormSaved<T> saved;
  OnesResult result{NAN, INFINITY, -INFINITY};
  for (Eigen::Index i = 0; i < repetitions; ++i) {
    w.setConstant(norms_test::nan_of<T>());
    ek::weight_norm(device, v, g, w, saved, {.whole = true});
    const double norm = static_cast<double>(saved.norm(0));
    if (i > 0 && norm != result.norm) FAIL_CHECK("a norm of " << norm << " after one of " << result.norm);
    result.norm = norm;
    result.least = std::min(result.least, static_cast<double>(w.template minCoeff<Eigen::PropagateNaN>()));
    result.most = std::max(result.most, static_cast<double>(w.template maxCoeff<Eigen::PropagateNaN>()));
    if (w.isNaN().any()) FAIL_CHECK("a place that nobody has written");
  }
  return result;
}

using Threads = Eigen::ThreadPoolDevice;

#define CASES_TEST_WEIGHT_NORM(T)                                                        \
  template WeightResult run_weight_norm<T>(const ek::Serial&, const WeightCase&, Order); \
  template WeightResult run_weight_norm<T>(const Threads&, const WeightCase&, Order)

CASES_TEST_WEIGHT_NORM(double);
CASES_TEST_WEIGHT_NORM(float);
CASES_TEST_WEIGHT_NORM(Eigen::half);
CASES_TEST_WEIGHT_NORM(Eigen::bfloat16);

#define CASES_TEST_WIDE(T)                                                                                           \
  template SpectralResult run_spectral_norm<T>(const ek::Serial&, const SpectralCase&, Order);                       \
  template SpectralResult run_spectral_norm<T>(const Threads&, const SpectralCase&, Order);                          \
  template WeightResult run_standardization<T>(const ek::Serial&, const WeightCase&, WeightStandardizationKind,      \
                                               double, Order);                                                       \
  template WeightResult run_standardization<T>(const Threads&, const WeightCase&, WeightStandardizationKind, double, \
                                               Order);                                                               \
  template WeightResult run_weight_norm_layer<T>(const WeightCase&);                                                 \
  template SpectralResult run_spectral_norm_layer<T>(const SpectralCase&);                                           \
  template OnesResult run_weight_norm_of_ones<T>(const Threads&, Eigen::Index, Eigen::Index)

CASES_TEST_WIDE(double);
CASES_TEST_WIDE(float);

}  // namespace cases_test
