#include "norms/norm_under_test.hpp"
#include "support/devices.hpp"
#include "support/gradient_check.hpp"

#include <functional>

using namespace norms_test;

namespace {

struct Shape {
  std::size_t samples, rows, features;
  std::size_t size() const { return samples * rows * features; }
};

struct AdaptiveLayerNorm {
  static constexpr const char* name = "adaptive_layer_norm";
  template <class A>
  using Saved = ek::AdaptiveLayerNormSaved<A>;
  template <class... Args>
  static void forward(Args&&... args) {
    ek::adaptive_layer_norm(std::forward<Args>(args)...);
  }
  template <class... Args>
  static void backward(Args&&... args) {
    ek::adaptive_layer_norm_backward(std::forward<Args>(args)...);
  }
  using Options = ek::AdaptiveLayerNormOptions;
  using Reference = LayerNormUnderTest;
};

struct AdaptiveRmsNorm {
  static constexpr const char* name = "adaptive_rms_norm";
  template <class A>
  using Saved = ek::AdaptiveRmsNormSaved<A>;
  template <class... Args>
  static void forward(Args&&... args) {
    ek::adaptive_rms_norm(std::forward<Args>(args)...);
  }
  template <class... Args>
  static void backward(Args&&... args) {
    ek::adaptive_rms_norm_backward(std::forward<Args>(args)...);
  }
  using Options = ek::AdaptiveRmsNormOptions;
  using Reference = RmsNormUnderTest;
};

// Where element (sample, row, feature) lies in memory.
using Place = std::function<std::size_t(std::size_t, std::size_t, std::size_t)>;

Values part_of(const Values& all, std::size_t part, std::size_t size) {
  return Values(all.begin() + std::ptrdiff_t(part * size), all.begin() + std::ptrdiff_t((part + 1) * size));
}

// Sample by sample against the norm's own reference with unit offset. Scale and shift are columns of one wider matrix.
template <class Norm, class T, class P, class X>
void check(const Shape& shape, X x, const Place& place, ek::Axes axis, double epsilon, double least = 0) {
  INFO(Norm::name << " of " << shape.samples << " samples of " << shape.rows << " x " << shape.features);
  const std::size_t samples = shape.samples, rows = shape.rows, features = shape.features;
  const Values xs = support::normal<T>(shape.size(), 1, 0.5, 2), dys = support::normal<T>(shape.size(), 2);
  X dy = x, y = x, dx = x;
  const auto at = [&](std::size_t b, std::size_t t, std::size_t i) { return (b * rows + t) * features + i; };
  for (std::size_t b = 0; b < samples; ++b)
    for (std::size_t t = 0; t < rows; ++t)
      for (std::size_t i = 0; i < features; ++i) {
        x.data()[place(b, t, i)] = static_cast<T>(xs[at(b, t, i)]);
        dy.data()[place(b, t, i)] = static_cast<T>(dys[at(b, t, i)]);
      }
  fill(y, Values(shape.size(), NAN));
  fill(dx, Values(shape.size(), NAN));
  const ek::Index columns = ek::Index(features);
  const auto modulation =
      matrix_of<RowMatrix<P>>(samples, 3 * features, support::normal<P>(samples * 3 * features, 3, 0, 0.5));
  const auto scale = modulation.middleCols(columns, columns), shift = modulation.middleCols(2 * columns, columns);
  RowMatrix<P> gradients = RowMatrix<P>::Constant(ek::Index(samples), 3 * columns, P(NAN));
  typename Norm::template Saved<ek::accumulator_t<T>> saved;
  Norm::forward(ek::serial, x, scale, shift, y, saved, typename Norm::Options{.eps = 1e-3, .axis = axis});
  Norm::backward(ek::serial, dy, x, scale, saved, dx, gradients.leftCols(columns), gradients.rightCols(columns));
  CHECK(gradients.middleCols(columns, columns).array().isNaN().all());

  const Slab s{rows, features, 1};
  for (std::size_t b = 0; b < samples; ++b) {
    INFO("sample " << b);
    const Values in = part_of(xs, b, rows * features), dout = part_of(dys, b, rows * features);
    const Values w = values_of(RowMatrix<P>(scale.row(ek::Index(b)))),
                 v = values_of(RowMatrix<P>(shift.row(ek::Index(b))));
    auto forward = Norm::Reference::reference(s, in, w, v, {1e-3, true, {}});
    auto backward = Norm::Reference::reference_backward(s, dout, in, w, {1e-3, true, {}});
    for (Values* m : {&forward.y_magnitude, &backward.dx_magnitude})
      for (double& size : *m) size += least;
    Values got_y, got_dx;
    for (std::size_t t = 0; t < rows; ++t)
      for (std::size_t i = 0; i < features; ++i) {
        got_y.push_back(double(y.data()[place(b, t, i)]));
        got_dx.push_back(double(dx.data()[place(b, t, i)]));
      }
    const std::size_t summed = least > 0 ? 0 : features;
    CHECK(worst_error(got_y, forward.y, forward.y_magnitude, summed, epsilon) <= 1);
    CHECK(worst_error(got_dx, backward.dx, backward.dx_magnitude, summed, epsilon) <= 1);
    const auto row = [&](ek::Index first) {
      return values_of(RowMatrix<P>(gradients.block(ek::Index(b), first, 1, columns)));
    };
    CHECK(worst_error(row(0), backward.dweight, backward.dweight_magnitude, rows * features, epsilon_of<P>()) <= 1);
    CHECK(worst_error(row(2 * columns), backward.dbias, backward.dbias_magnitude, rows, epsilon_of<P>()) <= 1);
    for (std::size_t t = 0; t < rows; ++t)
      CHECK(std::abs(double(saved.rstd(ek::Index(b), ek::Index(t))) / forward.rstd[t] - 1) <
            1e-4);  // the right row; its accuracy shows in y
  }
}

template <class Norm, class T, class P>
void check_matrix(const Shape& shape, double epsilon, double least = 0) {
  check<Norm, T, P>(
      shape, RowMatrix<T>(shape.samples * shape.rows, shape.features),
      [=](std::size_t b, std::size_t t, std::size_t i) { return (b * shape.rows + t) * shape.features + i; }, {},
      epsilon, least);
}

}  // namespace

TEMPLATE_TEST_CASE("adaptive norms equal the norm's reference sample by sample", "[norms][adaptive]", AdaptiveLayerNorm,
                   AdaptiveRmsNorm) {
  for (const std::size_t samples : Counts{1, 3, 9})
    for (const std::size_t rows : Counts{1, 7, 130})
      for (const std::size_t features : Counts{1, 5, 16, 33, 77})
        check_matrix<TestType, float, float>({samples, rows, features}, epsilon_of<float>());
}

TEST_CASE("adaptive_layer_norm finds the samples in every layout", "[norms][adaptive]") {
  const auto run = [](auto x, const Place& place, ek::Axes axis) {
    check<AdaptiveLayerNorm, float, float>({4, 6, 19}, x, place, axis, epsilon_of<float>());
  };
  using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;
  using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  using ColTensor3 = Eigen::Tensor<float, 3>;
  using ColTensor4 = Eigen::Tensor<float, 4>;
  run(Tensor3(4, 6, 19), [](auto b, auto t, auto i) { return (b * 6 + t) * 19 + i; }, {});
  run(Tensor4(4, 2, 3, 19), [](auto b, auto t, auto i) { return (b * 6 + t) * 19 + i; }, {});
  run(
      Tensor4(4, 19, 2, 3), [](auto b, auto t, auto i) { return (b * 19 + i) * 6 + t; }, 1);
  run(
      ColTensor3(19, 6, 4), [](auto b, auto t, auto i) { return (b * 6 + t) * 19 + i; }, 0);
  run(
      ColTensor3(4, 6, 19), [](auto b, auto t, auto i) { return (i * 6 + t) * 4 + b; }, 2);
  run(
      ColTensor4(4, 2, 3, 19), [](auto b, auto t, auto i) { return (i * 6 + t) * 4 + b; }, 3);
  run(
      ColMatrix<float>(24, 19), [](auto b, auto t, auto i) { return i * 24 + b * 6 + t; }, 1);
}

TEMPLATE_TEST_CASE("adaptive_layer_norm of other scalars", "[norms][adaptive]", Eigen::half, Eigen::bfloat16) {
  const bool half = std::is_same_v<TestType, Eigen::half>;
  check_matrix<AdaptiveLayerNorm, TestType, float>({3, 5, 33}, (half ? 0x1p-10 : 0x1p-7) / 12,
                                                   half ? 0x1p-14 : 0x1p-126);
}

TEMPLATE_TEST_CASE("adaptive norms' gradients equal central differences", "[norms][adaptive]", AdaptiveLayerNorm,
                   AdaptiveRmsNorm) {
  const std::size_t samples = 2, rows = 3, features = 9;
  const Values x = support::normal<double>(samples * rows * features, 1), dys = support::normal<double>(x.size(), 2);
  const Values scale = support::normal<double>(samples * features, 3), shift = support::normal<double>(scale.size(), 4);
  const auto data = [&](const Values& v) { return matrix_of<RowMatrix<double>>(samples * rows, features, v); };
  const auto parameter = [&](const Values& v) { return matrix_of<RowMatrix<double>>(samples, features, v); };
  const typename TestType::Options options{.eps = 1e-2};
  const auto loss = [&](const Values& a, const Values& b, const Values& c) {
    RowMatrix<double> y(samples * rows, features);
    TestType::forward(ek::serial, data(a), parameter(b), parameter(c), y, ek::none, options);
    return support::weighted_sum(values_of(y), dys);
  };
  RowMatrix<double> y(samples * rows, features), dx(samples * rows, features), dscale(samples, features),
      dshift(samples, features);
  typename TestType::template Saved<double> saved;
  TestType::forward(ek::serial, data(x), parameter(scale), parameter(shift), y, saved, options);
  TestType::backward(ek::serial, data(dys), data(x), parameter(scale), saved, dx, dscale, dshift);
  const auto compare = [](const auto& got, const auto& f, const Values& at) {
    CHECK(support::gradient_distance(values_of(got), support::central_differences(f, at)) <
          support::gradient_tolerance);
  };
  compare(
      dx, [&](const Values& v) { return loss(v, scale, shift); }, x);
  compare(
      dscale, [&](const Values& v) { return loss(x, v, shift); }, scale);
  compare(
      dshift, [&](const Values& v) { return loss(x, scale, v); }, shift);
}

TEST_CASE("adaptive_layer_norm with zero scale and shift is layer_norm", "[norms][adaptive]") {
  const RowMatrix<float> x = RowMatrix<float>::Random(12, 45), zero = RowMatrix<float>::Zero(3, 45);
  RowMatrix<float> y(12, 45), expected(12, 45);
  ek::adaptive_layer_norm(ek::serial, x, zero, ek::none, y, ek::none);
  ek::layer_norm(ek::serial, x, ek::none, ek::none, expected, ek::none, {.eps = 1e-6});
  CHECK((y.array() == expected.array()).all());
}

TEST_CASE("adaptive_layer_norm gives the same bits on every device and in place", "[norms][adaptive][devices]") {
  for (const std::size_t samples : Counts{2, 16}) {
    for (const std::size_t features : Counts{5, 64, 77}) {
      const std::size_t rows = 37;
      const Data data = make_data<float>({samples * rows, features, 1}, features);
      const auto x = matrix_of<RowMatrix<float>>(samples * rows, features, data.x),
                 dy = matrix_of<RowMatrix<float>>(samples * rows, features, data.dy);
      const RowMatrix<float> scale = x.topRows(ek::Index(samples)), shift = dy.topRows(ek::Index(samples));
      RowMatrix<float> y = x, dx = x, dscale = scale, dshift = scale;
      ek::AdaptiveLayerNormSaved<float> saved, other;
      ek::adaptive_layer_norm(ek::serial, x, scale, shift, y, saved);
      ek::adaptive_layer_norm_backward(ek::serial, dy, x, scale, saved, dx, dscale, dshift);
      support::for_each_device([&](const auto& device) {
        RowMatrix<float> a = x, got = dy, got_dscale = scale, got_dshift = scale;
        ek::adaptive_layer_norm(device, a, scale, shift, a, other);
        CHECK((a.array() == y.array()).all());
        CHECK_THROWS_AS(ek::adaptive_layer_norm_backward(device, dy, a, scale, other, got, got_dscale, got_dshift),
                        ek::ShapeError);
        ek::adaptive_layer_norm(device, x, scale, shift, a, other);
        ek::adaptive_layer_norm_backward(device, got, x, scale, other, got, got_dscale, got_dshift);
        CHECK((got.array() == dx.array()).all());
        CHECK((got_dscale.array() == dscale.array()).all());
        CHECK((got_dshift.array() == dshift.array()).all());
      });
    }
  }
}

TEST_CASE("adaptive_layer_norm names what does not fit", "[norms][adaptive][errors]") {
  const RowMatrix<float> x = RowMatrix<float>::Random(12, 8), scale = RowMatrix<float>::Zero(3, 8);
  RowMatrix<float> y(12, 8), dscale(2, 8);
  ek::AdaptiveLayerNormSaved<float> saved;
  const RowMatrix<float> five = RowMatrix<float>::Zero(5, 8), narrow = RowMatrix<float>::Zero(3, 7);
  CHECK_THROWS_WITH(
      ek::adaptive_layer_norm(ek::serial, x, five, ek::none, y, saved),
      "adaptive_layer_norm: scale has 5 samples, which the 12 rows of x do not fall into (x is 12x8, axis "
      "1)");
  CHECK_THROWS_WITH(ek::adaptive_layer_norm(ek::serial, x, narrow, ek::none, y, saved),
                    "adaptive_layer_norm: scale is 3x7, expected 3x8");
  CHECK_THROWS_WITH(ek::adaptive_layer_norm(ek::serial, x, scale, five, y, saved),
                    "adaptive_layer_norm: shift is 5x8, expected 3x8");
  CHECK_THROWS_WITH(ek::adaptive_layer_norm(ek::serial, x, ColMatrix<float>(scale), ek::none, y, saved),
                    support::contains_text("is strided, expected contiguous features"));
  CHECK_THROWS_WITH(ek::adaptive_layer_norm_backward(ek::serial, x, x, scale, saved, y, ek::none, ek::none),
                    support::contains_text("adaptive_layer_norm_backward: saved is empty"));
  ek::adaptive_layer_norm(ek::serial, x, scale, ek::none, y, saved);
  CHECK_THROWS_WITH(ek::adaptive_layer_norm_backward(ek::serial, x, x, scale, saved, y, dscale, ek::none),
                    "adaptive_layer_norm_backward: dscale is 2x8, expected 3x8");
  CHECK_THROWS_WITH(ek::adaptive_layer_norm_backward(ek::serial, x, x, five, saved, y, ek::none, ek::none),
                    "adaptive_layer_norm_backward: scale is 5x8, expected 3x8");
}
