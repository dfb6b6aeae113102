#include "evenkeel/fold/fold.hpp"

#include "evenkeel/norms/batch_norm.hpp"
#include "evenkeel/norms/rms_norm.hpp"
#include "fold/layers.hpp"
#include "support/catch.hpp"

#include <Eigen/Core>
#include <unsupported/Eigen/CXX11/Tensor>

#include <array>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using namespace fold_test;
using Index = ek::Index;
template <class T>
using Vector = Eigen::Matrix<T, Eigen::Dynamic, 1>;
template <class T>
using RowMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// A weight in its own axes: axis[c] is where canonical axis c of Layer::w stands; kernel axes keep their order.
struct Form {
  std::vector<Index> extent;  // canonical
  std::vector<int> axis;
};

template <class W>
auto& element(W& w, const std::vector<Index>& at) {
  if constexpr (requires { w.dimensions(); }) {
    std::array<Index, W::NumDimensions> index{};
    for (std::size_t a = 0; a < index.size(); ++a) index[a] = at[a];
    return w(index);
  } else {
    return w(at[0], at[1]);
  }
}

// f(element of w, element of the canonical values), for all.
template <class W, class F>
void for_each_pair(W& w, const Form& form, Values& values, const F& f) {
  std::vector<Index> at(form.extent.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::size_t rest = i;
    for (std::size_t c = form.extent.size(); c-- > 0;) {
      at[std::size_t(form.axis[c])] = Index(rest) % form.extent[c];
      rest /= std::size_t(form.extent[c]);
    }
    f(element(w, at), values[i]);
  }
}

enum class Side { next, previous };

// Folds in place and out of place, with and without a bias, and compares the layers' outputs.
template <class W>
void check_fold(Side side, W& w, W& apart, const Form& form, Layer layer, const ek::AffineMap& map) {
  using T = typename W::Scalar;
  const bool next = side == Side::next;
  ek::FoldOptions options{.padding = ek::Padding::no_zeros};
  options.axes = {.input = {form.axis[layer.transposed ? 0 : 1]},
                  .output = {form.axis[layer.transposed ? 1 : 0]},
                  .groups = Index(layer.groups),
                  .grouped = layer.transposed ? ek::GroupedAxis::input : ek::GroupedAxis::output};
  const Values x = support::normal<double>(layer.in * positions, 17, 0.3);
  Values values = layer.w;
  for (const bool has_bias : {true, false}) {
    if (!has_bias) layer.b.clear();
    const Values expected = next ? forward(layer, apply(map, x)) : apply(map, forward(layer, x));
    Vector<T> b(Index(layer.out)), b_apart(Index(layer.out));
    for (std::size_t o = 0; o < layer.out; ++o) b[Index(o)] = has_bias ? T(layer.b[o]) : T(NAN);
    for_each_pair(w, form, values, [](T& to, double from) { to = T(from); });
    for_each_pair(apart, form, values, [](T& to, double) { to = T(NAN); });
    b_apart.setConstant(T(NAN));
    const auto fold = [&](const auto& bias, W& folded, Vector<T>& folded_bias) {
      if (next)
        ek::fold_into_next(map, w, bias, folded, folded_bias, options);
      else
        ek::fold_into_previous(map, w, bias, folded, folded_bias, options);
    };
    if (has_bias) {
      fold(b, apart, b_apart);
      fold(b, w, b);
    } else {
      fold(ek::none, apart, b_apart);
      fold(ek::none, w, b);
    }
    CHECK((b.array() == b_apart.array()).all());
    Layer folded = layer;
    folded.b.assign(b.data(), b.data() + b.size());
    for_each_pair(w, form, folded.w, [](const T& from, double& to) { to = double(from); });
    bool same = true;
    for_each_pair(apart, form, folded.w, [&](const T& from, double& to) { same = same && double(from) == to; });
    CHECK(same);
    // Each product of the folded layer has one rounding of its own; a fold that cancels has roundings of what it took
    // the mean of, hence 4 terms of the largest.
    double magnitude = 0;
    for (const double v : folded.w) magnitude = std::max(magnitude, std::abs(v));
    magnitude = (magnitude + 1) * largest(x) * double(layer.in * layer.kernel);
    CHECK(distance(forward(folded, x), expected) <= 4 * double(std::numeric_limits<T>::epsilon()) * magnitude);
    CHECK(largest(expected) > 0.5);
  }
}

// In double every form of a weight; in float, whose roundings differ and whose places do not, two.
template <class T>
void check_forms(Side side, const ek::AffineMap& map, const ek::AffineMap& small) {
  using Eigen::ColMajor, Eigen::RowMajor;
  const auto each = [&](auto w, const Form& form, const Layer& layer, const ek::AffineMap& m) {
    auto apart = w;
    check_fold(side, w, apart, form, layer, m);
  };
  const Layer linear = random_layer<T>({.in = 7, .out = 5}, 1);
  const Layer convolution = random_layer<T>({.in = 7, .out = 5, .kernel = 3}, 3);
  const Form out_in{{5, 7}, {0, 1}}, in_out{{5, 7}, {1, 0}};
  each(RowMatrix<T>(5, 7), out_in, linear, map);
  each(Eigen::Tensor<T, 3, ColMajor>(3, 7, 5), {{5, 7, 3}, {2, 1, 0}}, convolution, map);
  if constexpr (std::is_same_v<T, double>) {
    each(Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>(5, 7), out_in, linear, map);
    each(RowMatrix<T>(7, 5), in_out, linear, map);
    each(Eigen::Matrix<T, 7, 5>(), in_out, linear, map);
    each(Eigen::Tensor<T, 2>(7, 5), in_out, linear, map);
    each(Eigen::Tensor<T, 3, RowMajor>(5, 7, 3), {{5, 7, 3}, {0, 1, 2}}, convolution, map);
    each(Eigen::Tensor<T, 3, ColMajor>(7, 3, 5), {{5, 7, 3}, {2, 0, 1}}, convolution, map);
    const Layer square = random_layer<T>({.in = 4, .out = 2, .kernel = 4}, 5);
    each(Eigen::Tensor<T, 4, RowMajor>(2, 4, 2, 2), {{2, 4, 2, 2}, {0, 1, 2, 3}}, square, small);
    each(Eigen::Tensor<T, 5, ColMajor>(2, 4, 1, 2, 2), {{2, 4, 2, 1, 2}, {0, 1, 3, 2, 4}}, square, small);
    Values memory(500, 3.0);
    using Map = Eigen::Map<RowMatrix<T>, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;
    Map w(memory.data(), 5, 7, {20, 2}), apart(memory.data() + 200, 5, 7, {20, 2});
    check_fold(side, w, apart, out_in, linear, map);
    CHECK(memory[1] == 3);
    auto block = apart.template block<5, 7>(0, 0);
    auto other = w.template block<5, 7>(0, 0);
    check_fold(side, block, other, out_in, linear, map);
  }
}

TEST_CASE("a norm folds into the layer behind it, however the weight is stored", "[fold]") {
  for (const bool centred : {false, true})
    for (const bool offset : {true, false}) {
      INFO("centred " << centred << ", offset " << offset);
      const auto map = random_map(7, 11, offset, centred), small = random_map(4, 12, offset, centred);
      check_forms<double>(Side::next, map, small);
      check_forms<float>(Side::next, map, small);
    }
}

TEST_CASE("a norm folds into the layer before it, however the weight is stored", "[fold]") {
  for (const bool centred : {false, true})
    for (const bool offset : {true, false}) {
      INFO("centred " << centred << ", offset " << offset);
      const auto map = random_map(5, 13, offset, centred), small = random_map(2, 14, offset, centred);
      check_forms<double>(Side::previous, map, small);
      check_forms<float>(Side::previous, map, small);
    }
}

TEST_CASE("groups and transposed convolutions fold by their named axes", "[fold]") {
  using W = Eigen::Tensor<float, 3, Eigen::RowMajor>;
  for (const std::size_t groups : {1u, 2u, 4u})
    for (const bool transposed : {false, true}) {
      INFO(groups << " groups, transposed " << transposed);
      const Layer layer =
          random_layer<float>({.in = 4, .out = 8, .kernel = 3, .groups = groups, .transposed = transposed}, groups);
      const Index a = transposed ? 4 : 8, c = Index(transposed ? 8 / groups : 4 / groups);
      W w(a, c, 3), apart(a, c, 3);
      const Form form{{a, c, 3}, {0, 1, 2}};
      check_fold(Side::previous, w, apart, form, layer, random_map(8, 21));
      check_fold(Side::next, w, apart, form, layer, random_map(4, 22, !transposed));
    }
}

TEST_CASE("several input or output axes count their features in the order of their names", "[fold]") {
  // A projection to 2 heads of 3 values, (features, heads, head size), and a bias (heads, head size).
  const Layer layer = random_layer<double>({.in = 4, .out = 6}, 31);
  const Values x = support::normal<double>(4 * positions, 32);
  Eigen::Tensor<double, 3> w(4, 2, 3);
  Eigen::Tensor<double, 2> b(2, 3);
  for (Index o = 0; o < 6; ++o) {
    b(o / 3, o % 3) = layer.b[std::size_t(o)];
    for (Index i = 0; i < 4; ++i) w(i, o / 3, o % 3) = layer.w[std::size_t(o * 4 + i)];
  }
  const auto before = random_map(4, 33), behind = random_map(6, 34);
  const ek::FoldOptions options{.axes = {.input = {0}, .output = {-2, -1}}};
  ek::fold_into_next(before, w, b, w, b, options);
  ek::fold_into_previous(behind, w, b, w, b, options);
  Layer folded = layer;
  for (Index o = 0; o < 6; ++o) {
    folded.b[std::size_t(o)] = b(o / 3, o % 3);
    for (Index i = 0; i < 4; ++i) folded.w[std::size_t(o * 4 + i)] = w(i, o / 3, o % 3);
  }
  CHECK(distance(forward(folded, x), apply(behind, forward(layer, apply(before, x)))) < 1e-13);
}

TEST_CASE("the maps of norms are what the norms compute", "[fold]") {
  const std::size_t d = 6;
  const Index n = 6;
  const auto parameter = [](auto& p, std::uint64_t seed) {
    const Values values = support::normal<float>(std::size_t(p.size()), seed, 0.5);
    for (Index i = 0; i < p.size(); ++i) p.value()[i] = float(values[std::size_t(i)]);
    return values;
  };
  RowMatrix<float> x(3, n), y(3, n), w(5, n), ones = RowMatrix<float>::Zero(3, n);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = float(support::normal<float>(18, 41)[std::size_t(i)]);
  for (Index i = 0; i < w.size(); ++i) w.data()[i] = float(support::normal<float>(30, 42)[std::size_t(i)]);
  const ek::FoldOptions options{.axes = {.input = {1}, .output = {0}}};
  Vector<float> b(5);

  SECTION("BatchNorm at inference, before a linear layer") {
    ek::BatchNorm<float> norm(n, {.eps = 1e-3});
    parameter(norm.weight, 43);
    parameter(norm.bias, 44);
    for (std::size_t c = 0; c < d; ++c) {
      norm.running.mean()[c] = float(c) - 2;
      norm.running.var()[c] = float(c + 1) / 4;
    }
    norm.training = false;
    norm.forward(ek::serial, x, y);
    const RowMatrix<float> expected = y * w.transpose();
    ek::fold_into_next(ek::batch_norm_map(norm), w, ek::none, w, b, options);
    const RowMatrix<float> got = (x * w.transpose()).rowwise() + b.transpose();
    CHECK((got - expected).cwiseAbs().maxCoeff() < 2e-6f * expected.cwiseAbs().maxCoeff() + 1e-5f);
  }
  SECTION("the weight and the bias of RMSNorm, which stays") {
    for (const bool unit_offset : {false, true}) {
      ek::RmsNorm<float> norm(n, {.unit_offset = unit_offset}, ek::Affine::weight_and_bias);
      parameter(norm.weight, 45);
      parameter(norm.bias, 46);
      norm.forward(ek::serial, x, y);
      const RowMatrix<float> expected = y * w.transpose();
      RowMatrix<float> folded(5, n);
      ek::fold_into_next(ek::affine_map(norm), w, ek::none, folded, b, options);
      ek::rms_norm(ek::serial, x, ek::none, y, ek::none);
      const RowMatrix<float> got = (y * folded.transpose()).rowwise() + b.transpose();
      CHECK((got - expected).cwiseAbs().maxCoeff() < 1e-5f);
    }
  }
  SECTION("loose tensors") {
    const Vector<double> scale = Vector<double>::LinSpaced(3, 1, 3), bias = Vector<double>::LinSpaced(3, -1, 1);
    const ek::AffineMap map = ek::taper_norm_map(0.5, scale, bias, true);
    CHECK(map.scale == Values{0.5, 1, 1.5});
    CHECK(map.offset == Values{-1, 0, 1});
    CHECK(map.centred);
    CHECK(ek::affine_map(scale, bias, true).scale == Values{2, 3, 4});
    CHECK(ek::affine_map(scale, bias).scale == Values{1, 2, 3});
    CHECK(ek::affine_map(scale, bias).offset == Values{-1, 0, 1});
    CHECK_FALSE(ek::taper_norm_map(0.5, scale).centred);
    CHECK_FALSE(ek::taper_norm_map(0.5, scale).has_offset());
  }
  SECTION("machine epsilon is that of the running statistics") {
    const Vector<float> var = Vector<float>::Zero(2), mean = var;
    CHECK(ek::batch_norm_map(ek::none, ek::none, mean, var, 0.25).scale == Values{2, 2});
    ek::BatchNorm<float> norm(1, {.eps = ek::machine_epsilon});
    norm.running.var()[0] = 0;
    CHECK(ek::batch_norm_map(norm).scale[0] == 1 / std::sqrt(double(std::numeric_limits<float>::epsilon())));
  }
}

TEST_CASE("a centred map of ones makes outputs whose row mean is 0", "[fold]") {
  const Layer layer = random_layer<double>({.in = 3, .out = 4}, 51);
  RowMatrix<double> w = Eigen::Map<const RowMatrix<double>>(layer.w.data(), 4, 3);
  Vector<double> b = Eigen::Map<const Vector<double>>(layer.b.data(), 4);
  ek::fold_into_previous({Values(4, 1.0), {}, true}, w, b, w, b, {.axes = {.input = {1}, .output = {0}}});
  CHECK(w.colwise().sum().cwiseAbs().maxCoeff() < 1e-15);
  CHECK(std::abs(b.sum()) < 1e-15);
}

TEST_CASE("16-bit weights are rounded once", "[fold]") {
  // 1 + 2^-11 is the middle of two halves; a little more than that, lost in a float, goes up.
  const auto folded = [](auto one, double scale) {
    using T = decltype(one);
    RowMatrix<T> w = RowMatrix<T>::Constant(1, 1, one);
    ek::fold_into_next({{scale}, {}, false}, w, ek::none, w, ek::none, {.axes = {.input = {1}, .output = {0}}});
    return double(w(0, 0));
  };
  CHECK(folded(Eigen::half(1.0f), 1 + 0x1p-11 + 0x1p-40) == 1 + 0x1p-10);
  CHECK(folded(Eigen::half(1.0f), 1 + 0x1p-11) == 1);
  CHECK(folded(Eigen::half(1.0f), 1 + 0x3p-11 - 0x1p-40) == 1 + 0x1p-10);
  CHECK(folded(Eigen::half(-1.0f), 1 + 0x1p-11 + 0x1p-40) == -1 - 0x1p-10);
  CHECK(folded(Eigen::bfloat16(1.0f), 1 + 0x1p-8 + 0x1p-40) == 1 + 0x1p-7);
  CHECK(folded(Eigen::half(1.0f), 1e300) == INFINITY);
}

TEST_CASE("a bias may lie between the columns of its weight", "[fold]") {
  Eigen::MatrixXd both = Eigen::MatrixXd::Ones(3, 4);  // (in + 1, out)
  ek::fold_into_next({{2, 3}, {10, 20}, false}, both.topRows(2), both.row(2), both.topRows(2), both.row(2),
                     {.axes = {.input = {0}, .output = {1}}});
  Eigen::MatrixXd expected(3, 4);
  expected << 2, 2, 2, 2, 3, 3, 3, 3, 31, 31, 31, 31;
  CHECK(both == expected);
}

TEST_CASE("a fold that would be wrong is refused before anything is written", "[fold]") {
  RowMatrix<float> w = RowMatrix<float>::Ones(4, 6);
  Vector<float> b = Vector<float>::Ones(4);
  Eigen::Tensor<float, 4, Eigen::RowMajor> kernel(4, 6, 3, 3);
  kernel.setConstant(1);
  const ek::AffineMap six = random_map(6, 61), four = random_map(4, 62);
  const ek::FoldOptions torch{.axes = {.input = {1}, .output = {0}}};
  const auto refused = [](const auto& call, const std::string& message) {
    CHECK_THROWS_AS(call(), ek::ShapeError);
    CHECK_THROWS_WITH(call(), message);
  };
  const auto next = [&](const ek::AffineMap& map, const ek::FoldOptions& options, const std::string& message) {
    refused([&] { ek::fold_into_next(map, w, b, w, b, options); }, message);
  };
  next(four, torch, "fold_into_next: the norm has 4 features, weight has 6 inputs (weight is 4x6)");
  next({{1, 1, 1, 1, 1, 1}, {1}, false}, torch,
       "fold_into_next: the norm has 6 scales and 1 offsets, expected as many");
  next(six, {}, "fold_into_next: axes.input names no axis, expected at least one (weight is 4x6)");
  next(six, {.axes = {.input = {2}, .output = {0}}},
       "fold_into_next: axes.input names axis 2, expected one from -2 to 1 (weight is 4x6)");
  next(six, {.axes = {.input = {1}, .output = {-1}}},
       "fold_into_next: axes.output names axis -1, which is named already, expected every axis at most once (weight is "
       "4x6)");
  next(six, {.axes = {.input = {1}, .output = {0}, .groups = 3}},
       "fold_into_next: axes.groups is 3, expected a divisor of the 4 outputs (weight is 4x6)");
  next({Values(12, 1.0), {}, true}, {.axes = {.input = {1}, .output = {0}, .groups = 2}},
       "fold_into_next: the norm subtracts the mean of all 12 features, and each of the 2 groups has its own, expected "
       "one group (weight is 4x6)");
  refused([&] { ek::fold_into_previous(six, w, b, w, b, torch); },
          "fold_into_previous: the norm has 6 features, weight has 4 outputs (weight is 4x6)");
  refused([&] { ek::fold_into_next(six, w, ek::none, w, ek::none, torch); },
          "fold_into_next: the norm has an offset and folded_bias is none, expected 4 values (weight is 4x6)");
  refused([&] { ek::fold_into_next(six, w, b, w, Vector<float>(5), torch); },
          "fold_into_next: folded_bias has 5 values, weight has 4 outputs (weight is 4x6)");
  refused([&] { ek::fold_into_next(six, w, b, RowMatrix<float>(4, 5), b, torch); },
          "fold_into_next: folded_weight is 4x5, weight is 4x6");
  refused([&] { ek::fold_into_next(six, w.topRows(3), b.head(3), w.bottomRows(3), b.head(3), torch); },
          "fold_into_next: folded_weight overlaps weight, expected memory apart from it");
  refused([&] { ek::fold_into_next(six, w, ek::none, w, w.row(0).head(4), torch); },
          "fold_into_next: folded_bias overlaps folded_weight, expected memory apart from it");
  refused([&] { ek::fold_into_next(six, w.topRows(3), b.head(3), w.topRows(3), b.tail(3), torch); },
          "fold_into_next: folded_bias overlaps bias, expected memory apart from it");

  const auto convolution = [&](const ek::FoldOptions& options, const std::string& message) {
    refused([&] { ek::fold_into_next(six, kernel, b, kernel, b, options); }, message);
  };
  convolution(torch,
              "fold_into_next: the norm has an offset, which zero padding would not have, expected a padding option "
              "that says there is none (weight is 4x6x3x3)");
  convolution({torch.axes, ek::Padding::zeros},
              "fold_into_next: the norm has an offset, which is not in the zeros of the padding, expected "
              "Padding::no_zeros or an offset of 0 (weight is 4x6x3x3)");
  next(six, {torch.axes, ek::Padding::zeros},
       "fold_into_next: the norm has an offset, which is not in the zeros of the padding, expected Padding::no_zeros "
       "or an offset of 0 (weight is 4x6)");
  refused(
      [&] {
        ek::fold_into_next(four, kernel, Vector<float>(6), kernel, Vector<float>(6),
                           {{.input = {0}, .output = {1}, .grouped = ek::GroupedAxis::input}, ek::Padding::no_zeros});
      },
      "fold_into_next: the norm has an offset, and a transposed convolution does not add a whole kernel of it to each "
      "output, expected an offset of 0 (weight is 4x6x3x3)");
  CHECK((w.array() == 1).all());
  CHECK((b.array() == 1).all());
  CHECK((Eigen::Map<const Eigen::ArrayXf>(kernel.data(), kernel.size()) == 1).all());

  // An offset of zeros is none.
  ek::fold_into_next({six.scale, Values(6, 0.0), false}, kernel, b, kernel, b, {torch.axes, ek::Padding::zeros});
  CHECK(kernel(1, 2, 0, 1) == float(six.scale[2]));
  CHECK((b.array() == 1).all());
  ek::fold_into_next({six.scale, Values(6, 0.0), false}, w, ek::none, w, ek::none, torch);
  CHECK(w(3, 5) == float(six.scale[5]));

  refused([&] { ek::affine_map(six.scale.size() == 6 ? Vector<float>(6) : Vector<float>(1), Vector<float>(5)); },
          "affine_map: bias has 5 values, weight has 6");
  refused([&] { ek::batch_norm_map(b, b, b, Vector<float>(3)); },
          "batch_norm_map: running_var has 3 values, running_mean has 4");
  refused([&] { ek::batch_norm_map(Vector<float>(3), b, b, b); },
          "batch_norm_map: weight has 3 values, running_mean has 4");
  refused([&] { ek::batch_norm_map(b, b, b, b, -1); },
          "batch_norm_map: eps is -1.000000, expected a finite number of at least 0");
  refused([&] { ek::taper_norm_map(1, b, Vector<float>(3)); }, "taper_norm_map: bias has 3 values, scale_weight has 4");
}

}  // namespace
