// Rows whose squares, sums or differences leave the range of float or double: the exact answer, and neighbours that
// notice nothing.
#include "norms/norm_under_test.hpp"

using namespace norms_test;

namespace {

// The rows 1, 4, 7, ... are multiplied by a power of two. With eps = 0 their y stays what it was and their dx is divided
// by it; so does and is, bit for bit, the rest.
template <class Norm, class Matrix>
void check_scaled_rows(std::size_t length, double scale) {
  using T = typename Matrix::Scalar;
  const std::size_t rows = 13;
  INFO(Norm::name << ", rows of " << length << ", scale " << scale << ", row-major " << bool(Matrix::IsRowMajor));
  const Data data = make_data<T>({rows, length, 1}, length);
  const Matrix x = matrix_of<RowMatrix<T>>(rows, length, data.x), dy = matrix_of<RowMatrix<T>>(rows, length, data.dy);
  const Vector<T> weight = vector_of<T>(data.weight);
  Matrix scaled = x;
  for (Eigen::Index r = 1; r < x.rows(); r += 3) scaled.row(r) *= T(scale);
  const auto run = [&](const Matrix& in, Matrix& y, Matrix& dx) -> Vector<T> {
    typename Norm::template Saved<ek::accumulator_t<T>> saved;
    Vector<T> dweight = Vector<T>::Zero(Eigen::Index(length));
    Norm::forward(ek::serial, in, weight, ek::none, y, saved, {.eps = 0, .axis = 1});
    Norm::backward(ek::serial, dy, in, weight, saved, dx, dweight, ek::none);
    return dweight;
  };
  Matrix y(x), dx(x), plain_y(x), plain_dx(x);
  const Vector<T> dweight = run(scaled, y, dx), plain_dweight = run(x, plain_y, plain_dx);
  // In place as well: a row that is done again must still find its x.
  Matrix in_place = scaled;
  Norm::forward(ek::serial, in_place, weight, ek::none, in_place, ek::none, {.eps = 0, .axis = 1});
  CHECK((in_place.array() == y.array()).all());
  const double epsilon = epsilon_of<T>();
  const double reach = 1 + double(plain_y.array().abs().maxCoeff()),
               reach_dx = 1 + double(plain_dx.array().abs().maxCoeff());
  for (Eigen::Index r = 0; r < x.rows(); ++r) {
    if (r % 3 != 1) {
      CHECK((y.row(r).array() == plain_y.row(r).array()).all());
      CHECK((dx.row(r).array() == plain_dx.row(r).array()).all());
      continue;
    }
    for (Eigen::Index i = 0; i < x.cols(); ++i) {
      const double error = std::abs(double(y(r, i)) - double(plain_y(r, i)));
      const double error_dx = std::abs(double(dx(r, i)) * scale - double(plain_dx(r, i)));
      if (!(error <= support::tolerance(length, reach, epsilon)) ||
          !(error_dx <= support::tolerance(length, reach_dx * reach, epsilon)))
        FAIL("row " << r << ", " << i << ": y " << y(r, i) << " for " << plain_y(r, i) << ", dx " << dx(r, i) * T(scale)
                    << " for " << plain_dx(r, i));
    }
  }
  CHECK(double((dweight - plain_dweight).abs().maxCoeff()) <=
        support::tolerance(rows + length, 3 * reach * 13, epsilon));
}

template <class Norm>
void check_ranges() {
  for (const std::size_t length : Counts{2, 5, 16, 37, 768}) {
    for (const double scale : {0x1p66, 0x1p-70, 0x1p123, 0x1p-100}) {
      check_scaled_rows<Norm, RowMatrix<float>>(length, scale);
      check_scaled_rows<Norm, ColMatrix<float>>(length, scale);
    }
    for (const double scale : {0x1p600, 0x1p-600, 0x1p1020}) check_scaled_rows<Norm, RowMatrix<double>>(length, scale);
  }
}

}  // namespace

TEST_CASE("rows near the ends of the range, rms_norm", "[norms][rms_norm]") { check_ranges<RmsNormUnderTest>(); }
TEST_CASE("rows near the ends of the range, layer_norm", "[norms][layer_norm]") { check_ranges<LayerNormUnderTest>(); }

TEST_CASE("the largest and smallest numbers of a type, side by side", "[norms][layer_norm][rms_norm]") {
  const float most = std::numeric_limits<float>::max();
  RowMatrix<float> x(2, 4), y(2, 4);
  x << most, -most, most, -most, most, most, most, most;
  ek::layer_norm(ek::serial, x, ek::none, ek::none, y, ek::none);
  for (int i = 0; i < 4; ++i) {
    CHECK(double(y(0, i)) == Approx(i % 2 ? -1.0 : 1.0));
    CHECK(y(1, i) == 0);
  }
  ek::rms_norm(ek::serial, x, ek::none, y, ek::none);
  for (int i = 0; i < 4; ++i) CHECK(double(y(1, i)) == Approx(1.0));
  // A gradient whose sum leaves the range.
  ek::LayerNormSaved<float> saved;
  x << 1, 2, 3, 4, 4, 3, 2, 1;
  RowMatrix<float> dy = RowMatrix<float>::Constant(2, 4, most / 2), dx(2, 4);
  dy(0, 3) = 0;
  ek::layer_norm(ek::serial, x, ek::none, ek::none, y, saved);
  ek::layer_norm_backward(ek::serial, dy, x, ek::none, saved, dx, ek::none, ek::none);
  CHECK(double(dx(0, 3)) / double(most) == Approx(-0.1341640786).epsilon(1e-5));
  CHECK(std::abs(double(dx(1, 0))) <= 1e-6 * double(most));
}
