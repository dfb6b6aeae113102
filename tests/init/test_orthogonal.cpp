#include "evenkeel/init/orthogonal.hpp"
#include "evenkeel/init/sparse.hpp"
#include "support/catch.hpp"

#include <Eigen/Core>
#include <unsupported/Eigen/CXX11/Tensor>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace ek = evenkeel;

namespace {

const ek::RandomStream stream(42, "weight");

using Matrix = Eigen::MatrixXd;
template <class T>
using RowMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Plain loops on purpose: products of Eigen would take longer to compile than the initializers.
double product_of_rows(const Matrix& w, ek::Index i, ek::Index j) {
  double sum = 0;
  for (ek::Index k = 0; k < w.cols(); ++k) sum += w(i, k) * w(j, k);
  return sum;
}

template <class W>
Matrix doubles(const W& weight) {
  Matrix copy(weight.rows(), weight.cols());
  for (ek::Index i = 0; i < copy.rows(); ++i)
    for (ek::Index j = 0; j < copy.cols(); ++j) copy(i, j) = double(weight(i, j));
  return copy;
}

Matrix transposed(const Matrix& w) {
  Matrix copy(w.cols(), w.rows());
  for (ek::Index i = 0; i < w.rows(); ++i)
    for (ek::Index j = 0; j < w.cols(); ++j) copy(j, i) = w(i, j);
  return copy;
}

double distance(const Matrix& a, const Matrix& b) {
  double largest = a.rows() == b.rows() && a.cols() == b.cols() ? 0 : 1e9;
  for (ek::Index i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a.data()[i] - b.data()[i]));
  return largest;
}

// How far W W^T or W^T W, whichever is smaller, is from gain^2 times the identity.
double from_orthogonal(const Matrix& weight, double gain) {
  const Matrix w = weight.rows() <= weight.cols() ? weight : transposed(weight);
  double largest = 0;
  for (ek::Index i = 0; i < w.rows(); ++i)
    for (ek::Index j = 0; j <= i; ++j)
      largest = std::max(largest, std::abs(product_of_rows(w, i, j) - (i == j ? gain * gain : 0)));
  return largest;
}

// The Q of `normal`, times gain, after Gram and Schmidt in long double: the one with a positive diagonal of R, which is
// unique.
Matrix gram_schmidt(const Matrix& normal, double gain = 1) {
  const auto rows = static_cast<std::size_t>(normal.rows()), cols = static_cast<std::size_t>(normal.cols());
  std::vector<std::vector<long double>> q(cols, std::vector<long double>(rows));
  const auto dot = [&](std::size_t i, std::size_t j) {
    long double sum = 0;
    for (std::size_t k = 0; k < rows; ++k) sum += q[i][k] * q[j][k];
    return sum;
  };
  Matrix result(normal.rows(), normal.cols());
  for (std::size_t j = 0; j < cols; ++j) {
    for (std::size_t k = 0; k < rows; ++k) q[j][k] = normal(ek::Index(k), ek::Index(j));
    for (int twice = 0; twice < 2; ++twice)
      for (std::size_t i = 0; i < j; ++i) {
        const long double share = dot(i, j);
        for (std::size_t k = 0; k < rows; ++k) q[j][k] -= share * q[i][k];
      }
    const long double norm = std::sqrt(dot(j, j));
    for (std::size_t k = 0; k < rows; ++k) {
      q[j][k] /= norm;
      result(ek::Index(k), ek::Index(j)) = double(q[j][k]) * gain;
    }
  }
  return result;
}

}  // namespace

TEST_CASE("orthogonal weights are orthogonal, whatever their shape and scalar") {
  struct Shape {
    ek::Index rows, cols;
  };
  for (const Shape& shape : {Shape{1, 1}, {5, 3}, {3, 5}, {4, 4}, {1, 7}, {7, 1}, {131, 67}, {64, 200}}) {
    for (const double gain : {1.0, 0.5, std::sqrt(2.0)}) {
      INFO(shape.rows << "x" << shape.cols << ", gain " << gain);
      Matrix exact(shape.rows, shape.cols);
      ek::orthogonal(exact, stream, {.gain = gain});
      CHECK(from_orthogonal(exact, gain) < 1e-14);
      RowMatrix<float> floats(shape.rows, shape.cols);
      ek::orthogonal(floats, stream, {.gain = gain});
      CHECK(from_orthogonal(doubles(floats), gain) < 1e-6);
    }
  }
  RowMatrix<Eigen::bfloat16> rounded(30, 20);
  RowMatrix<float> floats(30, 20);
  ek::orthogonal(rounded, stream);
  ek::orthogonal(floats, stream);
  for (ek::Index i = 0; i < 600; ++i) CHECK(float(rounded.data()[i]) == float(Eigen::bfloat16(floats.data()[i])));
}

TEST_CASE("the orthogonal matrix is the Q of the drawn numbers with a positive diagonal of R") {
  for (const bool wide : {false, true}) {
    RowMatrix<double> weight(wide ? 6 : 11, wide ? 11 : 6), drawn(weight.rows(), weight.cols());
    ek::orthogonal(weight, stream, {.gain = 2});
    ek::normal(drawn, 0, 1, stream);
    const Matrix normal = doubles(drawn);
    const Matrix expected = wide ? transposed(gram_schmidt(transposed(normal), 2)) : gram_schmidt(normal, 2);
    CHECK(distance(doubles(weight), expected) < 1e-13);
  }
  // From a sequential source, too: its next numbers, row by row.
  RowMatrix<float> weight(8, 5), drawn(8, 5);
  ek::TorchRandom random(3), same(3);
  ek::orthogonal(weight, random);
  ek::normal(drawn, 0, 1, same);
  CHECK(distance(doubles(weight), gram_schmidt(doubles(drawn))) < 1e-7);
  CHECK(random.next_uniform<float>() == same.next_uniform<float>());
}

// Every element of a Haar-distributed matrix has mean 0 and variance 1/n, and its trace mean 0 and variance 1. Without
// the signs Q(0, 0) has one sign for all seeds.
TEST_CASE("orthogonal matrices are uniformly distributed") {
  constexpr int samples = 4000, n = 4;
  std::array<double, n * n> sum{}, squares{};
  double trace = 0, trace_squares = 0;
  for (int i = 0; i < samples; ++i) {
    Matrix q(n, n);
    ek::orthogonal(q, ek::RandomStream(7, std::uint64_t(i)));
    for (std::size_t e = 0; e < sum.size(); ++e) {
      sum[e] += q.data()[e];
      squares[e] += q.data()[e] * q.data()[e];
    }
    const double diagonal = q(0, 0) + q(1, 1) + q(2, 2) + q(3, 3);
    trace += diagonal;
    trace_squares += diagonal * diagonal;
  }
  const double root = std::sqrt(double(samples));
  for (const double element : sum) CHECK(std::abs(element / samples) < 4 * 0.5 / root);
  for (const double element : squares) CHECK(std::abs(element / samples - 0.25) < 4 * 0.21 / root);
  CHECK(std::abs(trace / samples) < 4 / root);
  CHECK(std::abs(trace_squares / samples - 1) < 4 * 1.42 / root);
}

TEST_CASE("an orthogonal weight is the same in every storage") {
  // Rows: 5 outputs; columns: 3 x 2 x 2.
  Eigen::Tensor<double, 4, Eigen::RowMajor> rows(5, 3, 2, 2);
  Eigen::Tensor<double, 4> columns(5, 3, 2, 2), last(3, 2, 2, 5);
  Matrix flat(5, 12), memory = Matrix::Constant(14, 12, 7);
  ek::orthogonal(rows, stream, {.gain = 3});
  ek::orthogonal(columns, stream, {.gain = 3});
  ek::orthogonal(last, stream, {.gain = 3, .output = -1});
  ek::orthogonal(flat, stream, {.gain = 3});
  Eigen::Map<Matrix, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>> strided(memory.data() + 1, 5, 12, {14, 2});
  ek::orthogonal(strided, stream, {.gain = 3});
  CHECK(from_orthogonal(flat, 3) < 1e-13);
  CHECK(distance(doubles(strided), flat) == 0);
  CHECK(std::count(memory.data(), memory.data() + memory.size(), 7.0) == 14 * 12 - 60);
  for (ek::Index o = 0; o < 5; ++o)
    for (ek::Index c = 0; c < 3; ++c)
      for (ek::Index y = 0; y < 2; ++y)
        for (ek::Index x = 0; x < 2; ++x) {
          const double expected = flat(o, (c * 2 + y) * 2 + x);
          CHECK(rows(o, c, y, x) == expected);
          CHECK(columns(o, c, y, x) == expected);
          CHECK(last(c, y, x, o) == expected);
        }
  RowMatrix<double> other(5, 12);
  ek::orthogonal(other, ek::RandomStream(43, "weight"), {.gain = 3});
  CHECK(distance(doubles(other), flat) > 0.1);
}

TEST_CASE("delta-orthogonal kernels are orthogonal at their middle and 0 elsewhere") {
  Eigen::Tensor<float, 4, Eigen::RowMajor> kernel(6, 4, 3, 5);
  Eigen::Tensor<float, 4> last(3, 5, 4, 6);
  kernel.setConstant(7);
  last.setConstant(7);
  ek::delta_orthogonal(kernel, stream, {.gain = 2});
  ek::delta_orthogonal(last, stream, {.gain = 2, .output = 3, .input = 2});
  Matrix middle(6, 4);
  int zeros = 0;
  for (ek::Index o = 0; o < 6; ++o)
    for (ek::Index c = 0; c < 4; ++c) {
      for (ek::Index y = 0; y < 3; ++y)
        for (ek::Index x = 0; x < 5; ++x) {
          CHECK(kernel(o, c, y, x) == last(y, x, c, o));
          zeros += kernel(o, c, y, x) == 0;
        }
      middle(o, c) = double(kernel(o, c, 1, 2));
    }
  CHECK(zeros == 6 * 4 * 14);
  CHECK(from_orthogonal(middle, 2) < 4e-6);
  Matrix dense(6, 4), same(6, 4);  // a kernel of one place
  ek::delta_orthogonal(dense, stream);
  ek::orthogonal(same, stream);
  CHECK(distance(dense, same) == 0);
}

TEST_CASE("sparse weights have the same number of zeros in each unit, and normal numbers elsewhere") {
  Matrix weight(200, 300);
  ek::sparse(weight, stream, {.sparsity = 0.655, .std = 0.5});
  double squares = 0;
  std::vector<int> in_row(200);
  for (ek::Index j = 0; j < 300; ++j) {
    CHECK(std::count(&weight(0, j), &weight(0, j) + 200, 0.0) == 131);
    for (ek::Index i = 0; i < 200; ++i) {
      in_row[std::size_t(i)] += weight(i, j) == 0;
      squares += weight(i, j) * weight(i, j);
    }
  }
  const double n = 69 * 300;
  CHECK(std::abs(std::sqrt(squares / n) / 0.5 - 1) < 4 / std::sqrt(2 * n));
  // The zeros are anywhere: 196.5 of 300 in a row, with a standard deviation of 8.2.
  for (const int zeros : in_row) CHECK(std::abs(zeros - 196.5) < 4.5 * 8.2);
  CHECK(*std::max_element(in_row.begin(), in_row.end()) > 205);

  // Not the smallest ones, nor the first ones: what is left has the values of the stream at its places.
  RowMatrix<double> rows(300, 200);
  ek::sparse(rows, stream, {.sparsity = 0.655, .std = 0.5, .axis = 0});
  Matrix normal(200, 300);
  ek::normal(normal, 0, 0.5, stream);
  for (ek::Index i = 0; i < 200 * 300; ++i) {
    const double value = weight.data()[i];
    if (value != rows.data()[i] || (value != 0 && value != normal.data()[i])) FAIL("other values at " << i);
  }

  RowMatrix<Eigen::half> few(100, 4);
  ek::sparse(few, stream, {.sparsity = 0.07});
  std::array<int, 4> zeros{};
  for (ek::Index i = 0; i < 400; ++i) zeros[std::size_t(i % 4)] += float(few.data()[i]) == 0;
  for (const int each : zeros) CHECK(each == 7);  // 0.07 * 100 is above 7 in double
  ek::sparse(weight, stream, {.sparsity = 1});
  CHECK(std::count(weight.data(), weight.data() + weight.size(), 0.0) == 60000);
  ek::sparse(weight, stream, {.sparsity = 0});
  CHECK(std::count(weight.data(), weight.data() + weight.size(), 0.0) == 0);
}

TEST_CASE("identity and dirac hand their input on") {
  Matrix square(3, 5);
  ek::identity(square, 0.1);
  for (ek::Index i = 0; i < 3; ++i)
    for (ek::Index j = 0; j < 5; ++j) CHECK(square(i, j) == (i == j ? 0.1 : 0));
  for (const ek::Index groups : {1, 2, 3}) {
    Eigen::Tensor<float, 4, Eigen::RowMajor> kernel(6, 4, 3, 2);
    Eigen::Tensor<float, 4> last(3, 2, 4, 6);
    kernel.setConstant(7);
    last.setConstant(7);
    ek::dirac(kernel, {.groups = groups});
    ek::dirac(last, {.groups = groups, .output = 3, .input = -2});
    for (ek::Index o = 0; o < 6; ++o)
      for (ek::Index c = 0; c < 4; ++c)
        for (ek::Index y = 0; y < 3; ++y)
          for (ek::Index x = 0; x < 2; ++x) {
            const bool one = y == 1 && x == 1 && o % (6 / groups) == c;
            CHECK(kernel(o, c, y, x) == (one ? 1 : 0));
            CHECK(last(y, x, c, o) == (one ? 1 : 0));
          }
  }
}

TEST_CASE("weights without elements are left alone, whatever is asked") {
  Matrix rows(0, 5), cols(5, 0);
  ek::TorchRandom random(0), same(0);
  ek::orthogonal(rows, random);
  ek::orthogonal(cols, random);
  ek::delta_orthogonal(cols, random);
  CHECK(random.next_uniform<float>() == same.next_uniform<float>());
  ek::sparse(rows, stream);
  ek::identity(cols);
  ek::dirac(rows);
}

TEST_CASE("structured initializers say which argument is wrong, before they write") {
  Matrix w = Matrix::Constant(3, 4, 7);
  Eigen::VectorXd vector = Eigen::VectorXd::Constant(3, 7);
  Eigen::Tensor<double, 3> kernel(3, 4, 2);
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_AS(ek::orthogonal(vector, stream), ek::ShapeError);
  CHECK_THROWS_WITH(ek::orthogonal(vector, stream),
                    "orthogonal: weight has 1 axis, expected at least two (weight is 3)");
  CHECK_THROWS_WITH(ek::orthogonal(w, stream, {.output = 2}),
                    "orthogonal: axis 2 is out of range, weight has 2 axes (weight is 3x4)");
  CHECK_THROWS_WITH(ek::orthogonal(w, stream, {.gain = nan}), "orthogonal: gain is nan, expected a finite number");
  CHECK_THROWS_WITH(ek::delta_orthogonal(w, stream),
                    "delta_orthogonal: weight has 3 outputs and 4 inputs, expected at least as many outputs (weight is "
                    "3x4)");
  CHECK_THROWS_WITH(ek::delta_orthogonal(w, stream, {.output = 1, .input = -1}),
                    "delta_orthogonal: input names axis -1, which is named already (weight is 3x4)");
  CHECK_THROWS_WITH(ek::sparse(w, stream, {.sparsity = 1.5}), "sparse: sparsity is 1.5, expected a share from 0 to 1");
  CHECK_THROWS_WITH(ek::sparse(w, stream, {.std = -1}), "sparse: std is -1, expected a finite number of at least 0");
  CHECK_THROWS_WITH(ek::sparse(w, stream, {.axis = -3}),
                    "sparse: axis -3 is out of range, weight has 2 axes (weight is 3x4)");
  CHECK_THROWS_WITH(ek::identity(kernel),
                    "identity: weight has 3 axes, expected two (weight is 3x4x2); dirac is the identity of a "
                    "convolution");
  CHECK_THROWS_WITH(ek::dirac(w, {.groups = 2}),
                    "dirac: groups is 2, expected a divisor of the 3 outputs (weight is 3x4)");
  CHECK_THROWS_WITH(ek::dirac(w, {.groups = 0}),
                    "dirac: groups is 0, expected a divisor of the 3 outputs (weight is 3x4)");
  CHECK(std::count(w.data(), w.data() + 12, 7.0) == 12);
  CHECK(std::count(vector.data(), vector.data() + 3, 7.0) == 3);
}
