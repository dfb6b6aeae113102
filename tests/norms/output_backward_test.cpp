// Backward from y instead of x, after forwards in place: the gradients of the usual backward, also where the weight is 0,
// tiny, negative or small beside the bias.
#include "norms/norm_under_test.hpp"
#include "support/devices.hpp"

using namespace norms_test;

namespace {

template <class Norm, class Matrix, class Device>
void check(const Device& device, std::size_t rows, std::size_t length, bool unit_offset, bool with_weight) {
  using T = typename Matrix::Scalar;
  INFO(Norm::name << " " << rows << " x " << length << ", unit offset " << unit_offset << ", weight " << with_weight);
  Data data = make_data<T>({rows, length, 1}, rows + length);
  for (std::size_t i = 0; i < length; ++i) {
    if (i % 5 == 1) data.weight[i] = unit_offset ? -1 : 0;  // in effect 0
    if (i % 5 == 2) data.weight[i] = unit_offset ? -1 : 1e-6;
    if (i % 5 == 3) data.bias[i] = 1000;
  }
  const Matrix x = matrix_of<RowMatrix<T>>(rows, length, data.x), dy = matrix_of<RowMatrix<T>>(rows, length, data.dy);
  const Vector<T> weight = vector_of<T>(data.weight), bias = vector_of<T>(data.bias);
  const typename Norm::Options options{
      .eps = 1e-5, .axis = 1, .unit_offset = unit_offset, .backward_from_output = true};
  const auto run = [&](const auto& w, const auto& b, auto&& dw, auto&& db) {
    typename Norm::template Saved<ek::accumulator_t<T>> saved;
    Matrix y = x, dx = dy;  // both in place
    Norm::forward(device, y, w, b, y, saved, options);
    if constexpr (Norm::centred)
      ek::layer_norm_backward_from_output(device, dx, y, w, b, saved, dx, dw, db);
    else
      ek::rms_norm_backward_from_output(device, dx, y, w, b, saved, dx, dw, db);
    return Matrix(dx);
  };
  Vector<T> dweight = Vector<T>::Zero(Eigen::Index(length)), dbias = dweight;
  const Matrix dx = with_weight ? run(weight, bias, dweight, dbias) : run(ek::none, bias, ek::none, dbias);
  const auto expected = Norm::reference_backward(data.slab, data.dy, data.x, with_weight ? data.weight : Values{},
                                                 {1e-5, unit_offset, {}});
  // y holds xhat to a unit in the last place of y, and |bias| is at most 8 |weight| where xhat is taken from it.
  const double epsilon = 8 * epsilon_of<T>();
  const RowMatrix<T> dx_rows = dx;
  CHECK(worst_error(values_of(dx_rows), expected.dx, expected.dx_magnitude, length, epsilon) <= 1);
  CHECK(worst_error(values_of(dbias), expected.dbias, expected.dbias_magnitude, rows, epsilon) <= 1);
  if (with_weight)
    CHECK(worst_error(values_of(dweight), expected.dweight, expected.dweight_magnitude, rows, epsilon) <= 1);
}

template <class Norm, class Matrix>
void check_all() {
  for (const auto& [rows, length] : {std::pair<std::size_t, std::size_t>{1, 4}, {9, 5}, {13, 37}, {130, 64}})
    for (const bool unit_offset : {false, true})
      for (const bool with_weight : {false, true})
        check<Norm, Matrix>(ek::serial, rows, length, unit_offset && with_weight, with_weight);
}

}  // namespace

TEST_CASE("layer_norm_backward_from_output", "[norms][layer_norm]") {
  check_all<LayerNormUnderTest, RowMatrix<float>>();
  check_all<LayerNormUnderTest, ColMatrix<double>>();
}
TEST_CASE("rms_norm_backward_from_output", "[norms][rms_norm]") {
  check_all<RmsNormUnderTest, RowMatrix<double>>();
  check_all<RmsNormUnderTest, ColMatrix<float>>();
}

TEST_CASE("a backward from y needs a forward that kept what y does not tell", "[norms][layer_norm]") {
  RowMatrix<float> x = RowMatrix<float>::Random(3, 8), y(3, 8), dx(3, 8);
  ek::LayerNormSaved<float> saved;
  ek::layer_norm(ek::serial, x, ek::none, ek::none, y, saved);
  CHECK_THROWS_WITH(
      ek::layer_norm_backward_from_output(ek::serial, x, y, ek::none, ek::none, saved, dx, ek::none, ek::none),
      "layer_norm_backward_from_output: saved comes from a forward without the option backward_from_output");
  ek::layer_norm(ek::serial, x, ek::none, ek::none, x, saved, {.backward_from_output = true});
  CHECK_THROWS_AS(ek::layer_norm_backward(ek::serial, y, x, ek::none, saved, dx, ek::none, ek::none), ek::ShapeError);
}
