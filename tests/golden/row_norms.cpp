#include "cases/row_run.hpp"
#include "golden/expect.hpp"
#include "norms/l2_norm_under_test.hpp"

using namespace golden;
using cases_test::LayerNormUnderTest, cases_test::RmsNormUnderTest, cases_test::RowCase, cases_test::RowResult,
    cases_test::run_everywhere;
using norms_test::L2NormUnderTest;
using reference::Slab;

namespace {

template <class Norm>
void check_row_norm(const Case& c) {
  for_each_result(c, [&]<class T, class P>(Type<T>, Type<P>, const Named& results) {
    static_assert(std::is_same_v<T, P> || std::is_same_v<P, float>);
    RowCase row;
    row.length = row.rows = 1;
    const std::size_t axes = std::size_t(c.options.at("axes"));
    for (std::size_t a = 0; a < c.shape.size(); ++a) (a + axes < c.shape.size() ? row.rows : row.length) *= c.shape[a];
    row.x = rounded<T>(c.input("x"));
    row.dy = rounded<T>(c.input("dy"));
    row.weight = rounded<T>(c.input("weight"));
    row.bias = rounded<T>(c.input("bias"));
    row.eps = c.option("eps", ek::machine_epsilon);
    const double eps = c.option("eps", epsilon_of<ek::accumulator_t<T>>());
    const Slab slab{std::size_t(row.rows), std::size_t(row.length), 1};
    const auto forward = Norm::reference(slab, row.x, row.weight, row.bias, {eps, false, {}});
    const auto backward = Norm::reference_backward(slab, row.dy, row.x, row.weight, {eps, false, {}});
    for (const RowResult& result : run_everywhere<T, Norm>(row)) {
      expect<T>("y", result.y, results.at("y"), forward.y, forward.y_magnitude, slab.length);
      expect<T>("dx", result.dx, results.at("dx"), backward.dx, backward.dx_magnitude, slab.length);
      if (c.has_input("weight"))
        expect<T>("dweight", result.dweight, results.at("dweight"), backward.dweight, backward.dweight_magnitude,
                  slab.size());
      if (c.has_input("bias"))
        expect<T>("dbias", result.dbias, results.at("dbias"), backward.dbias, backward.dbias_magnitude, slab.size());
    }
  });
}

// Rows along any axis: they are taken out of x one by one, and results are compared in their order.
void check_l2_norm(const Case& c) {
  for_each_result(c, [&]<class T, class P>(Type<T>, Type<P>, const Named& results) {
    const std::vector<std::size_t> extents(c.shape.begin(), c.shape.end());
    const std::size_t axis = std::size_t(c.options.at("axis"));
    const Slab slab = reference::slab(extents, axis, axis), rows{slab.rows(), slab.length, 1};
    const auto by_rows = [&](const Values& v) {
      Values taken;
      for (std::size_t r = 0; r < slab.rows(); ++r)
        for (std::size_t i = 0; i < slab.length; ++i) taken.push_back(v.at(slab.at(r, i)));
      return taken;
    };
    RowCase row;
    row.rows = Eigen::Index(slab.rows());
    row.length = Eigen::Index(slab.length);
    row.x = by_rows(rounded<T>(c.input("x")));
    row.dy = by_rows(rounded<T>(c.input("dy")));
    row.eps = c.options.at("eps");
    const auto forward = reference::l2_norm(rows, row.x, {}, {}, {row.eps, false, {}});
    const auto backward = reference::l2_norm_backward(rows, row.dy, row.x, {}, {row.eps, false, {}});
    for (const RowResult& result : run_everywhere<T, L2NormUnderTest>(row)) {
      expect<T>("y", result.y, by_rows(results.at("y")), forward.y, forward.y_magnitude, slab.length);
      // torch's is made of operations that round one by one: norm, quotient, product, difference.
      expect<T>("dx", result.dx, by_rows(results.at("dx")), backward.dx, backward.dx_magnitude, slab.length, 4);
    }
  });
}

}  // namespace

void golden::add_row_norms(Table& table) {
  table["layer_norm"] = check_row_norm<LayerNormUnderTest>;
  table["rms_norm"] = check_row_norm<RmsNormUnderTest>;
  table["l2_norm"] = check_l2_norm;
}
