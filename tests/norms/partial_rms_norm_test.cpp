#include "evenkeel/norms/partial_rms_norm.hpp"

#include "norms/norm_under_test.hpp"
#include "support/devices.hpp"
#include "support/gradient_check.hpp"
#include "support/row_reference.hpp"

using namespace norms_test;

namespace {

template <class X, class T>
void check(const Slab& s, X x, std::size_t used, const Vector<T>& weight, const Vector<T>& bias,
           const ek::PartialRmsNormOptions& options, double epsilon, double least = 0) {
  INFO(s.outer << " x " << s.length << " x " << s.inner << ", the first " << used);
  using S = std::remove_cvref_t<decltype(*x.data())>;
  const Data data = make_data<S>(s, s.size());
  X dy = x, y = x, dx = x;
  fill(x, data.x);
  fill(dy, data.dy);
  fill(y, Values(s.size(), NAN));
  fill(dx, Values(s.size(), NAN));
  Vector<T> dweight = Vector<T>::Constant(weight.size(), nan_of<T>()), dbias = dweight;
  ek::PartialRmsNormSaved<ek::accumulator_t<S>> saved;
  ek::partial_rms_norm(ek::serial, x, weight, bias, y, saved, options);
  ek::partial_rms_norm_backward(ek::serial, dy, x, weight, saved, dx, dweight, dbias, ek::GradientMode::overwrite);
  CHECK(saved.features_used == ek::Index(used));
  const reference::Options o{options.eps, options.unit_offset, {}};
  const Values w = values_of(weight), b = values_of(bias);
  auto forward = reference::partial_rms_norm(s, data.x, w, b, used, o);
  auto backward = reference::partial_rms_norm_backward(s, data.dy, data.x, w, used, o);
  for (Values* m : {&forward.y_magnitude, &backward.dx_magnitude})
    for (double& size : *m) size += least;
  const std::size_t summed = least > 0 ? 0 : s.length;
  CHECK(worst_error(values_of(y), forward.y, forward.y_magnitude, summed, epsilon) <= 1);
  CHECK(worst_error(values_of(dx), backward.dx, backward.dx_magnitude, summed, epsilon) <= 1);
  const auto sums = epsilon_of<T>();
  CHECK(worst_error(values_of(dweight), backward.dweight, backward.dweight_magnitude, s.size(), sums) <= 1);
  CHECK(worst_error(values_of(dbias), backward.dbias, backward.dbias_magnitude, s.size(), sums) <= 1);
}

template <class T>
Vector<T> parameter(std::size_t length, std::uint64_t seed) {
  return vector_of<T>(support::normal<T>(length, seed, 0.5));
}

}  // namespace

TEST_CASE("partial_rms_norm equals the reference on awkward shapes", "[norms][partial_rms_norm]") {
  for (const auto& shape : support::awkward_shapes()) {
    const auto weight = parameter<float>(shape.length, 1), bias = parameter<float>(shape.length, 2);
    for (const std::size_t used : {std::size_t(1), shape.length / 3, shape.length}) {
      if (used == 0) continue;
      check({shape.rows, shape.length, 1}, RowMatrix<float>(shape.rows, shape.length), used, weight, bias,
            {.features_used = ek::Index(used), .unit_offset = shape.rows == 3}, epsilon_of<float>());
    }
    const std::size_t sixteenth = std::max<std::size_t>(1, shape.length / 16);
    check({shape.rows, shape.length, 1}, RowMatrix<float>(shape.rows, shape.length), sixteenth, weight, bias, {},
          epsilon_of<float>());
  }
}

TEST_CASE("partial_rms_norm works along any axis of either storage order", "[norms][partial_rms_norm]") {
  const auto weight = parameter<float>(19, 1), bias = parameter<float>(19, 2);
  const double epsilon = epsilon_of<float>();
  check({1, 19, 35}, RowMatrix<float>(19, 35), 5, weight, bias, {.axis = 0, .features_used = 5}, epsilon);
  check({35, 19, 1}, ColMatrix<float>(19, 35), 9, weight, bias, {.axis = 0, .fraction = 0.5}, epsilon);
  check({3, 19, 4}, Eigen::Tensor<float, 3, Eigen::RowMajor>(3, 19, 4), 5, weight, bias,
        {.axis = 1, .features_used = 5}, epsilon);
}

TEMPLATE_TEST_CASE("partial_rms_norm of small scalars with float weights", "[norms][partial_rms_norm]",
                   SUPPORT_SMALL_SCALARS) {
  const bool half = std::is_same_v<TestType, Eigen::half>;
  check({5, 33, 1}, RowMatrix<TestType>(5, 33), 7, parameter<float>(33, 1), parameter<float>(33, 2),
        {.features_used = 7}, (half ? 0x1p-10 : 0x1p-7) / 12, half ? 0x1p-14 : 0x1p-126);
}

TEST_CASE("partial_rms_norm's gradients equal central differences", "[norms][partial_rms_norm]") {
  const std::size_t rows = 3, length = 11;
  const Data data = make_data<double>({rows, length, 1}, 3);
  const ek::PartialRmsNormOptions options{.eps = 1e-2, .features_used = 4};
  const auto matrix = [&](const Values& v) { return matrix_of<RowMatrix<double>>(rows, length, v); };
  const auto loss = [&](const Values& x, const Values& weight, const Values& bias) {
    RowMatrix<double> y(rows, length);
    ek::PartialRmsNormSaved<double> scratch;
    ek::partial_rms_norm(ek::serial, matrix(x), vector_of<double>(weight), vector_of<double>(bias), y, scratch,
                         options);
    return support::weighted_sum(values_of(y), data.dy);
  };
  ek::PartialRmsNormSaved<double> saved;
  RowMatrix<double> y(rows, length), dx(rows, length);
  const auto weight = vector_of<double>(data.weight), bias = vector_of<double>(data.bias);
  Vector<double> dweight = Vector<double>::Zero(length), dbias = dweight;
  ek::partial_rms_norm(ek::serial, matrix(data.x), weight, bias, y, saved, options);
  ek::partial_rms_norm_backward(ek::serial, matrix(data.dy), matrix(data.x), weight, saved, dx, dweight, dbias);
  const auto compare = [](const auto& got, const auto& f, const Values& at) {
    CHECK(support::gradient_distance(values_of(got), support::central_differences(f, at)) <
          support::gradient_tolerance);
  };
  compare(
      dx, [&](const Values& v) { return loss(v, data.weight, data.bias); }, data.x);
  compare(
      dweight, [&](const Values& v) { return loss(data.x, v, data.bias); }, data.weight);
  compare(
      dbias, [&](const Values& v) { return loss(data.x, data.weight, v); }, data.bias);
}

TEST_CASE("partial_rms_norm over all features is rms_norm, and ignores the rest otherwise",
          "[norms][partial_rms_norm]") {
  RowMatrix<float> x = RowMatrix<float>::Random(6, 45), y(6, 45), expected(6, 45);
  ek::PartialRmsNormSaved<float> saved;
  ek::partial_rms_norm(ek::serial, x, ek::none, ek::none, y, saved, {.fraction = 1});
  ek::rms_norm(ek::serial, x, ek::none, expected, ek::none);
  CHECK((y - expected).cwiseAbs().maxCoeff() < 1e-6f);
  ek::partial_rms_norm(ek::serial, x, ek::none, ek::none, expected, saved, {.features_used = 20});
  x.rightCols(25).setConstant(INFINITY);
  ek::partial_rms_norm(ek::serial, x, ek::none, ek::none, y, saved, {.features_used = 20});
  CHECK((y.leftCols(20).array() == expected.leftCols(20).array()).all());
  x.setZero();
  ek::partial_rms_norm(ek::serial, x, ek::none, ek::none, y, saved, {.eps = 0, .features_used = 20});
  CHECK((y.array() == 0).all());
}

TEST_CASE("partial_rms_norm gives the same bits on every device and in place", "[norms][partial_rms_norm][devices]") {
  const std::size_t rows = 257;
  for (const std::size_t features : Counts{5, 64, 77}) {
    const Data data = make_data<float>({rows, features, 1}, features);
    const auto x = matrix_of<RowMatrix<float>>(rows, features, data.x),
               dy = matrix_of<RowMatrix<float>>(rows, features, data.dy);
    ek::PartialRmsNorm<float> layer(ek::Index(features), {.fraction = 0.25});
    const auto weight = vector_of<float>(data.weight);
    std::copy_n(weight.data(), features, layer.weight.value());
    RowMatrix<float> y(rows, features), dx(rows, features);
    layer.forward(ek::serial, x, y);
    layer.backward(ek::serial, dy, x, dx);
    support::for_each_device([&](const auto& device) {
      RowMatrix<float> a = x, got = dy;
      Vector<float> dweight = Vector<float>::Zero(ek::Index(features));
      ek::PartialRmsNormSaved<float> saved;
      ek::partial_rms_norm(device, a, weight, ek::none, a, saved, layer.options());
      CHECK((a.array() == y.array()).all());
      CHECK_THROWS_AS(ek::partial_rms_norm_backward(device, dy, a, weight, saved, got, dweight, ek::none),
                      ek::ShapeError);
      ek::partial_rms_norm(device, x, weight, ek::none, a, saved, layer.options());
      ek::partial_rms_norm_backward(device, got, x, weight, saved, got, dweight, ek::none);
      CHECK((got.array() == dx.array()).all());
      CHECK((Eigen::Map<Vector<float>>(layer.weight.gradient(), ek::Index(features)) == dweight).all());
    });
  }
}

TEST_CASE("partial_rms_norm names what does not fit", "[norms][partial_rms_norm][errors]") {
  const RowMatrix<float> x = RowMatrix<float>::Random(4, 12);
  RowMatrix<float> y(4, 12);
  ek::PartialRmsNormSaved<float> saved;
  const auto run = [&](const ek::PartialRmsNormOptions& options) {
    ek::partial_rms_norm(ek::serial, x, ek::none, ek::none, y, saved, options);
  };
  CHECK_THROWS_WITH(run({.features_used = 13}), "partial_rms_norm: features_used is 13, x has 12 features");
  CHECK_THROWS_WITH(run({.features_used = -1}), "partial_rms_norm: features_used is -1, x has 12 features");
  CHECK_THROWS_WITH(run({.fraction = 1.5}), support::contains_text("partial_rms_norm: fraction is 1.5"));
  CHECK_THROWS_WITH(run({.eps = -1}), support::contains_text("partial_rms_norm: eps is -1"));
  CHECK_THROWS_WITH(ek::partial_rms_norm_backward(ek::serial, x, x, ek::none, saved, y, ek::none, ek::none),
                    support::contains_text("partial_rms_norm_backward: saved is empty"));
  CHECK_THROWS_AS(ek::PartialRmsNorm<float>(4, {.features_used = 5}), ek::ShapeError);
  CHECK_THROWS_AS(ek::PartialRmsNorm<float>(0), ek::ShapeError);
}
