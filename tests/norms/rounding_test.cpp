// The rounding order decides the bits of bfloat16 checkpoints: xhat is rounded before the weight or only with it.
#include "norms/norm_under_test.hpp"

using namespace norms_test;

namespace {

using Bfloat16 = Eigen::bfloat16;
constexpr double half_step = 0x1p-8;  // of bfloat16's eight bits, relative

// Elements whose xhat or result lies so near the middle between two bfloat16 that float arithmetic may land on either
// side.
bool ambiguous(double value) {
  const double rounded = reference::round_to_bfloat16(value);
  const double nudge = 4e-6 * std::abs(value);
  return reference::round_to_bfloat16(value + nudge) != rounded ||
         reference::round_to_bfloat16(value - nudge) != rounded;
}

template <class Norm>
void check_rounding(ek::Rounding rounding, bool unit_offset, bool with_bias) {
  const std::size_t rows = 8, length = 77;
  Data data = make_data<Bfloat16>({rows, length, 1}, 53);
  data.weight = support::normal<float>(length, 54, unit_offset ? 0 : 1, 0.4);
  data.bias = support::normal<float>(length, 55, 0, 0.3);
  const Values bias_values = with_bias ? data.bias : Values(length, 0.0);
  const auto x = matrix_of<RowMatrix<Bfloat16>>(rows, length, data.x);
  const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(bias_values);
  RowMatrix<Bfloat16> y(rows, length);
  Norm::forward(ek::serial, x, weight, bias, y, ek::none,
                {.eps = 1e-6, .unit_offset = unit_offset, .rounding = rounding});

  reference::Options once{1e-6, unit_offset, {}}, normalized = once;
  normalized.round_xhat = reference::round_to_bfloat16;
  const auto of_once = Norm::reference(data.slab, data.x, data.weight, bias_values, once);
  const auto of_normalized = Norm::reference(data.slab, data.x, data.weight, bias_values, normalized);
  const auto& expected = rounding == ek::Rounding::round_once ? of_once : of_normalized;
  std::size_t compared = 0, telling = 0, wrong = 0;
  for (std::size_t i = 0; i < expected.y.size(); ++i) {
    if (ambiguous(expected.y[i]) || ambiguous(expected.xhat[i])) continue;
    ++compared;
    telling += reference::round_to_bfloat16(of_once.y[i]) != reference::round_to_bfloat16(of_normalized.y[i]);
    wrong += double(y.data()[i]) != reference::round_to_bfloat16(expected.y[i]);
  }
  INFO(Norm::name << ", unit offset " << unit_offset << ", bias " << with_bias);
  CHECK(compared > rows * length * 9 / 10);
  CHECK(telling > rows * length / 10);  // else the two orders were not told apart
  CHECK(wrong == 0);
}

}  // namespace

TEMPLATE_TEST_CASE("round_once and round_normalized differ as their formulas do", "[norms][rounding]", RmsNormUnderTest,
                   LayerNormUnderTest) {
  for (auto rounding : {ek::Rounding::round_once, ek::Rounding::round_normalized}) {
    check_rounding<TestType>(rounding, false, false);
    check_rounding<TestType>(rounding, true, false);
    check_rounding<TestType>(rounding, false, true);
  }
}

TEMPLATE_TEST_CASE("the rounding order changes nothing for float data", "[norms][rounding]", RmsNormUnderTest,
                   LayerNormUnderTest) {
  const Data data = make_data<float>({5, 45, 1}, 57);
  const auto x = matrix_of<RowMatrix<float>>(5, 45, data.x);
  const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(data.bias);
  RowMatrix<float> once(5, 45), normalized(5, 45);
  TestType::forward(ek::serial, x, weight, bias, once, ek::none, {});
  TestType::forward(ek::serial, x, weight, bias, normalized, ek::none, {.rounding = ek::Rounding::round_normalized});
  // Contraction of xhat * weight + bias may differ between the two.
  CHECK((once - normalized).cwiseAbs().maxCoeff() <= 4 * float(epsilon_of<float>()) * once.cwiseAbs().maxCoeff());
}

TEMPLATE_TEST_CASE("bfloat16 data with float weights goes back through float sums", "[norms][rounding]",
                   RmsNormUnderTest, LayerNormUnderTest) {
  const std::size_t rows = 40, length = 33;
  Data data = make_data<Bfloat16>({rows, length, 1}, 59);
  const auto x = matrix_of<RowMatrix<Bfloat16>>(rows, length, data.x),
             dy = matrix_of<RowMatrix<Bfloat16>>(rows, length, data.dy);
  const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(data.bias);
  RowMatrix<Bfloat16> y(rows, length), dx(rows, length);
  typename TestType::template Saved<float> saved;
  Vector<float> dweight = Vector<float>::Zero(length), dbias = dweight;
  TestType::forward(ek::serial, x, weight, bias, y, saved, {.eps = 1e-6});
  TestType::backward(ek::serial, dy, x, weight, saved, dx, dweight, dbias);
  const auto expected = TestType::reference_backward(data.slab, data.dy, data.x, data.weight, {1e-6, false, {}});
  const double epsilon = epsilon_of<float>();
  // Parameter gradients never pass through bfloat16.
  CHECK(worst_error(values_of(dweight), expected.dweight, expected.dweight_magnitude, rows * length, epsilon) <= 1);
  CHECK(worst_error(values_of(dbias), expected.dbias, expected.dbias_magnitude, rows * length, epsilon) <= 1);
  double worst = 0;
  for (std::size_t i = 0; i < expected.dx.size(); ++i) {
    const double allowed =
        half_step * std::abs(expected.dx[i]) * 1.01 + support::tolerance(length, expected.dx_magnitude[i], epsilon);
    worst = std::max(worst, std::abs(double(dx.data()[i]) - expected.dx[i]) / allowed);
  }
  CHECK(worst <= 1);
}
