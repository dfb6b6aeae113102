// What DyT and Derf must both show.
#pragma once

#include "evenkeel/norms/derf.hpp"
#include "evenkeel/norms/dyt.hpp"
#include "norms/norm_under_test.hpp"
#include "support/devices.hpp"
#include "support/gradient_check.hpp"
#include "support/row_reference.hpp"

namespace norms_test {

// Learned scalars and their gradients; DyT has no shift and leaves it alone.
template <class T>
struct Scalars {
  T alpha, shift;
};

struct DytUnderTest {
  static constexpr reference::Curve curve = reference::Curve::tanh;
  static constexpr bool shifted = false;
  static constexpr const char* name = "dyt";
  template <class A>
  using Saved = ek::DytSaved<A>;
  using Options = ek::DytOptions;

  template <class Device, class X, class A, class W, class B, class Y, class S>
  static void forward(const Device& device, const X& x, const Scalars<A>& s, const W& weight, const B& bias, Y&& y,
                      S&& saved, const Options& options = {}) {
    ek::dyt(device, x, &s.alpha, weight, bias, y, saved, options);
  }
  template <class Device, class DY, class X, class A, class W, class S, class DX, class DW, class DB>
  static void backward(const Device& device, const DY& dy, const X& x, const Scalars<A>& s, const W& weight, S& saved,
                       DX&& dx, Scalars<A>& ds, DW&& dweight, DB&& dbias,
                       ek::GradientMode mode = ek::GradientMode::accumulate) {
    ek::dyt_backward(device, dy, x, &s.alpha, weight, saved, dx, &ds.alpha, dweight, dbias, mode);
  }
};

struct DerfUnderTest {
  static constexpr reference::Curve curve = reference::Curve::erf;
  static constexpr bool shifted = true;
  static constexpr const char* name = "derf";
  template <class A>
  using Saved = ek::DerfSaved<A>;
  using Options = ek::DerfOptions;

  template <class Device, class X, class A, class W, class B, class Y, class S>
  static void forward(const Device& device, const X& x, const Scalars<A>& s, const W& weight, const B& bias, Y&& y,
                      S&& saved, const Options& options = {}) {
    ek::derf(device, x, &s.alpha, &s.shift, weight, bias, y, saved, options);
  }
  template <class Device, class DY, class X, class A, class W, class S, class DX, class DW, class DB>
  static void backward(const Device& device, const DY& dy, const X& x, const Scalars<A>& s, const W& weight, S& saved,
                       DX&& dx, Scalars<A>& ds, DW&& dweight, DB&& dbias,
                       ek::GradientMode mode = ek::GradientMode::accumulate) {
    ek::derf_backward(device, dy, x, &s.alpha, &s.shift, weight, saved, dx, &ds.alpha, &ds.shift, dweight, dbias, mode);
  }
};

// Forward and backward against the reference, from NaN in the overwriting mode. `epsilon` is that of the stored y, dx.
template <class Norm, class A, class X, class W, class B>
void check_pointwise(const Data& data, Scalars<A> scalars, const X& x, const X& dy, const W& weight, const B& bias,
                     const typename Norm::Options& options, double epsilon, double least = 0) {
  INFO(Norm::name << " of " << data.slab.outer << " x " << data.slab.length << " x " << data.slab.inner << ", weight "
                  << !is_none<W> << ", scalar of " << sizeof(*x.data()) << " bytes");
  if (!Norm::shifted) scalars.shift = 0;
  const Values no_values;
  const Values& w = is_none<W> ? no_values : data.weight;
  const Values& b = is_none<B> ? no_values : data.bias;
  const double alpha = double(scalars.alpha), shift = double(scalars.shift);
  auto forward = reference::pointwise(Norm::curve, data.slab, data.x, alpha, shift, w, b);
  auto backward = reference::pointwise_backward(Norm::curve, data.slab, data.dy, data.x, alpha, shift, w);
  for (double& m : forward.y_magnitude) m += least;
  for (double& m : backward.dx_magnitude) m += least;

  X y = x, dx = x;
  fill(y, Values(data.x.size(), NAN));
  fill(dx, Values(data.x.size(), NAN));
  typename Norm::template Saved<ek::accumulator_t<std::remove_cvref_t<decltype(*x.data())>>> saved;
  Norm::forward(ek::serial, x, scalars, weight, bias, y, saved, options);
  CHECK(worst_error(values_of(y), forward.y, forward.y_magnitude, 0, epsilon) <= 1);

  Scalars<A> ds{nan_of<A>(), nan_of<A>()};
  Vector<A> dweight = Vector<A>::Constant(Eigen::Index(data.features), nan_of<A>()), dbias = dweight;
  constexpr auto overwrite = ek::GradientMode::overwrite;
  const double sum_epsilon = epsilon_of<A>();
  const auto check_parameter = [&](const Vector<A>& got, const Values& expected, const Values& magnitude) {
    CHECK(worst_error(values_of(got), expected, magnitude, data.slab.rows(), sum_epsilon) <= 1);
  };
  if constexpr (is_none<W>) {
    Norm::backward(ek::serial, dy, x, scalars, weight, saved, dx, ds, ek::none, dbias, overwrite);
  } else {
    Norm::backward(ek::serial, dy, x, scalars, weight, saved, dx, ds, dweight, dbias, overwrite);
    check_parameter(dweight, backward.dweight, backward.dweight_magnitude);
  }
  check_parameter(dbias, backward.dbias, backward.dbias_magnitude);
  CHECK(worst_error(values_of(dx), backward.dx, backward.dx_magnitude, 0, epsilon) <= 1);
  CHECK(worst_error({double(ds.alpha)}, {backward.dalpha}, {backward.dalpha_magnitude}, data.slab.length,
                    sum_epsilon) <= 1);
  if (Norm::shifted)
    CHECK(worst_error({double(ds.shift)}, {backward.dshift}, {backward.dshift_magnitude}, data.slab.length,
                      sum_epsilon) <= 1);
}

template <class Norm, class T>
void check_pointwise_shapes() {
  for (const auto& shape : support::awkward_shapes()) {
    const Data data = make_data<T>({shape.rows, shape.length, 1}, shape.rows + 7 * shape.length, 0.25, 3);
    const auto x = matrix_of<RowMatrix<T>>(shape.rows, shape.length, data.x),
               dy = matrix_of<RowMatrix<T>>(shape.rows, shape.length, data.dy);
    check_pointwise<Norm, T>(data, {T(0.5), T(-0.25)}, x, dy, vector_of<T>(data.weight), vector_of<T>(data.bias), {},
                             epsilon_of<T>());
  }
}

template <class Norm>
void check_pointwise_layouts() {
  const auto check = [](const Slab& s, int axis, auto x) {
    auto dy = x;
    const Data data = make_data<float>(s, s.size());
    fill(x, data.x);
    fill(dy, data.dy);
    check_pointwise<Norm, float>(data, {0.75f, 0.5f}, x, dy, vector_of<float>(data.weight), vector_of<float>(data.bias),
                                 {.axis = axis}, epsilon_of<float>());
    check_pointwise<Norm, float>(data, {0.75f, 0.5f}, x, dy, ek::none, ek::none, {.axis = axis}, epsilon_of<float>());
  };
  check({1, 19, 35}, 0, RowMatrix<float>(19, 35));
  check({19, 35, 1}, 0, ColMatrix<float>(35, 19));
  check({3, 19, 4}, 1, Eigen::Tensor<float, 3, Eigen::RowMajor>(3, 19, 4));
  check({1, 19, 12}, 2, Eigen::Tensor<float, 3>(4, 3, 19));
}

// The whole path in double against central differences of the library's own forward.
template <class Norm>
void check_pointwise_gradients() {
  const std::size_t rows = 3, length = 17;
  const Data data = make_data<double>({rows, length, 1}, 7);
  const Values scalars{0.625, -0.375};
  const auto loss = [&](const Values& x, const Values& s, const Values& weight, const Values& bias) {
    RowMatrix<double> y(rows, length);
    Norm::forward(ek::serial, matrix_of<RowMatrix<double>>(rows, length, x), Scalars<double>{s[0], s[1]},
                  vector_of<double>(weight), vector_of<double>(bias), y, ek::none);
    return support::weighted_sum(values_of(y), data.dy);
  };
  const auto x = matrix_of<RowMatrix<double>>(rows, length, data.x),
             dy = matrix_of<RowMatrix<double>>(rows, length, data.dy);
  const auto weight = vector_of<double>(data.weight), bias = vector_of<double>(data.bias);
  const Scalars<double> s{scalars[0], scalars[1]};
  RowMatrix<double> y(rows, length), dx(rows, length);
  Vector<double> dweight = Vector<double>::Zero(length), dbias = dweight;
  Scalars<double> ds{0, 0};
  typename Norm::template Saved<double> saved;
  Norm::forward(ek::serial, x, s, weight, bias, y, saved);
  Norm::backward(ek::serial, dy, x, s, weight, saved, dx, ds, dweight, dbias);
  const auto check = [](const Values& got, const auto& f, const Values& at) {
    CHECK(support::gradient_distance(got, support::central_differences(f, at)) < support::gradient_tolerance);
  };
  check(
      values_of(dx), [&](const Values& v) { return loss(v, scalars, data.weight, data.bias); }, data.x);
  check(
      {ds.alpha, ds.shift}, [&](const Values& v) { return loss(data.x, v, data.weight, data.bias); }, scalars);
  check(
      values_of(dweight), [&](const Values& v) { return loss(data.x, scalars, v, data.bias); }, data.weight);
  check(
      values_of(dbias), [&](const Values& v) { return loss(data.x, scalars, data.weight, v); }, data.bias);
}

// Devices, thread counts and memory shared with inputs give the same bits; gradients of parameters are accumulated.
template <class Norm>
void check_pointwise_bits() {
  for (const std::size_t features : Counts{5, 31, 64, 77}) {
    for (const int axis : {0, 1}) {
      const std::size_t rows = 257;
      const Slab slab = axis == 0 ? Slab{1, rows, features} : Slab{rows, features, 1};
      const Data data = make_data<float>(slab, features);
      const auto x = matrix_of<RowMatrix<float>>(rows, features, data.x),
                 dy = matrix_of<RowMatrix<float>>(rows, features, data.dy);
      const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(data.bias);
      const Scalars<float> s{0.5f, 0.25f};
      RowMatrix<float> y(rows, features), dx(rows, features);
      Vector<float> dweight = Vector<float>::Ones(ek::Index(slab.length)), dbias = dweight;
      Scalars<float> ds{1, 1}, written{NAN, NAN};
      typename Norm::template Saved<float> saved, other;
      Norm::forward(ek::serial, x, s, weight, bias, y, saved, {.axis = axis});
      Norm::backward(ek::serial, dy, x, s, weight, saved, dx, ds, dweight, dbias);
      RowMatrix<float> again(rows, features);
      Norm::backward(ek::serial, dy, x, s, weight, saved, again, written, ek::none, ek::none,
                     ek::GradientMode::overwrite);
      CHECK(std::abs(ds.alpha - (1 + written.alpha)) <= 1e-6f * (1 + std::abs(written.alpha)));
      CHECK((again.array() == dx.array()).all());
      support::for_each_device([&](const auto& device) {
        RowMatrix<float> got_y = x, got_dx = dy;
        Vector<float> got_dweight = Vector<float>::Ones(ek::Index(slab.length)), got_dbias = got_dweight;
        Scalars<float> got{1, 1};
        Norm::forward(device, got_y, s, weight, bias, got_y, other, {.axis = axis});  // in place
        CHECK((got_y.array() == y.array()).all());
        CHECK_THROWS_AS(Norm::backward(device, dy, got_y, s, weight, other, got_dx, got, got_dweight, got_dbias),
                        ek::ShapeError);
        Norm::forward(device, x, s, weight, bias, got_y, other, {.axis = axis});
        Norm::backward(device, got_dx, x, s, weight, other, got_dx, got, got_dweight, got_dbias);  // in place
        CHECK((got_dx.array() == dx.array()).all());
        CHECK((got_dweight == dweight).all());
        CHECK((got_dbias == dbias).all());
        CHECK(got.alpha == ds.alpha);
        CHECK((!Norm::shifted || got.shift == ds.shift));
      });
    }
  }
}

// Huge elements end on the curve's ends and pass nothing; NaN stays where it is.
template <class Norm>
void check_pointwise_ends() {
  for (const ek::Index length : {3, 16, 40}) {
    RowMatrix<float> x = RowMatrix<float>::Random(5, length), dy = RowMatrix<float>::Ones(5, length), y = x, dx = x;
    x(1, 0) = 1e38f;
    x(1, 1) = -1e38f;
    x(3, 1) = NAN;
    const Scalars<float> s{0.5f, 0.0f};
    Scalars<float> ds{0, 0};
    typename Norm::template Saved<float> saved;
    Norm::forward(ek::serial, x, s, ek::none, ek::none, y, saved);
    Norm::backward(ek::serial, dy, x, s, ek::none, saved, dx, ds, ek::none, ek::none);
    CHECK(y(1, 0) == 1);
    CHECK(y(1, 1) == -1);
    CHECK(dx(1, 0) == 0);
    CHECK(dx(1, 1) == 0);
    CHECK(y.array().isNaN().count() == 1);
    CHECK(std::isnan(y(3, 1)));
    CHECK(dx.array().isNaN().count() == 1);
    x(3, 1) = 0;
    ds = {0, 0};
    Norm::backward(ek::serial, dy, x, s, ek::none, saved, dx, ds, ek::none, ek::none);
    CHECK(std::abs(ds.alpha) < float(6 * length));  // the huge ones do not count
  }
}

template <class Norm, class T>
void check_pointwise_small_scalars() {
  Data data = make_data<T>({5, 33, 1}, 12, 0, 2);
  data.weight = support::normal<float>(33, 13);
  data.bias = support::normal<float>(33, 14);
  const auto x = matrix_of<RowMatrix<T>>(5, 33, data.x), dy = matrix_of<RowMatrix<T>>(5, 33, data.dy);
  // One rounding at the store, by a fixed step below the least normal number; check_pointwise allows 8 epsilon.
  const bool half = std::is_same_v<T, Eigen::half>;
  check_pointwise<Norm, float>(data, {0.5f, 0.25f}, x, dy, vector_of<float>(data.weight), vector_of<float>(data.bias),
                               {}, (half ? 0x1p-10 : 0x1p-7) / 12, half ? 0x1p-14 : 0x1p-126);
}

}  // namespace norms_test
