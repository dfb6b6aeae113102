#include "evenkeel/taper/taper.hpp"

#include "support/catch.hpp"

#include <cmath>

namespace ek = evenkeel;

TEST_CASE("the gate is 1 through the warmup, then half a cosine, then 0", "[taper]") {
  const ek::TaperSchedule s{.warmup_steps = 10, .end_step = 30};
  CHECK(s.gate(0) == 1);
  CHECK(s.gate(10) == 1);
  CHECK(s.gate(11) == Approx((1 + std::cos(std::acos(-1.0) / 20)) / 2).epsilon(1e-15));
  CHECK(s.gate(11) < 1);
  CHECK(s.gate(15) == Approx((2 + std::sqrt(2.0)) / 4).epsilon(1e-15));
  CHECK(s.gate(20) == Approx(0.5).epsilon(1e-15));
  CHECK(s.gate(29) > 0);
  CHECK(s.gate(30) == 0);
  CHECK(s.gate(1000) == 0);
  CHECK(ek::TaperSchedule{0, 1}.gate(0) == 1);
  CHECK(ek::TaperSchedule{0, 1}.gate(1) == 0);
}

TEST_CASE("a Taper counts updates and names its phase", "[taper]") {
  ek::Taper taper({.warmup_steps = 2, .end_step = 4});
  const ek::TaperPhase phases[] = {ek::TaperPhase::warmup, ek::TaperPhase::warmup, ek::TaperPhase::tapering,
                                   ek::TaperPhase::tapering, ek::TaperPhase::tapered};
  const double gates[] = {1, 1, 1, 0.5, 0};
  for (int step = 0; step < 5; ++step) {
    CHECK(taper.step() == step);
    CHECK(taper.phase() == phases[step]);
    CHECK(taper.gate() == Approx(gates[step]).epsilon(1e-15));
    ek::Taper again({.warmup_steps = 2, .end_step = 4});
    again.restore(taper.state());
    CHECK(again.gate() == taper.gate());
    taper.advance();
  }
  CHECK(taper.rate() == 0.01);
}

TEST_CASE("a Taper names what is impossible", "[taper][errors]") {
  CHECK_THROWS_WITH(ek::Taper({.warmup_steps = 5, .end_step = 5}),
                    "Taper::Taper: warmup_steps is 5 and end_step is 5, expected 0 <= warmup_steps < end_step");
  CHECK_THROWS_AS(ek::Taper({.warmup_steps = -1, .end_step = 5}), ek::ShapeError);
  CHECK_THROWS_WITH(ek::Taper({1, 2}, 0), "Taper::Taper: the rate is 0.000000, expected more than 0 and at most 1");
  CHECK_THROWS_AS(ek::Taper({1, 2}, 1.5), ek::ShapeError);
  ek::Taper taper({1, 2});
  CHECK_THROWS_WITH(taper.restore({.step = -3}), "Taper::restore: got step -3, expected 0 or more");
  CHECK_THROWS_AS(taper.restore({.step = -3}), ek::StateError);
}

TEST_CASE("an Ema weighs the newest number with its rate and corrects its bias", "[taper]") {
  const double numbers[] = {3, -1, 4, 1.5, 9}, rate = 0.3;
  ek::Ema ema(rate);
  CHECK(ema.empty());
  double raw = 0;
  for (int t = 1; t <= 5; ++t) {
    const double x = numbers[t - 1];
    ema.add(x);
    raw = (1 - rate) * raw + rate * x;
    CHECK(ema.value() == Approx(raw / (1 - std::pow(1 - rate, t))).epsilon(1e-14));
    CHECK(ema.count() == t);
  }
  ek::Ema restored(rate);
  restored.restore(ema.state());
  ema.add(7), restored.add(7);
  CHECK(restored.value() == ema.value());
  ek::Ema constant(0.01);
  for (int t = 0; t < 1000; ++t) constant.add(2.5);
  CHECK(constant.value() == Approx(2.5).epsilon(1e-14));
}

TEST_CASE("an Ema names what is impossible", "[taper][errors]") {
  CHECK_THROWS_WITH(ek::Ema(0), "Ema::Ema: the rate is 0.000000, expected more than 0 and at most 1");
  ek::Ema ema;
  CHECK_THROWS_WITH(ema.value(), "Ema::value: got no numbers yet, expected 1 or more");
  CHECK_THROWS_WITH(ema.add(INFINITY), "Ema::add: got inf, expected a finite number");
  CHECK_THROWS_WITH(
      ema.restore({.sum = 1, .weight = 2, .count = 3}),
      "Ema::restore: got sum 1.000000, weight 2.000000, count 3, expected a finite sum and a weight from 0 "
      "to 1 that is 0 with count 0");
  CHECK_THROWS_AS(ema.restore({.sum = NAN, .weight = 0.5, .count = 3}), ek::StateError);
  CHECK_THROWS_AS(ema.restore({.sum = 1, .weight = 0, .count = 0}), ek::StateError);
  CHECK_THROWS_AS(ema.restore({.sum = 1, .weight = 0.5, .count = -1}), ek::StateError);
  CHECK(ema.empty());
}
