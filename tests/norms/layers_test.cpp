// The layer classes: what they own, and that they are thin users of the free functions.
#include "norms/norm_under_test.hpp"

#include <string>

using namespace norms_test;

namespace {

struct Seen {
  std::string name;
  ek::Index size;
  bool weight_decay;
  float* value;
  float* gradient;
};

template <class Layer>
std::vector<Seen> parameters_of(Layer& layer) {
  std::vector<Seen> seen;
  layer.for_each_parameter([&](ek::ParameterRef<float> p) {
    seen.push_back({std::string(p.name), p.size, p.weight_decay, p.value, p.gradient});
  });
  return seen;
}

template <class Layer>
void check_ownership(Layer&& layer, const std::vector<std::string>& names, float weight_start) {
  const auto seen = parameters_of(layer);
  REQUIRE(seen.size() == names.size());
  for (std::size_t i = 0; i < seen.size(); ++i) {
    CHECK(seen[i].name == names[i]);
    CHECK(seen[i].size == 24);
    CHECK_FALSE(seen[i].weight_decay);  // norm weights and biases are not decayed
    for (ek::Index j = 0; j < 24; ++j) {
      CHECK(seen[i].value[j] == (seen[i].name == "weight" ? weight_start : 0.0f));
      CHECK(seen[i].gradient[j] == 0);
    }
  }
}

// Two steps, so that the accumulation of gradients shows.
template <class Norm>
void check_against_free_functions(ek::Affine affine) {
  const std::size_t rows = 6, features = 24;
  const Data data = make_data<float>({rows, features, 1}, 5);
  const auto x = matrix_of<RowMatrix<float>>(rows, features, data.x),
             dy = matrix_of<RowMatrix<float>>(rows, features, data.dy);
  const typename Norm::Options options{.eps = 1e-3};
  typename Norm::template Layer<float> layer(features, options, affine);
  Vector<float> weight = Vector<float>::Ones(features), bias = Vector<float>::Zero(features);
  for (const Seen& p : parameters_of(layer)) {
    Vector<float>& value = p.name == "weight" ? weight : bias;
    value = vector_of<float>(p.name == "weight" ? data.weight : data.bias);
    for (ek::Index i = 0; i < p.size; ++i) p.value[i] = value(i);
  }
  RowMatrix<float> y(rows, features), dx(rows, features), layer_y(rows, features), layer_dx(rows, features);
  Vector<float> dweight = Vector<float>::Zero(features), dbias = dweight;
  typename Norm::template Saved<float> saved;
  for (int step = 0; step < 2; ++step) {
    layer.forward(ek::serial, x, layer_y);
    layer.backward(ek::serial, dy, x, layer_dx);
    Norm::forward(ek::serial, x, weight, bias, y, saved, options);
    Norm::backward(ek::serial, dy, x, weight, saved, dx, dweight, dbias);
  }
  // A weight of ones and a bias of zeros change no bits of y, and a missing parameter is those. In dx the product with
  // the weight may be contracted where there is one: a unit in the last place of gradients of a few units.
  CHECK((layer_y.array() == y.array()).all());
  CHECK((layer_dx - dx).cwiseAbs().maxCoeff() < (affine == ek::Affine::off ? 1e-6f : 1e-30f));
  for (const Seen& p : parameters_of(layer)) {
    const Vector<float>& expected = p.name == "weight" ? dweight : dbias;
    for (ek::Index i = 0; i < p.size; ++i) CHECK(p.gradient[i] == expected(i));
  }
}

template <class Norm>
void check_fused(ek::Affine affine) {
  const std::size_t rows = 6, features = 24;
  const Data data = make_data<float>({rows, features, 1}, 6);
  const auto x = matrix_of<RowMatrix<float>>(rows, features, data.x),
             dy = matrix_of<RowMatrix<float>>(rows, features, data.dy);
  const RowMatrix<float> residual = dy * 0.5f, dsum = x * 0.25f, total = x + residual;
  typename Norm::template Layer<float> layer(features, {}, affine), plain(features, {}, affine);
  RowMatrix<float> sum(rows, features), y(rows, features), dx(rows, features), plain_y(rows, features),
      plain_dx(rows, features);
  layer.add_forward(ek::serial, x, residual, sum, y);
  layer.add_backward(ek::serial, dy, ek::none, sum, dx);
  plain.forward(ek::serial, total, plain_y);
  plain.backward(ek::serial, dy, total, plain_dx);
  CHECK((sum.array() == total.array()).all());
  CHECK((y.array() == plain_y.array()).all());
  CHECK((dx.array() == plain_dx.array()).all());
  const auto fused = parameters_of(layer), parts = parameters_of(plain);
  for (std::size_t i = 0; i < fused.size(); ++i) {
    for (ek::Index j = 0; j < fused[i].size; ++j) CHECK(fused[i].gradient[j] == parts[i].gradient[j]);
  }
  layer.add_backward(ek::serial, dy, dsum, sum, dx);
  CHECK((dx - plain_dx - dsum).cwiseAbs().maxCoeff() < 1e-5f);
}

}  // namespace

TEST_CASE("norm layers own their parameters and name them as torch does", "[norms][layers]") {
  using ek::Affine;
  check_ownership(ek::RmsNorm<float>(24), {"weight"}, 1);
  check_ownership(ek::RmsNorm<float>(24, {}, Affine::weight_and_bias), {"weight", "bias"}, 1);
  check_ownership(ek::RmsNorm<float>(24, {}, Affine::off), {}, 1);
  check_ownership(ek::LayerNorm<float>(24), {"weight", "bias"}, 1);
  check_ownership(ek::LayerNorm<float>(24, {}, Affine::weight), {"weight"}, 1);
  check_ownership(ek::LayerNorm<float>(24, {}, Affine::off), {}, 1);
}

TEST_CASE("a weight with unit offset starts at zero, so that a new layer scales by one", "[norms][layers]") {
  check_ownership(ek::RmsNorm<float>(24, {.unit_offset = true}), {"weight"}, 0);
  check_ownership(ek::LayerNorm<float>(24, {.unit_offset = true}), {"weight", "bias"}, 0);
}

TEMPLATE_TEST_CASE("norm layers equal the free functions", "[norms][layers]", RmsNormUnderTest, LayerNormUnderTest) {
  for (ek::Affine affine : {ek::Affine::off, ek::Affine::weight, ek::Affine::weight_and_bias}) {
    check_against_free_functions<TestType>(affine);
  }
}

TEMPLATE_TEST_CASE("norm layers fuse the residual sum", "[norms][layers]", RmsNormUnderTest, LayerNormUnderTest) {
  check_fused<TestType>(ek::Affine::off);
  check_fused<TestType>(ek::Affine::weight);
}

TEMPLATE_TEST_CASE("a norm layer refuses another number of features", "[norms][layers]", RmsNormUnderTest,
                   LayerNormUnderTest) {
  for (ek::Affine affine : {ek::Affine::off, ek::Affine::weight}) {
    typename TestType::template Layer<float> layer(24, {}, affine);
    const RowMatrix<float> x = RowMatrix<float>::Ones(3, 25);
    RowMatrix<float> y(3, 25);
    CHECK_THROWS_AS(layer.forward(ek::serial, x, y), ek::ShapeError);
  }
}
