#include "cases/table.hpp"
#include "evenkeel/fold/fold.hpp"
#include "norms/norm_under_test.hpp"

#include <Eigen/Core>

#include <string>

using namespace cases_test;

namespace {

namespace ek = evenkeel;
using norms_test::RowMatrix, norms_test::vector_of;

Values row_major(const auto& m) {
  Values values;
  for (Eigen::Index r = 0; r < m.rows(); ++r)
    for (Eigen::Index c = 0; c < m.cols(); ++c) values.push_back(static_cast<double>(m(r, c)));
  return values;
}

void expect(const Case& c, const std::string& type, const std::string& name, const Values& got) {
  INFO(name << " in " << type);
  CHECK(difference(got, c.values("/expected/" + name), c.limit(type, name)) == "");
}

// A weight of (out, in), and the same stored (in, out): without a bias, which is created over NaN, and with one.
template <class T, class Matrix>
void check_layout(const Case& c, const std::string& type, bool out_in) {
  const Tensor given = c.tensor("/inputs/W");
  const auto rows = static_cast<std::size_t>(given.shape.at(0)), columns = static_cast<std::size_t>(given.shape.at(1));
  const auto torch = norms_test::matrix_of<RowMatrix<T>>(rows, columns, given.values);
  Matrix w = torch;
  if (!out_in) w = torch.transpose();
  const auto norm = ek::batch_norm_map(vector_of<T>(c.values("/params/gamma")), vector_of<T>(c.values("/params/beta")),
                                       vector_of<T>(c.values("/params/running_mean")),
                                       vector_of<T>(c.values("/params/running_var")), c.number("/params/eps"));
  const ek::FoldOptions options{.axes = {.input = {out_in ? 1 : 0}, .output = {out_in ? 0 : 1}}};
  auto bias = vector_of<T>(c.values("/inputs/bias_b"));
  Matrix folded = Matrix::Constant(w.rows(), w.cols(), T(NAN));
  auto created = bias;
  created.fill(T(NAN));
  ek::fold_into_previous(norm, w, ek::none, folded, created, options);
  ek::fold_into_previous(norm, w, bias, w, bias, options);

  const RowMatrix<T> result = out_in ? RowMatrix<T>(folded) : RowMatrix<T>(folded.transpose());
  CHECK((folded.array() == w.array()).all());
  expect(c, type, "W_folded", row_major(result));
  expect(c, type, "b_a", row_major(created));
  expect(c, type, "b_b", row_major(bias));
  const auto x = vector_of<T>(c.values("/inputs/x"));
  Values y;
  for (Eigen::Index r = 0; r < result.rows(); ++r) {
    double sum = static_cast<double>(created(r));
    for (Eigen::Index i = 0; i < result.cols(); ++i)
      sum += static_cast<double>(result(r, i)) * static_cast<double>(x(i));
    y.push_back(sum);
  }
  expect(c, type, "y_probe_a", y);
}

void check_fold_linear(const Case& c) {
  for_each_type<double, float>(c, [&]<class T>(Type<T>, const std::string& type) {
    using ColumnMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
    for (const bool out_in : {true, false}) {
      check_layout<T, RowMatrix<T>>(c, type, out_in);
      check_layout<T, ColumnMatrix>(c, type, out_in);
    }
  });
}

}  // namespace

void cases_test::add_fold_cases(Table& table) { table["batch_norm.fold_linear"] = check_fold_linear; }
