#include "nn/adamw.hpp"
#include "nn/schedule.hpp"
#include "support/catch.hpp"
#include "support/devices.hpp"

#include <array>
#include <vector>

namespace ek = evenkeel;

TEST_CASE("examples: AdamW takes the steps computed by hand", "[examples]") {
  ek::Parameter<double> weight("weight", 1), bias("bias", 1, false);
  weight.fill(1.0);
  bias.fill(1.0);
  nn::AdamW<double> adamw({weight.ref(), bias.ref()}, {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});

  // mean 0.05 / (1 - 0.9) = 0.5 and square 0.0125 / (1 - 0.95) = 0.25: a whole step of 0.1; decay takes 1% before.
  *weight.gradient() = *bias.gradient() = 0.5;
  adamw.step(ek::serial, 0.1);
  CHECK(*weight.value() == Approx(0.99 - 0.1).epsilon(1e-7));
  CHECK(*bias.value() == Approx(1.0 - 0.1).epsilon(1e-7));

  // mean 0.9 * 0.05 - 0.1 = -0.055, by 0.19: -0.2894737; square 0.95 * 0.0125 + 0.05 = 0.061875, by 0.0975: 0.6346154
  *weight.gradient() = *bias.gradient() = -1.0;
  adamw.step(ek::serial, 0.1);
  CHECK(*weight.value() == Approx(0.99 * 0.89 + 0.1 * 0.2894737 / 0.7966275).epsilon(1e-7));
  CHECK(*bias.value() == Approx(0.90 + 0.1 * 0.2894737 / 0.7966275).epsilon(1e-7));
}

TEST_CASE("examples: AdamW's factors scale the step and the decay of one parameter", "[examples]") {
  ek::Parameter<double> a("a", 1), b("b", 1);
  a.fill(1.0);
  b.fill(1.0);
  nn::AdamW<double> adamw({a.ref(), b.ref()}, {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
  adamw.set_factors({{.learning_rate = 1, .weight_decay = 1}, {.learning_rate = 0.25, .weight_decay = 4}});
  *a.gradient() = *b.gradient() = 0.5;
  adamw.step(ek::serial, 0.1);  // a whole step, as above
  CHECK(*a.value() == Approx(0.99 - 0.1).epsilon(1e-7));
  CHECK(*b.value() == Approx(0.99 - 0.025).epsilon(1e-7));
}

TEST_CASE("examples: gradients are clipped by their common norm", "[examples]") {
  support::for_each_device([](const auto& device) {
    ek::Parameter<float> a("a", 2), b("b", 1);
    nn::AdamW<float> adamw({a.ref(), b.ref()});
    const auto set = [&] {
      a.gradient()[0] = 2;
      a.gradient()[1] = -3;
      b.gradient()[0] = 6;
    };
    set();
    CHECK(adamw.clip_gradient(device, 1.0) == Approx(7));
    CHECK(a.gradient()[0] == Approx(2.0 / 7));
    CHECK(a.gradient()[1] == Approx(-3.0 / 7));
    CHECK(b.gradient()[0] == Approx(6.0 / 7));
    set();
    CHECK(adamw.clip_gradient(device, 7.5) == Approx(7));
    CHECK(b.gradient()[0] == 6);
    adamw.zero_gradient();
    CHECK(adamw.clip_gradient(device, 1.0) == 0);
  });
}

TEST_CASE("examples: the schedule's end points", "[examples]") {
  const nn::Schedule schedule{.peak = 2.0, .warmup = 10, .steps = 110, .floor = 0.1};
  CHECK(schedule(0) == Approx(0.2));
  CHECK(schedule(9) == Approx(2.0));
  CHECK(schedule(59) == Approx(2.0 * 0.55));  // the middle of the cosine
  CHECK(schedule(109) == Approx(0.2));
  for (long step = 10; step < 110; ++step) CHECK(schedule(step) < schedule(step - 1));

  const nn::Schedule shortest{.peak = 2.0, .warmup = 0, .steps = 1, .floor = 0.1};
  CHECK(shortest(0) == Approx(0.2));
}
