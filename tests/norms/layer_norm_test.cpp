#include "norms/row_norm_checks.hpp"

using namespace norms_test;
using Norm = LayerNormUnderTest;

TEMPLATE_TEST_CASE("layer_norm equals the reference on awkward shapes", "[norms][layer_norm]", SUPPORT_WIDE_SCALARS) {
  check_shapes<Norm, TestType>();
}

TEST_CASE("layer_norm's gradients equal central differences", "[norms][layer_norm]") { check_gradients<Norm>(); }

TEST_CASE("layer_norm accumulates or overwrites parameter gradients", "[norms][layer_norm]") {
  check_gradient_modes<Norm>();
}

TEST_CASE("layer_norm without saved statistics gives the same y", "[norms][layer_norm]") {
  check_without_saved<Norm>();
}

TEST_CASE("layer_norm saves mean and rstd", "[norms][layer_norm]") { check_saved_statistics<Norm>(); }

TEST_CASE("layer_norm keeps NaN and infinity in their row", "[norms][layer_norm]") { check_isolation<Norm>(); }

TEST_CASE("layer_norm defaults to eps 1e-5", "[norms][layer_norm]") {
  const Data data = make_data<float>({3, 9, 1}, 1, 0, 1e-3);
  check_matrix<Norm, float>(data, ek::none, ek::none, {}, 1e-5);
}

TEST_CASE("layer_norm is invariant to the shift and the scale of its input", "[norms][layer_norm]") {
  const std::size_t rows = 7, length = 45;
  const Data data = make_data<double>({rows, length, 1}, 3);
  const auto x = matrix_of<RowMatrix<double>>(rows, length, data.x);
  const RowMatrix<double> moved = (x.array() * 3 + 5).matrix(), negative = -x;
  RowMatrix<double> y(rows, length), of_moved(rows, length), of_negative(rows, length);
  Norm::forward(ek::serial, x, ek::none, ek::none, y, ek::none, {.eps = 1e-14});
  Norm::forward(ek::serial, moved, ek::none, ek::none, of_moved, ek::none, {.eps = 1e-14});
  Norm::forward(ek::serial, negative, ek::none, ek::none, of_negative, ek::none, {.eps = 1e-14});
  // What eps moves by itself, 1e-14, and the rounding of 3x + 5.
  CHECK((y - of_moved).cwiseAbs().maxCoeff() < 1e-13);
  CHECK((y + of_negative).cwiseAbs().maxCoeff() < 1e-13);
  for (ek::Index r = 0; r < ek::Index(rows); ++r) {
    CHECK(std::abs(y.row(r).mean()) < 1e-15 * double(length));
    CHECK(std::abs(y.row(r).squaredNorm() / double(length) - 1) < 1e-13);
  }
}

namespace {

// Eight roundings of float.
constexpr double hard_limit = 1e-6;

struct Errors {
  double y = 0, dx = 0;
};

// The largest error of any row, relative to the row's largest value. `along`: the rows lie along memory, else across
// it; these are two loops.
Errors errors_of(const Data& data, bool along, double eps) {
  const Slab& s = data.slab;
  const std::size_t rows = along ? s.rows() : s.length, cols = along ? s.length : s.rows();
  const auto x = matrix_of<RowMatrix<float>>(rows, cols, data.x);
  const auto dy = matrix_of<RowMatrix<float>>(rows, cols, data.dy);
  typename Norm::Saved<float> saved;
  RowMatrix<float> y(x.rows(), x.cols()), dx(x.rows(), x.cols());
  Norm::forward(ek::serial, x, ek::none, ek::none, y, saved, {.eps = eps, .axis = along ? 1 : 0});
  Norm::backward(ek::serial, dy, x, ek::none, saved, dx, ek::none, ek::none);
  const auto forward = Norm::reference(s, data.x, {}, {}, {eps, false, {}});
  const auto backward = Norm::reference_backward(s, data.dy, data.x, {}, {eps, false, {}});
  const auto relative = [&](const RowMatrix<float>& got, const Values& expected) {
    double worst = 0;
    for (std::size_t r = 0; r < s.rows(); ++r) {
      double error = 0, size = 0;
      for (std::size_t i = 0; i < s.length; ++i) {
        error = std::max(error, std::abs(double(got.data()[s.at(r, i)]) - expected[s.at(r, i)]));
        size = std::max(size, std::abs(expected[s.at(r, i)]));
      }
      worst = std::max(worst, error / size);
    }
    return worst;
  };
  return {relative(y, forward.y), relative(dx, backward.dx)};
}

Data rows_of(std::size_t count, std::size_t length, bool along, double mean, double spread) {
  return make_data<float>(along ? Slab{count, length, 1} : Slab{1, length, count}, length, mean, spread);
}

}  // namespace

// Plain sums lose everything here: 1e4^2 has a spacing of 8 in float and the variance is 1e-4. A mean kept as one float
// is off by 2e-2 to 8e-2 of the spread.
TEST_CASE("layer_norm of rows with mean 1e4 and spread 1e-2", "[norms][layer_norm][hard]") {
  for (std::size_t length : Counts{7, 31, 64, 768, 1031}) {
    for (bool along : {true, false}) {
      INFO("length " << length << ", along memory " << along);
      const Errors errors = errors_of(rows_of(21, length, along, 1e4, 1e-2), along, 1e-12);
      CHECK(errors.y / hard_limit <= 1);
      CHECK(errors.dx / hard_limit <= 1);
    }
  }
}

// The first element is what the sums are shifted by, and a row of n with one outlier has its mean sqrt(n - 1) standard
// deviations from it. Up to 8 of them the sums lose (n - 1) times a rounding, which the tolerance knows; beyond, the
// row is redone and loses nothing.
TEST_CASE("layer_norm of rows that begin with an outlier", "[norms][layer_norm][hard]") {
  for (std::size_t length : Counts{7, 31, 64, 66, 100, 768, 1031}) {
    for (bool along : {true, false}) {
      INFO("length " << length << ", along memory " << along);
      Data data = rows_of(21, length, along, 0, 1);
      for (std::size_t r = 0; r < 21; ++r) data.x[data.slab.at(r, 0)] = 1e4;
      const double limit = length > 66 ? hard_limit : support::tolerance(length, double(length), epsilon_of<float>());
      const Errors errors = errors_of(data, along, 1e-5);
      CHECK(errors.y / limit <= 1);
      CHECK(errors.dx / limit <= 1);
    }
  }
}

TEMPLATE_TEST_CASE("layer_norm of a constant row is exactly the bias", "[norms][layer_norm][hard]",
                   SUPPORT_WIDE_SCALARS) {
  for (std::size_t length : Counts{1, 3, 8, 16, 33, 100, 769}) {
    for (double eps : {1e-5, 0.0}) {
      INFO("length " << length << ", eps " << eps);
      const std::size_t rows = 6;
      Data data = make_data<TestType>({rows, length, 1}, length);
      for (std::size_t r = 0; r < rows; r += 2) {
        const double constant = double(TestType(1.1e3 / double(3 + r)));
        for (std::size_t i = 0; i < length; ++i) data.x[data.slab.at(r, i)] = constant;
      }
      const auto x = matrix_of<RowMatrix<TestType>>(rows, length, data.x);
      const auto dy = matrix_of<RowMatrix<TestType>>(rows, length, data.dy);
      const auto weight = vector_of<TestType>(data.weight), bias = vector_of<TestType>(data.bias);
      typename Norm::Saved<TestType> saved;
      RowMatrix<TestType> y(rows, length), dx(rows, length);
      Norm::forward(ek::serial, x, weight, bias, y, saved, {.eps = eps});
      Norm::backward(ek::serial, dy, x, weight, saved, dx, ek::none, ek::none);
      for (std::size_t r = 0; r < rows; r += 2) {
        CHECK((y.row(ek::Index(r)).transpose().array() == bias).all());
        if (eps == 0) CHECK((dx.row(ek::Index(r)).array() == TestType(0)).all());
      }
      check_matrix<Norm, TestType>(data, weight, bias, {.eps = eps}, eps);
    }
  }
}
