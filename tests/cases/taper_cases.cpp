#include "cases/table.hpp"
#include "evenkeel/evenkeel.hpp"
#include "norms/norm_under_test.hpp"

#include <Eigen/Core>

using namespace cases_test;
namespace ek = evenkeel;
using norms_test::ColMatrix, norms_test::RowMatrix, norms_test::matrix_of, norms_test::values_of, norms_test::Vector,
    norms_test::vector_of;

namespace {

template <class T, class Matrix>
void check_taper_as(const Case& c, const std::string& type) {
  const Shape shape = c.tensor("/inputs/x").shape;
  const auto matrix = [&](const std::string& name) {
    return Matrix(matrix_of<RowMatrix<T>>(std::size_t(shape.at(0)), std::size_t(shape.at(1)), c.values(name)));
  };
  const auto listed = [](const Matrix& m) { return values_of(RowMatrix<T>(m)); };
  const Matrix x = matrix("/inputs/x"), dy = matrix("/inputs/dy");
  const Vector<T> w = vector_of<T>(c.values("/params/w")), s = vector_of<T>(c.values("/params/s"));
  const ek::TaperRmsNormOptions options{
      .gate = c.number("/params/gate"), .factor = c.number("/params/c"), .eps = c.number("/params/eps"), .axis = 1};
  Matrix y = Matrix::Constant(x.rows(), x.cols(), norms_test::nan_of<T>()), dx = y;
  Vector<T> dw = Vector<T>::Constant(w.size(), norms_test::nan_of<T>()), ds = dw;
  ek::TaperRmsNormSaved<ek::accumulator_t<T>> saved;
  ek::taper_rms_norm(ek::serial, x, w, s, ek::none, y, saved, options);
  ek::taper_rms_norm_backward(ek::serial, dy, x, w, s, saved, dx, dw, ds, ek::none, ek::GradientMode::overwrite);
  const auto check = [&](const Values& got, const std::string& result) {
    CHECK(difference(got, c.values("/expected/" + result), c.limit(type, result)) == "");
  };
  check(listed(y), "y");
  check(listed(dx), "dx");
  check(values_of(dw), "dw");
  check(values_of(ds), "ds");
  const ek::TaperGateGradients of_gate = ek::taper_gate_gradients(ek::serial, dy, x, w, s, saved);
  check({of_gate.factor}, "dc");
  check({of_gate.gate}, "dgate");
}

void check_taper(const Case& c) {
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    check_taper_as<T, RowMatrix<T>>(c, type);
    check_taper_as<T, ColMatrix<T>>(c, type);
  });
}

}  // namespace

void cases_test::add_taper_cases(Table& table) { table["taper_norm.forward / backward"] = check_taper; }
