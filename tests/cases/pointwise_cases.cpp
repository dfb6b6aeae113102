#include "cases/pointwise_run.hpp"
#include "cases/table.hpp"

using namespace cases_test;

namespace {

// The derivative of tanh at 0 is 1 exactly, so that dx is weight * dy * alpha there without the curve's rounding.
void check_slope_at_zero(const PointwiseCase& p, const PointwiseResult& result) {
  int met = 0;
  for (std::size_t i = 0; i < p.x.size(); ++i) {
    if (p.x[i] != 0) continue;
    ++met;
    CHECK(result.dx.at(i) == p.dy[i] * p.weight[i % p.weight.size()] * p.alpha);
    CHECK(result.y.at(i) == p.bias[i % p.bias.size()]);
  }
  CHECK(met > 0);
}

void check_dyt(const Case& c) {
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    PointwiseCase p;
    const Tensor x = c.tensor("/inputs/x");
    p.rows = x.shape.at(0);
    p.length = x.shape.at(1);
    p.x = x.values;
    p.dy = c.values("/inputs/dy");
    p.alpha = c.number("/params/alpha");
    p.weight = c.values("/params/gamma");
    p.bias = c.values("/params/beta");
    for (const PointwiseResult& result : run_pointwise_everywhere<T, DytUnderTest>(p)) {
      expect(c, type, "y", result.y, c.values("/expected/y"));
      expect(c, type, "dx", result.dx, c.values("/expected/dx"));
      expect(c, type, "dalpha", result.dalpha, c.values("/expected/dalpha"));
      expect(c, type, "dgamma", result.dweight, c.values("/expected/dgamma"));
      expect(c, type, "dbeta", result.dbias, c.values("/expected/dbeta"));
      check_slope_at_zero(p, result);
    }
  });
}

}  // namespace

void cases_test::add_pointwise_cases(Table& table) { table["dyt.forward / backward"] = check_dyt; }
