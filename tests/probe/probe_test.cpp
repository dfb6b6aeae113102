#include "evenkeel/probe/probe.hpp"

#include "support/catch.hpp"
#include "support/data.hpp"

#include <Eigen/Core>
#include <unsupported/Eigen/CXX11/Tensor>

#include <cmath>
#include <limits>
#include <sstream>
#include <string>

namespace {

namespace ek = evenkeel;
using ek::Condition, ek::ProbeKind;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// Seeds far apart: those of support::Random are places in one sequence.
Matrix normal(ek::Index rows, ek::Index columns, std::uint64_t seed, double spread = 1) {
  const auto values = support::normal<double>(std::size_t(rows * columns), seed * 1000003, 0, spread);
  return Eigen::Map<const Matrix>(values.data(), rows, columns);
}

TEST_CASE("the statistics of a signal, by hand", "[probe]") {
  Eigen::MatrixXf x(2, 3);
  x << 1, -2, 3, 4, 0, -6;
  const auto check = [](const ek::SignalStatistics& s, double scale) {
    CHECK(s.count == 6);
    CHECK(s.finite() == 6);
    CHECK(s.mean == 0);
    CHECK(s.second_moment == scale * scale * 11);
    CHECK(s.largest == scale * 6);
    CHECK(s.mean_absolute == Approx(scale * 16 / 6).epsilon(1e-15));
    CHECK(s.root_mean_square() == Approx(scale * std::sqrt(11.0)).epsilon(1e-15));
    CHECK(s.norm() == Approx(scale * std::sqrt(66.0)).epsilon(1e-15));
  };
  check(ek::signal_statistics(x), 1);
  check(ek::signal_statistics(x.cast<Eigen::bfloat16>()), 1);
  check(ek::signal_statistics(x.cast<Eigen::half>().eval()), 1);
  check(ek::signal_statistics(2 * x.transpose() - x.transpose()), 1);
  check(ek::signal_statistics((x + x).block(0, 0, 2, 3)), 2);
  const Eigen::TensorMap<Eigen::Tensor<float, 3>> tensor(x.data(), 2, 1, 3);
  check(ek::signal_statistics(tensor), 1);
  // Every other value of a longer row, as a view and as a map.
  std::vector<float> wide{1, 9, -2, 9, 3, 9, 4, 9, 0, 9, -6, 9};
  check(ek::signal_statistics(ek::AxisView<float>{
            .data = wide.data(), .outer = {1, 2}, .outer_stride = {0, 6}, .length = 3, .stride = 2}),
        1);
  check(ek::signal_statistics(Eigen::Map<const Eigen::VectorXf, 0, Eigen::InnerStride<2>>(wide.data(), 6)), 1);

  x(1, 1) = float(nan);
  x(0, 1) = -float(infinity);
  const ek::SignalStatistics s = ek::signal_statistics(x);
  CHECK(s.count == 6);
  CHECK(s.nan == 1);
  CHECK(s.inf == 1);
  CHECK(s.mean == 0.5);
  CHECK(s.second_moment == 62.0 / 4);
  CHECK(ek::signal_statistics(Eigen::VectorXd()).second_moment == 0);
  // Squares that float does not hold.
  CHECK(ek::signal_statistics(Eigen::VectorXf::Constant(3, 1e30f)).root_mean_square() == Approx(1e30));
}

TEST_CASE("the radial part of a gradient, by hand", "[probe]") {
  Matrix h(3, 2), dh(3, 2);
  h << 3, 4, 1, 0, 0, 0;
  dh << 4, -3, 2, 0, 5, 5;
  // Row 0 is orthogonal, row 1 parallel, row 2 has no direction: dot 2, |h|^2 = 26, |dh|^2 = 29.
  const ek::RadialStatistics s = ek::radial_statistics(h, dh);
  CHECK(s.radial == Approx(2 / std::sqrt(26.0 * 29.0)).epsilon(1e-15));
  CHECK(s.radial_rows == Approx(std::sqrt(2.0 * 0.5)).epsilon(1e-15));
  CHECK(s.gradient.second_moment == Approx((29.0 + 50.0) / 6).epsilon(1e-15));
  CHECK(ek::radial_statistics(h, -dh).radial == -s.radial);
  // Columns as rows.
  const Eigen::MatrixXd ht = h.transpose(), dht = dh.transpose();
  CHECK(ek::radial_statistics(ht, dht, 0).radial_rows == s.radial_rows);
  CHECK(ek::radial_statistics(Matrix::Zero(2, 2), Matrix::Ones(2, 2)).radial == 0);
  CHECK_THROWS_WITH(ek::radial_statistics(h, Matrix(2, 3)), "radial_statistics: dh is 2x3, h is 3x2, axis 1");
  CHECK_THROWS_AS(ek::radial_statistics(ht, dht), ek::ShapeError);  // column-major: name the axis
  // Random directions.
  CHECK(ek::radial_statistics(normal(500, 64, 1), normal(500, 64, 2)).radial_rows == Approx(1).margin(0.1));
}

TEST_CASE("records, and their table", "[probe]") {
  ek::Probe probe({.saturation = std::tanh(1.0)});
  const Eigen::RowVector4d x(1, -3, 2.5, 0), value(3, 4, 0, 0), gradient(0, 0, 6, 8), update(0.03, 0, 0, 0.04);
  probe.forward("in, \"first\"", 0, x);
  probe.begin_step(7);
  probe.forward_dyt("block.1.dyt", 1, x, 0.5);
  probe.backward("block.1.out", 1, gradient);
  probe.backward("block.1.out", 1, x, gradient);
  probe.parameter("block.1.weight", 1, value, gradient, update);
  probe.parameter("block.1.bias", 1, value, ek::none, ek::none);
  const auto& r = probe.records();
  REQUIRE(r.size() == 6);
  CHECK(r[0].step == 0);
  CHECK(r[1].step == 7);
  CHECK(r[1].saturated == 0.5);  // -3 and 2.5 are above 1/alpha
  CHECK(r[1].second_moment == 16.25 / 4);
  CHECK(std::isnan(r[0].saturated));
  CHECK(r[2].gradient_norm == 10);
  CHECK(std::isnan(r[2].radial));
  CHECK(r[3].gradient_norm == 10);
  CHECK(r[3].radial == Approx(15 / (std::sqrt(16.25) * 10)).epsilon(1e-15));
  CHECK(r[3].radial_rows == Approx(2 * r[3].radial).epsilon(1e-15));
  CHECK(r[4].gradient_norm == 10);
  CHECK(r[4].update_ratio == Approx(0.01).epsilon(1e-15));
  CHECK(r[4].count == 12);
  CHECK(std::isnan(r[5].gradient_norm));
  CHECK(std::isnan(r[5].update_ratio));

  std::ostringstream csv;
  probe.write_csv(csv);
  std::istringstream lines(csv.str());
  std::string line;
  const auto next = [&] { return std::getline(lines, line) ? line : std::string("end"); };
  CHECK(next() ==
        "step,layer,point,kind,count,nan,inf,mean,second_moment,largest,gradient_norm,saturated,radial,radial_rows,"
        "update_ratio");
  CHECK(next() == "0,0,\"in, \"\"first\"\"\",forward,4,0,0,0.125,4.0625,3,,,,,");
  CHECK(next() == "7,1,block.1.dyt,forward,4,0,0,0.125,4.0625,3,,0.5,,,");
  CHECK(next() == "7,1,block.1.out,backward,4,0,0,3.5,25,8,10,,,,");
  next();
  CHECK(next() == "7,1,block.1.weight,parameter,12,0,0,1.75,6.25,4,10,,,,0.01");
  CHECK(next() == "7,1,block.1.bias,parameter,4,0,0,1.75,6.25,4,,,,,");
  CHECK(next() == "end");

  std::ostringstream script;
  ek::write_gnuplot(script, "run/probe.csv", "probe.png");
  CHECK_THAT(script.str(), support::contains_text("csv = 'run/probe.csv'"));
  CHECK_THAT(script.str(), support::contains_text("set output 'probe.png'"));
  probe.clear();
  CHECK(probe.records().empty());
}

// A stack whose layer l has a signal of size forward(l) and a gradient of norm backward(l).
template <class Forward, class Backward>
ek::Probe stack(int layers, const Forward& forward, const Backward& backward) {
  ek::Probe probe;
  for (int l = 0; l < layers; ++l)
    probe.forward("block." + std::to_string(l) + ".out", l, normal(4, 64, std::uint64_t(l), forward(l)));
  for (int l = layers; l-- > 0;)
    probe.backward("block." + std::to_string(l) + ".out", l, normal(4, 64, std::uint64_t(l + 100), backward(l)));
  return probe;
}
double one(int) { return 1; }

// Sums of noise: what a residual stream is, N blocks with two branches, each scaled.
ek::Probe stream(int blocks, double scale) {
  ek::Probe probe;
  Matrix x = normal(8, 64, 1000);
  probe.forward("block.0.out", 0, x);
  for (int l = 1; l <= blocks; ++l) {
    x += scale * normal(8, 64, std::uint64_t(2 * l)) + scale * normal(8, 64, std::uint64_t(2 * l + 1));
    probe.forward("block." + std::to_string(l) + ".out", l, x);
  }
  return probe;
}

TEST_CASE("a healthy stack is called healthy", "[probe]") {
  CHECK(stack(48, one, one).verdict().text() == "healthy\n");
  CHECK(stream(50, 0.1).verdict().healthy());
  CHECK(stack(
            3, [](int l) { return std::pow(10.0, l); }, one)
            .verdict()
            .healthy());  // too few to tell
  CHECK(ek::Probe().verdict().healthy());
  // A small embedding before blocks of size 1, and a stack that grows by less than the limits.
  CHECK(stack(
            24, [](int l) { return l == 0 ? 0.02 : 1.0; }, one)
            .verdict()
            .healthy());
  CHECK(stack(
            30, [](int l) { return std::pow(1.03, l); }, [](int l) { return std::pow(1.03, l); })
            .verdict()
            .healthy());
}

TEST_CASE("a gain of 1.1 per layer explodes, one of 0.9 vanishes", "[probe]") {
  const auto up = [](int l) { return std::pow(1.1, l); };
  const auto down = [](int l) { return std::pow(0.9, l); };
  const auto late = [&](int l) { return l < 12 ? 1.0 : up(l - 12); };
  const auto check = [](const ek::Probe& probe, Condition condition, ProbeKind kind, int from, int margin,
                        double factor) {
    const ek::ProbeVerdict verdict = probe.verdict();
    INFO(verdict.text());
    REQUIRE(verdict.findings.size() == 1);
    const ek::Finding* const finding = verdict.find(condition, kind);
    REQUIRE(finding != nullptr);
    CHECK(finding->series == "block.*.out");
    CHECK(std::abs(int(finding->layer) - from) <= margin);
    CHECK(finding->amount == Approx(factor).epsilon(0.3));
  };
  check(stack(48, up, one), Condition::exploding, ProbeKind::forward, 0, 2, up(47));
  check(stack(48, down, one), Condition::vanishing, ProbeKind::forward, 0, 2, down(47));
  check(stack(48, late, one), Condition::exploding, ProbeKind::forward, 12, 3, up(35));
  // Gradients are read from the last layer to the first.
  check(stack(48, one, up), Condition::vanishing, ProbeKind::backward, 47, 2, 1 / up(47));
  check(stack(48, one, down), Condition::exploding, ProbeKind::backward, 47, 2, 1 / down(47));

  ek::Probe exact;
  for (int l = 0; l < 5; ++l) exact.forward("h" + std::to_string(l), l, Eigen::VectorXd::Constant(3, std::pow(2, l)));
  CHECK(exact.verdict().text() ==
        "exploding: the signal at h* changes by 2 per layer from layer 0 to 4, 16 times in all\n");
  ek::Probe dead;
  for (int l = 0; l < 6; ++l) dead.forward("h" + std::to_string(l), l, Eigen::VectorXd::Constant(3, l < 2 ? 1.0 : 0.0));
  CHECK(dead.verdict().find(Condition::vanishing) != nullptr);

  // However slowly: 1.02 per layer is below the limit, and 3700 times in 415 layers is not healthy.
  const auto slow = [](int l) { return std::pow(1.02, l); };
  check(stack(416, slow, one), Condition::exploding, ProbeKind::forward, 0, 0, slow(415));
  check(stack(416, one, slow), Condition::vanishing, ProbeKind::backward, 415, 0, 1 / slow(415));
  CHECK(stack(300, slow, one).verdict().find(Condition::exploding) == nullptr);
}

TEST_CASE("a stream without scales dilutes its deep layers", "[probe]") {
  const ek::ProbeVerdict verdict = stream(50, 1).verdict();
  INFO(verdict.text());
  REQUIRE(verdict.findings.size() == 1);
  const ek::Finding* const finding = verdict.find(Condition::diluted);
  REQUIRE(finding != nullptr);
  CHECK(finding->amount == Approx(101.0 / 3).epsilon(0.15));
  CHECK(std::abs(int(finding->layer) - 15) <= 3);  // 1 + 2l > 10 * 3
  CHECK(stream(10, 1).verdict().healthy());
}

TEST_CASE("a final norm is missing where gradients have a radial part", "[probe]") {
  // Three blocks, then RMSNorm or nothing, then a head with cross-entropy: dL/dlogits = p - onehot.
  const auto probe_of = [](bool final_norm) {
    ek::Probe probe;
    const ek::Index tokens = 16, width = 32, classes = 10;
    const Matrix head = normal(width, classes, 3, 0.3);
    for (int l = 0; l < 3; ++l) {
      const Matrix h = normal(tokens, width, std::uint64_t(l + 10));
      Matrix y = h, dh;
      Eigen::VectorXd rstd = Eigen::VectorXd::Ones(tokens);
      if (final_norm) rstd = (h.rowwise().squaredNorm() / double(width)).cwiseSqrt().cwiseInverse();
      y = rstd.asDiagonal() * h;
      Matrix p = (y * head).array().exp().matrix();
      for (ek::Index t = 0; t < tokens; ++t) {
        p.row(t) /= p.row(t).sum();
        p(t, t % classes) -= 1;
      }
      dh = p * head.transpose();
      if (final_norm)
        for (ek::Index t = 0; t < tokens; ++t)
          dh.row(t) = rstd[t] * (dh.row(t) - y.row(t) * (dh.row(t).dot(y.row(t)) / double(width)));
      probe.backward("block." + std::to_string(l) + ".out", l, h, dh);
      if (l == 2) probe.backward("head.in", 3, y, p * head.transpose());  // behind the norm: no series
    }
    return probe;
  };
  CHECK(probe_of(true).verdict().text() == "healthy\n");
  CHECK(probe_of(true).records().back().radial_rows > 0.2);
  const ek::ProbeVerdict verdict = probe_of(false).verdict();
  INFO(verdict.text());
  REQUIRE(verdict.findings.size() == 1);
  CHECK(verdict.findings[0].condition == Condition::missing_final_norm);
  CHECK(verdict.findings[0].layer == 2);
  CHECK_THAT(verdict.text(), support::contains_text("missing final norm: the gradient at block.2.out, layer 2"));
}

TEST_CASE("the first value that is not finite is named, and the rest is judged without it", "[probe]") {
  ek::Probe probe;
  for (const int step : {1, 2}) {
    probe.begin_step(step);
    for (int l = 0; l < 4; ++l) {
      Matrix x = normal(2, 8, 5);
      if (step == 2 && l >= 2) x(0, 0) = nan, x(1, 1) = infinity, x(1, 2) = nan;
      probe.forward("block." + std::to_string(l) + ".out", l, x);
    }
  }
  const ek::ProbeVerdict verdict = probe.verdict();
  REQUIRE(verdict.findings.size() == 1);
  CHECK(verdict.findings[0].amount == 3);
  CHECK(
      verdict.text() ==
      "non-finite: 2 nan and 1 inf of 16 values first seen forward at block.2.out, layer 2, step 2; in 1 records after "
      "it\n");
  ek::Probe overflow;  // squares that overflow from some layer on say nothing about the layers after it
  for (int l = 0; l < 12; ++l)
    overflow.forward("h" + std::to_string(l), l, Eigen::VectorXd::Constant(3, l < 6 ? 1.0 : infinity));
  REQUIRE(overflow.verdict().findings.size() == 1);
  CHECK(overflow.verdict().findings[0].condition == Condition::non_finite);
  ek::Probe on_the_way;  // what led there is judged
  for (int l = 0; l < 12; ++l)
    on_the_way.forward("h" + std::to_string(l), l, Eigen::VectorXd::Constant(3, l < 6 ? std::pow(3, l) : infinity));
  REQUIRE(on_the_way.verdict().find(Condition::exploding) != nullptr);
  CHECK(on_the_way.verdict().find(Condition::exploding)->amount == Approx(243));
  ek::Probe update;
  update.parameter("w", 3, Eigen::Vector2d(1, 1), Eigen::Vector2d(0, nan), Eigen::Vector2d(infinity, 0));
  REQUIRE(update.verdict().findings.size() == 1);
  CHECK(update.verdict().findings[0].kind == ProbeKind::parameter);
  CHECK(update.verdict().findings[0].amount == 2);
}

TEST_CASE("only the last step of a series is judged for growth", "[probe]") {
  ek::Probe probe;
  for (const int step : {1, 2}) {
    probe.begin_step(step);
    for (int l = 0; l < 12; ++l)
      probe.forward("x" + std::to_string(l), l, Eigen::VectorXd::Constant(3, std::pow(step == 1 ? 2.0 : 1.0, l)));
  }
  CHECK(probe.verdict().healthy());
  probe.begin_step(3);
  for (int l = 0; l < 12; ++l)  // micro-batches: the last counts
    for (const double gain : {1.0, 2.0})
      probe.forward("x" + std::to_string(l), l, Eigen::VectorXd::Constant(3, std::pow(gain, l)));
  REQUIRE(probe.verdict().find(Condition::exploding) != nullptr);
  CHECK(probe.verdict().find(Condition::exploding)->step == 3);
}

}  // namespace
