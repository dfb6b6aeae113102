#include "cases/table.hpp"
#include "evenkeel/evenkeel.hpp"
#include "norms/norm_under_test.hpp"
#include "support/devices.hpp"

#include <Eigen/Core>

#include <limits>

using namespace cases_test;
namespace ek = evenkeel;
using norms_test::ColMatrix, norms_test::RowMatrix, norms_test::matrix_of, norms_test::values_of;

namespace {

// A branch whose output is given, and which keeps the gradient that reaches it. Nothing flows on to its input.
template <class Matrix>
struct GivenBranch {
  Matrix f, df;

  template <class Device, class X, class Y>
  void forward(const Device&, const X&, Y&& y) {
    y = f;
  }
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device&, const Dy& dy, const X&, Dx&& dx) {
    df = dy;
    dx.setZero();
  }
  template <class F>
  void for_each_parameter(F&&) {}
};

template <class T, class Matrix, class Device>
void check_rezero_on(const Device& device, const Case& c, const std::string& type) {
  const Shape shape = c.tensor("/inputs/x").shape;
  const auto matrix = [&](const Values& values) {
    return Matrix(matrix_of<RowMatrix<T>>(std::size_t(shape.at(0)), std::size_t(shape.at(1)), values));
  };
  const auto listed = [](const Matrix& m) { return values_of(RowMatrix<T>(m)); };
  const Matrix x = matrix(c.values("/inputs/x")), dy = matrix(c.values("/inputs/dy"));
  Matrix y(x), dx(x);
  const auto run = [&](const Matrix& f) {
    ek::ReZero<T, GivenBranch<Matrix>> block{{f, {}}};
    CHECK(double(*block.alpha.value()) == c.number("/params/alpha"));
    y.setConstant(std::numeric_limits<T>::quiet_NaN());
    dx = y;
    block.forward(device, x, y);
    block.backward(device, dy, x, dx);
    return block;
  };
  auto block = run(matrix(c.values("/inputs/f")));
  CHECK(bit_difference(listed(y), c.values("/expected/y")) == "");
  CHECK(bit_difference(listed(dx), c.values("/expected/dx")) == "");
  CHECK(difference(listed(block.sublayer.df), c.values("/expected/df"), {}) == "");
  CHECK(difference({double(*block.alpha.gradient())}, c.values("/expected/dalpha"), c.limit(type, "dalpha")) == "");

  // A large finite branch is kept out by alpha = 0.
  const Matrix large = Matrix::Constant(x.rows(), x.cols(), std::numeric_limits<T>::max());
  run(large);
  CHECK(bit_difference(listed(y), c.values("/expected/y")) == "");

  // With f = 0 too the branch is dead: nothing can move alpha.
  auto dead = run(Matrix::Zero(x.rows(), x.cols()));
  CHECK(double(*dead.alpha.gradient()) == 0);
  CHECK(difference(listed(dead.sublayer.df), c.values("/expected/df"), {}) == "");
  CHECK(bit_difference(listed(dx), c.values("/expected/dx")) == "");
}

// dalpha adds up over all rows.
template <class T>
void check_rezero_rows(const Case& c, const std::string& type) {
  const Values x = c.values("/inputs/x"), f = c.values("/inputs/f"), dy = c.values("/inputs/dy");
  const auto rows = [](const Values& row) {
    RowMatrix<T> m(5, Eigen::Index(row.size()));
    for (Eigen::Index r = 0; r < m.rows(); ++r)
      for (Eigen::Index i = 0; i < m.cols(); ++i) m(r, i) = T(row[std::size_t(i)]);
    return m;
  };
  ek::ReZero<T, GivenBranch<RowMatrix<T>>> block{{rows(f), {}}};
  RowMatrix<T> y(rows(x)), dx(rows(x));
  block.forward(ek::serial, rows(x), y);
  block.backward(ek::serial, rows(dy), rows(x), dx);
  CHECK(difference({double(*block.alpha.gradient())}, {5 * c.number("/expected/dalpha")}, c.limit(type, "dalpha")) ==
        "");
}

void check_rezero(const Case& c) {
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    check_rezero_on<T, RowMatrix<T>>(ek::serial, c, type);
    check_rezero_on<T, ColMatrix<T>>(ek::serial, c, type);
    for (const int threads : support::thread_counts)
      check_rezero_on<T, RowMatrix<T>>(support::ThreadPool(threads).device(), c, type);
    check_rezero_rows<T>(c, type);
  });
}

}  // namespace

void cases_test::add_residual_cases(Table& table) { table["rezero.forward / backward"] = check_rezero; }
