// Rows whose squares, sums or differences leave the range of float or double: the exact answer, and neighbours that
// notice nothing. For the files that the norms are spread over.
#pragma once

#include "norms/norm_under_test.hpp"

namespace norms_test {

// What a norm makes of x, in both directions, with eps = 0. `gate` is for norms that have a second input.
template <class Matrix>
struct Ran {
  Matrix y, dx, dgate;
  Vector<typename Matrix::Scalar> dweight;

  explicit Ran(const Matrix& x) : y(x), dx(x), dgate(Matrix::Zero(x.rows(), x.cols())) {
    dweight = Vector<typename Matrix::Scalar>::Zero(x.cols());
  }
};

// Of a norm with the face of norm_under_test.hpp.
template <class Norm>
struct Plain {
  static constexpr const char* name = Norm::name;

  template <class Matrix, class W>
  static Ran<Matrix> run(const Matrix& x, const Matrix& dy, const Matrix&, const W& weight) {
    Ran<Matrix> ran(x);
    typename Norm::template Saved<ek::accumulator_t<typename Matrix::Scalar>> saved;
    Norm::forward(ek::serial, x, weight, ek::none, ran.y, saved, {.eps = 0, .axis = 1});
    Norm::backward(ek::serial, dy, x, weight, saved, ran.dx, ran.dweight, ek::none);
    return ran;
  }
  template <class Matrix, class W>
  static void in_place(Matrix& x, const Matrix&, const W& weight) {
    Norm::forward(ek::serial, x, weight, ek::none, x, ek::none, {.eps = 0, .axis = 1});
  }
};

// The rows 1, 4, 7, ... are multiplied by a power of two. With eps = 0 their y stays what it was and their dx is divided
// by it; so does and is, bit for bit, the rest.
template <class Norm, class Matrix>
void check_scaled_rows(std::size_t length, double scale) {
  using T = typename Matrix::Scalar;
  const std::size_t rows = 13;
  INFO(Norm::name << ", rows of " << length << ", scale " << scale << ", row-major " << bool(Matrix::IsRowMajor));
  const Data data = make_data<T>({rows, length, 1}, length);
  const Matrix x = matrix_of<RowMatrix<T>>(rows, length, data.x), dy = matrix_of<RowMatrix<T>>(rows, length, data.dy);
  const Matrix gate = matrix_of<Matrix>(rows, length, support::normal<T>(rows * length, 5)).cwiseMin(T(1));
  const Vector<T> weight = vector_of<T>(data.weight);
  Matrix scaled = x;
  for (Eigen::Index r = 1; r < x.rows(); r += 3) scaled.row(r) *= T(scale);
  const Ran<Matrix> got = Norm::run(scaled, dy, gate, weight), plain = Norm::run(x, dy, gate, weight);
  if constexpr (requires { Norm::in_place(scaled, gate, weight); }) {
    Norm::in_place(scaled, gate, weight);  // a row that is done again must still find its x
    CHECK((scaled.array() == got.y.array()).all());
  }
  const double epsilon = epsilon_of<T>();
  const double reach = 1 + double(plain.y.array().abs().maxCoeff()),
               reach_dx = 1 + double(plain.dx.array().abs().maxCoeff()),
               reach_dgate = 1 + double(plain.dgate.array().abs().maxCoeff());
  for (Eigen::Index r = 0; r < x.rows(); ++r) {
    if (r % 3 != 1) {
      CHECK((got.y.row(r).array() == plain.y.row(r).array()).all());
      CHECK((got.dx.row(r).array() == plain.dx.row(r).array()).all());
      CHECK((got.dgate.row(r).array() == plain.dgate.row(r).array()).all());
      continue;
    }
    for (Eigen::Index i = 0; i < x.cols(); ++i) {
      const double error = std::abs(double(got.y(r, i)) - double(plain.y(r, i)));
      const double error_dx = std::abs(double(got.dx(r, i)) * scale - double(plain.dx(r, i)));
      const double error_dgate = std::abs(double(got.dgate(r, i)) - double(plain.dgate(r, i)));
      if (!(error <= support::tolerance(length, reach, epsilon)) ||
          !(error_dx <= support::tolerance(length, reach_dx * reach, epsilon)) ||
          !(error_dgate <= support::tolerance(length, reach_dgate * reach, epsilon)))
        FAIL("row " << r << ", " << i << ": y " << got.y(r, i) << " for " << plain.y(r, i) << ", dx "
                    << got.dx(r, i) * T(scale) << " for " << plain.dx(r, i) << ", dgate " << got.dgate(r, i) << " for "
                    << plain.dgate(r, i));
    }
  }
  CHECK(double((got.dweight - plain.dweight).abs().maxCoeff()) <=
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

}  // namespace norms_test
