#include "evenkeel/probe/coordinate_check.hpp"

#include "support/catch.hpp"
#include "support/data.hpp"

#include <Eigen/Core>

#include <cmath>
#include <limits>
#include <sstream>

namespace {

namespace ek = evenkeel;
using Vector = Eigen::VectorXd;

TEST_CASE("the slope over widths, by hand", "[probe]") {
  ek::CoordinateCheck check;
  // mean |x| = 3 * sqrt(width), from two records whose mean that is.
  for (const ek::Index width : {16, 64, 256}) {
    const double size = 3 * std::sqrt(double(width));
    check.record("h", width, 2, Vector::Constant(4, size / 2));
    check.record("h", width, 2, Eigen::RowVector2f(float(-1.5 * size), float(1.5 * size)));
    check.record("h", width, 0, Vector::Constant(3, -7.0));
    check.record("flat", width, 1, Vector::Constant(3, 2.0));
    check.record("small", width, 1, Vector::Constant(3, 1 / double(width)));
    check.record("head", width, 0, Vector::Zero(2));
    check.record("head", width, 1, Vector::Constant(2, double(width)));
    check.record("bad", width, 4, Vector::Constant(2, width == 64 ? double(NAN) : 1.0));
  }
  CHECK(check.mean_absolute("h", 64, 2) == Approx(24).epsilon(1e-7));
  CHECK(check.slope("h", 2) == Approx(0.5).epsilon(1e-7));
  CHECK(check.slope("h", 0) == Approx(0).margin(1e-15));
  CHECK(check.slope("small", 1) == Approx(-1).epsilon(1e-12));
  CHECK(std::isnan(check.slope("head", 0)));

  const ek::WidthVerdict verdict = check.verdict();
  CHECK_FALSE(verdict.passed());
  CHECK(verdict.text() ==
        "bad: not finite in step 4\n"
        "flat: stable, mean |x| ~ width^0 in step 1\n"
        "h: grows with the width, mean |x| ~ width^0.5 in step 2\n"
        "head: grows with the width, mean |x| ~ width^1 in step 1\n"
        "small: shrinks with the width, mean |x| ~ width^-1 in step 1\n");

  std::ostringstream csv;
  check.write_csv(csv);
  CHECK_THAT(csv.str(), support::contains_text("point,step,width,mean_absolute,records\nbad,4,16,1,1\nbad,4,64,,1\n"));
  CHECK_THAT(csv.str(), support::contains_text("\nh,2,16,12,2\n"));
}

TEST_CASE("a check that cannot judge says what it lacks", "[probe]") {
  ek::CoordinateCheck check;
  check.record("h", 16, 0, Vector::Ones(2));
  CHECK_THROWS_AS(check.slope("h", 0), ek::StateError);
  CHECK_THROWS_WITH(check.slope("h", 0), "CoordinateCheck::slope: h has one width in step 0, expected two or more");
  CHECK_THROWS_AS(check.verdict(), ek::StateError);
  CHECK_THROWS_WITH(check.slope("h", 3), "CoordinateCheck::slope: nothing was recorded at h in step 3");
  CHECK_THROWS_WITH(check.mean_absolute("x", 16, 0),
                    "CoordinateCheck::mean_absolute: nothing was recorded at x in step 0");
  CHECK_THROWS_WITH(check.mean_absolute("h", 32, 0),
                    "CoordinateCheck::mean_absolute: width 32 was not recorded at h in step 0");
  CHECK_THROWS_WITH(check.record("h", 0, 0, Vector::Ones(2)),
                    "CoordinateCheck::record: width is 0, expected 1 or more");
}

// Two linear layers, h = x V and y = h U, and one step of SGD-like sign updates of size `rate` on U and V, as Adam makes
// them: with one rate for all widths y grows, with the hidden rate divided by the width it does not.
TEST_CASE("Adam's updates grow the output with the width, unless muP divides the rate", "[probe]") {
  const auto verdict = [](bool mup) {
    ek::CoordinateCheck check({.slope = 0.2});
    for (const ek::Index width : {32, 64, 128, 256}) {
      const ek::Index batch = 4;
      const auto normal = [&](ek::Index rows, ek::Index columns, double spread, std::uint64_t seed) {
        const auto values = support::normal<double>(std::size_t(rows * columns), seed * 1000003, 0, spread);
        return Eigen::MatrixXd(Eigen::Map<const Eigen::MatrixXd>(values.data(), rows, columns));
      };
      const Eigen::MatrixXd x = normal(batch, width, 1, 1);
      Eigen::MatrixXd w = normal(width, width, 1 / std::sqrt(double(width)), 2);
      const Eigen::MatrixXd gradient = normal(batch, width, 1, 3);
      check.record("hidden", width, 0, x * w);
      const double rate = 0.05 * (mup ? 32.0 / double(width) : 1.0);
      w -= rate * (x.transpose() * gradient).cwiseSign();
      check.record("hidden", width, 1, x * w);
    }
    return check.verdict();
  };
  INFO(verdict(false).text() << verdict(true).text());
  CHECK_FALSE(verdict(false).passed());
  CHECK(verdict(false).findings[0].step == 1);
  CHECK(verdict(true).passed());
}

}  // namespace
