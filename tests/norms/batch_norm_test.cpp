// BatchNorm in training mode: statistics over batch and space, per channel.
#include "norms/norm_under_test.hpp"
#include "support/gradient_check.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

using namespace norms_test;
using reference::slab;
using Norm = BatchNormUnderTest;

namespace {

template <class T, class X, class W, class B>
void check(const Slab& s, X& x, X& dy, X& y, X& dx, const W& weight, const B& bias, const Data& data, ek::Axes axis,
           double eps) {
  fill(x, data.x);
  fill(dy, data.dy);
  INFO("channels " << s.length);
  check_against_reference<Norm>(ek::serial, data, x, dy, y, dx, weight, bias, {.eps = eps, .axis = axis}, eps);
}

template <class T>
void check_matrix(std::size_t n, std::size_t channels, double eps = 1e-5) {
  const Slab s{n, channels, 1};
  const Data data = make_data<T>(s, n + channels);
  const auto r = ek::Index(n), c = ek::Index(channels);
  RowMatrix<T> x(r, c), dy(r, c), y(r, c), dx(r, c);
  const auto weight = vector_of<T>(data.weight), bias = vector_of<T>(data.bias);
  check<T>(s, x, dy, y, dx, weight, bias, data, 1, eps);
  // Each column of a ColMajor matrix is one channel, contiguous.
  const Slab turned{1, channels, n};
  const Data turned_data = make_data<T>(turned, n + channels);
  ColMatrix<T> cx(r, c), cdy(r, c), cy(r, c), cdx(r, c);
  check<T>(turned, cx, cdy, cy, cdx, weight, bias, turned_data, 1, eps);
}

template <class T, class Tensor, class... Extents>
void check_tensor(const Slab& s, ek::Axes axis, Extents... extents) {
  const Data data = make_data<T>(s, s.size());
  Tensor x(extents...), dy(extents...), y(extents...), dx(extents...);
  check<T>(s, x, dy, y, dx, vector_of<T>(data.weight), vector_of<T>(data.bias), data, axis, 1e-5);
}

}  // namespace

TEMPLATE_TEST_CASE("batch_norm of N x C equals the reference", "[norms][batch_norm]", SUPPORT_WIDE_SCALARS) {
  for (std::size_t channels : Counts{1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 65, 127}) check_matrix<TestType>(13, channels);
  for (std::size_t n : Counts{2, 3, 16, 17, 127, 1031}) check_matrix<TestType>(n, 19);
  check_matrix<TestType>(257, 1031);
  check_matrix<TestType>(9, 5, 0);
  check_matrix<TestType>(9, 5, 0.25);
}

TEMPLATE_TEST_CASE("batch_norm of images equals the reference in both orders", "[norms][batch_norm]",
                   SUPPORT_WIDE_SCALARS) {
  using Row4 = Eigen::Tensor<TestType, 4, Eigen::RowMajor>;
  using Col4 = Eigen::Tensor<TestType, 4>;
  using Row3 = Eigen::Tensor<TestType, 3, Eigen::RowMajor>;
  check_tensor<TestType, Row4>(slab({2, 3, 5, 7}, 1, 1), 1, 2, 3, 5, 7);
  check_tensor<TestType, Row4>(slab({3, 37, 4, 4}, 1, 1), 1, 3, 37, 4, 4);
  check_tensor<TestType, Row4>(slab({2, 5, 7, 23}, 3, 3), -1, 2, 5, 7, 23);  // N, H, W, C
  check_tensor<TestType, Row4>(slab({1, 4, 31, 33}, 1, 1), 1, 1, 4, 31, 33);
  check_tensor<TestType, Row3>(slab({4, 11, 13}, 1, 1), 1, 4, 11, 13);
  check_tensor<TestType, Row3>(slab({4, 13, 11}, 2, 2), 2, 4, 13, 11);
  // ColMajor W, H, C, N is the memory of RowMajor N, C, H, W; the channel axis is 2 there.
  check_tensor<TestType, Col4>(slab({2, 3, 5, 7}, 1, 1), 2, 7, 5, 3, 2);
  check_tensor<TestType, Col4>(slab({7, 5, 3, 2}, 2, 2), 1, 2, 3, 5, 7);
  check_tensor<TestType, Col4>(slab({2, 5, 7, 23}, 3, 3), 0, 23, 7, 5, 2);
}

TEST_CASE("batch_norm's channel axis is 1 by default", "[norms][batch_norm]") {
  using Row3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;
  const Data data = make_data<float>(slab({4, 5, 6}, 1, 1), 8);
  Row3 x(4, 5, 6), dy(4, 5, 6), y(4, 5, 6), dx(4, 5, 6);
  fill(x, data.x);
  fill(dy, data.dy);
  check_against_reference<Norm>(ek::serial, data, x, dy, y, dx, vector_of<float>(data.weight),
                                vector_of<float>(data.bias), {}, 1e-5);
}

TEST_CASE("batch_norm works without weight and bias", "[norms][batch_norm]") {
  const Data data = make_data<float>({12, 21, 1}, 8);
  const auto x = matrix_of<RowMatrix<float>>(12, 21, data.x), dy = matrix_of<RowMatrix<float>>(12, 21, data.dy);
  RowMatrix<float> y(12, 21), dx(12, 21);
  const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(data.bias);
  check_against_reference<Norm>(ek::serial, data, x, dy, y, dx, weight, ek::none, {}, 1e-5);
  check_against_reference<Norm>(ek::serial, data, x, dy, y, dx, ek::none, bias, {}, 1e-5);
  check_against_reference<Norm>(ek::serial, data, x, dy, y, dx, ek::none, ek::none, {}, 1e-5);
}

TEST_CASE("batch_norm's gradients equal central differences", "[norms][batch_norm]") {
  for (bool channels_last : {true, false}) {
    const std::size_t rows = 5, cols = 4;
    const int axis = channels_last ? 1 : 0;
    const Slab s = channels_last ? Slab{rows, cols, 1} : Slab{1, rows, cols};
    const Data data = make_data<double>(s, 17);
    const auto loss = [&](const Values& x, const Values& weight, const Values& bias) {
      RowMatrix<double> y(rows, cols);
      ek::BatchNormSaved<double> saved;
      ek::batch_norm(ek::serial, matrix_of<RowMatrix<double>>(rows, cols, x), vector_of<double>(weight),
                     vector_of<double>(bias), y, saved, {.eps = 1e-2, .axis = axis});
      return support::weighted_sum(values_of(y), data.dy);
    };
    const auto x = matrix_of<RowMatrix<double>>(rows, cols, data.x),
               dy = matrix_of<RowMatrix<double>>(rows, cols, data.dy);
    const auto weight = vector_of<double>(data.weight), bias = vector_of<double>(data.bias);
    ek::BatchNormSaved<double> saved;
    RowMatrix<double> y(rows, cols), dx(rows, cols);
    Vector<double> dweight = Vector<double>::Zero(weight.size()), dbias = dweight;
    ek::batch_norm(ek::serial, x, weight, bias, y, saved, {.eps = 1e-2, .axis = axis});
    ek::batch_norm_backward(ek::serial, dy, x, weight, saved, dx, dweight, dbias);
    using support::central_differences, support::gradient_distance, support::gradient_tolerance;
    const Values by_x = central_differences([&](const Values& p) { return loss(p, data.weight, data.bias); }, data.x);
    const Values by_weight =
        central_differences([&](const Values& p) { return loss(data.x, p, data.bias); }, data.weight);
    const Values by_bias =
        central_differences([&](const Values& p) { return loss(data.x, data.weight, p); }, data.bias);
    CHECK(gradient_distance(values_of(dx), by_x) < gradient_tolerance);
    CHECK(gradient_distance(values_of(dweight), by_weight) < gradient_tolerance);
    CHECK(gradient_distance(values_of(dbias), by_bias) < gradient_tolerance);

    // The default adds to what is there.
    const Vector<double> once = dweight, bias_once = dbias;
    ek::batch_norm_backward(ek::serial, dy, x, weight, saved, dx, dweight, dbias);
    CHECK((dweight - 2 * once).abs().maxCoeff() < 1e-14);
    CHECK((dbias - 2 * bias_once).abs().maxCoeff() < 1e-14);
  }
}

TEST_CASE("batch_norm of channels with mean 1e4 and spread 1e-2", "[norms][batch_norm][hard]") {
  for (bool channels_last : {true, false}) {
    const std::size_t n = 500, channels = 21;
    const Slab s = channels_last ? Slab{n, channels, 1} : Slab{1, channels, n};
    Data data = make_data<float>(s, 23, 1e4, 1e-2);
    const auto rows = s.outer == 1 ? channels : n, cols = s.size() / rows;
    const auto x = matrix_of<RowMatrix<float>>(rows, cols, data.x),
               dy = matrix_of<RowMatrix<float>>(rows, cols, data.dy);
    ek::BatchNormSaved<float> saved;
    RowMatrix<float> y(rows, cols), dx(rows, cols);
    ek::batch_norm(ek::serial, x, ek::none, ek::none, y, saved, {.eps = 1e-12, .axis = channels_last ? 1 : 0});
    ek::batch_norm_backward(ek::serial, dy, x, ek::none, saved, dx, ek::none, ek::none);
    const auto forward = Norm::reference(s, data.x, {}, {}, {1e-12, false, {}});
    const auto backward = Norm::reference_backward(s, data.dy, data.x, {}, {1e-12, false, {}});
    double y_error = 0, y_size = 0, dx_error = 0, dx_size = 0;
    for (std::size_t i = 0; i < s.size(); ++i) {
      y_error = std::max(y_error, std::abs(double(y.data()[i]) - forward.y[i]));
      y_size = std::max(y_size, std::abs(forward.y[i]));
      dx_error = std::max(dx_error, std::abs(double(dx.data()[i]) - backward.dx[i]));
      dx_size = std::max(dx_size, std::abs(backward.dx[i]));
    }
    CHECK(y_error / y_size * 1e6 <= 1);  // eight roundings; a mean kept as one float is off by 1e-2 and more
    CHECK(dx_error / dx_size * 1e6 <= 1);
  }
}

TEST_CASE("batch_norm standardizes each channel of its batch", "[norms][batch_norm]") {
  const std::size_t n = 400, channels = 9;
  const Data data = make_data<float>({n, channels, 1}, 29, 7, 3);
  const auto x = matrix_of<RowMatrix<float>>(n, channels, data.x);
  RowMatrix<float> y(n, channels);
  ek::BatchNormSaved<float> saved;
  ek::batch_norm(ek::serial, x, ek::none, ek::none, y, saved);
  const Eigen::RowVectorXd mean = y.cast<double>().colwise().mean();
  CHECK(mean.cwiseAbs().maxCoeff() < 1e-6);
  CHECK((y.cast<double>().array().square().colwise().mean() - 1).abs().maxCoeff() < 1e-5);  // eps takes 1e-6 of it
}

TEST_CASE("batch_norm refuses one value per channel", "[norms][batch_norm][errors]") {
  const RowMatrix<float> x = RowMatrix<float>::Ones(1, 6);
  RowMatrix<float> y = RowMatrix<float>::Constant(1, 6, 77);
  ek::BatchNormSaved<float> saved;
  std::string text;
  try {
    ek::batch_norm(ek::serial, x, ek::none, ek::none, y, saved);
  } catch (const ek::ShapeError& error) {
    text = error.what();
  }
  CHECK(text.find("batch_norm:") == 0);
  CHECK(text.find("1x6") != std::string::npos);
  CHECK((y.array() == 77).all());
  // One sample with a plane of two is enough.
  Eigen::Tensor<float, 3, Eigen::RowMajor> image(1, 6, 2), out(1, 6, 2);
  image.setRandom();
  CHECK_NOTHROW(ek::batch_norm(ek::serial, image, ek::none, ek::none, out, saved));
}
