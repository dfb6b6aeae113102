#include "cases/pointwise_run.hpp"
#include "golden/expect.hpp"

using namespace golden;
using cases_test::DerfUnderTest, cases_test::DytUnderTest, cases_test::PointwiseCase, cases_test::PointwiseResult;
using reference::Slab;

namespace {

template <class Norm>
void check_pointwise(const Case& c) {
  for_each_result(c, [&]<class T, class P>(Type<T>, Type<P>, const Named& results) {
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>) {
      PointwiseCase p;
      p.length = c.shape.back();
      p.rows = 1;
      for (std::size_t a = 0; a + 1 < c.shape.size(); ++a) p.rows *= c.shape[a];
      p.x = rounded<T>(c.input("x"));
      p.dy = rounded<T>(c.input("dy"));
      p.weight = rounded<T>(c.input("weight"));
      p.bias = rounded<T>(c.input("bias"));
      p.alpha = c.input("alpha").at(0);
      if (Norm::shifted) p.shift = c.input("shift").at(0);
      const Slab slab{std::size_t(p.rows), std::size_t(p.length), 1};
      const auto forward = reference::pointwise(Norm::curve, slab, p.x, p.alpha, p.shift, p.weight, p.bias);
      const auto d = reference::pointwise_backward(Norm::curve, slab, p.dy, p.x, p.alpha, p.shift, p.weight);
      for (const PointwiseResult& result : cases_test::run_pointwise_everywhere<T, Norm>(p)) {
        expect<T>("y", result.y, results.at("y"), forward.y, forward.y_magnitude, 0);
        expect<T>("dx", result.dx, results.at("dx"), d.dx, d.dx_magnitude, 0);
        expect<T>("dweight", result.dweight, results.at("dweight"), d.dweight, d.dweight_magnitude, slab.rows());
        expect<T>("dbias", result.dbias, results.at("dbias"), d.dbias, d.dbias_magnitude, slab.rows());
        expect<T>("dalpha", result.dalpha, results.at("dalpha"), {d.dalpha}, {d.dalpha_magnitude}, slab.size());
        if (Norm::shifted)
          expect<T>("dshift", result.dshift, results.at("dshift"), {d.dshift}, {d.dshift_magnitude}, slab.size());
      }
    } else {
      FAIL_CHECK("dyt and derf are compiled for double and float here");
    }
  });
}

}  // namespace

void golden::add_pointwise_norms(Table& table) {
  table["dyt"] = check_pointwise<DytUnderTest>;
  table["derf"] = check_pointwise<DerfUnderTest>;
}
