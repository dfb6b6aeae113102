// The norms against PyTorch's own numbers; golden_values.hpp says which version made them.
#include "golden/golden_values.hpp"
#include "norms/norm_under_test.hpp"

using namespace norms_test;

namespace {

// Largest |got - expected| / max(1, size), size being what `expected` was added up from: y near 0 may be the difference
// of xhat * weight and the bias, and carries the roundings of both.
double distance(const Values& got, const Values& expected, const Values& bias = {}) {
  if (got.size() != expected.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double b = bias.empty() ? 0 : bias[i % bias.size()];
    const double error = std::abs(got[i] - expected[i]) / std::max(1.0, std::abs(expected[i] - b) + std::abs(b));
    if (std::isnan(error)) return INFINITY;
    worst = std::max(worst, error);
  }
  return worst;
}

template <class Norm, class T>
void check(const golden::Input& input, const golden::Result& expected, double eps) {
  const auto rows = std::size_t(input.rows), features = std::size_t(input.features);
  INFO(Norm::name << " of " << rows << " x " << features << ", scalar of " << sizeof(T) << " bytes");
  const auto x = matrix_of<RowMatrix<T>>(rows, features, input.x),
             dy = matrix_of<RowMatrix<T>>(rows, features, input.dy);
  const auto weight = vector_of<T>(input.weight), bias = vector_of<T>(input.bias);
  RowMatrix<T> y(rows, features), dx(rows, features);
  Vector<T> dweight = Vector<T>::Zero(ek::Index(features)), dbias = dweight;
  typename Norm::template Saved<T> saved;
  // Both sides round some ten times: 5e-7 is four roundings of float; a gradient multiplies two such numbers.
  const double forward_limit = sizeof(T) == 4 ? 5e-7 : 4e-15, backward_limit = 4 * forward_limit;
  if (expected.dbias.empty()) {
    Norm::forward(ek::serial, x, weight, ek::none, y, saved, {.eps = eps});
    Norm::backward(ek::serial, dy, x, weight, saved, dx, dweight, ek::none);
  } else {
    Norm::forward(ek::serial, x, weight, bias, y, saved, {.eps = eps});
    Norm::backward(ek::serial, dy, x, weight, saved, dx, dweight, dbias);
    CHECK(distance(values_of(dbias), expected.dbias) / backward_limit <= 1);
  }
  CHECK(distance(values_of(y), expected.y, expected.dbias.empty() ? Values() : input.bias) / forward_limit <= 1);
  CHECK(distance(values_of(dx), expected.dx) / backward_limit <= 1);
  CHECK(distance(values_of(dweight), expected.dweight) / backward_limit <= 1);
}

}  // namespace

TEST_CASE("layer_norm equals PyTorch's", "[norms][layer_norm][golden]") {
  for (const golden::Case& c : golden::cases()) {
    check<LayerNormUnderTest, float>(c.input, c.layer_norm_float, 1e-5);
    check<LayerNormUnderTest, double>(c.input, c.layer_norm_double, 1e-5);
  }
}

TEST_CASE("rms_norm equals PyTorch's", "[norms][rms_norm][golden]") {
  for (const golden::Case& c : golden::cases()) {
    check<RmsNormUnderTest, float>(c.input, c.rms_norm_float, 1e-6);
    check<RmsNormUnderTest, double>(c.input, c.rms_norm_double, 1e-6);
  }
}

TEST_CASE("batch_norm equals PyTorch's in training", "[norms][batch_norm][golden]") {
  for (const golden::Case& c : golden::cases()) {
    check<BatchNormUnderTest, float>(c.input, c.batch_norm_float, 1e-5);
    check<BatchNormUnderTest, double>(c.input, c.batch_norm_double, 1e-5);
  }
}
