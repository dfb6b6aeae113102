// What a data-parallel user of norms needs beside SyncBatchNorm: norms of gradients and calibrations over ranks.
#include "distributed/thread_ranks.hpp"
#include "evenkeel/clipping.hpp"
#include "evenkeel/taper/scale_anchor.hpp"
#include "evenkeel/taper/taper_layer.hpp"
#include "support/catch.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

using distributed_test::on_ranks;
namespace ek = evenkeel;

namespace {

std::string text(double value) { return std::to_string(value) + "; "; }

std::vector<ek::ParameterRef<double>> one_parameter(std::vector<double>& gradient) {
  return {ek::ParameterRef<double>{
      .name = "w", .value = nullptr, .gradient = gradient.data(), .size = ek::Index(gradient.size())}};
}

// What a call throws, in a word.
template <class F>
std::string thrown_by(const F& call) {
  try {
    call();
  } catch (const ek::ShapeError&) {
    return "ShapeError ";
  } catch (const ek::StateError&) {
    return "StateError ";
  } catch (const ek::RankError&) {
    return "RankError ";
  }
  return "nothing ";
}

}  // namespace

TEST_CASE("gradients that are spread over ranks are clipped by the norm of all", "[distributed]") {
  // The parts of (3, 4, 12), with the norm 13, and what a range of double does to them.
  const std::vector<std::vector<double>> parts{{3, 4}, {}, {12}};
  for (const double size : {1.0, 1e200, 1e-200}) {
    const std::string wrong = on_ranks(3, [&](auto communicator) -> std::string {
      std::vector<double> gradient = parts[std::size_t(communicator.rank())];
      const std::vector<double> before = gradient;
      for (double& g : gradient) g *= size;
      const auto parameters = one_parameter(gradient);
      const double norm = ek::clip_global_gradient_norm(ek::serial, parameters, 6.5 * size, communicator);
      if (std::abs(norm / size - 13) > 1e-12) return text(norm);
      for (std::size_t i = 0; i < gradient.size(); ++i)
        if (std::abs(gradient[i] / size - before[i] / 2) > 1e-12) return text(gradient[i]);
      const double after = ek::global_gradient_norm(ek::serial, parameters, communicator);
      return std::abs(after / size - 6.5) < 1e-12 ? "" : text(after);
    });
    CHECK(wrong == "");
  }
  const std::string kept = on_ranks(2, [](auto communicator) -> std::string {
    std::vector<double> gradient{communicator.rank() == 0 ? 5.0 : std::numeric_limits<double>::quiet_NaN()};
    const double norm = ek::clip_global_gradient_norm(ek::serial, one_parameter(gradient), 1, communicator);
    return std::isnan(norm) && (communicator.rank() == 1 || gradient[0] == 5) ? "" : text(norm);
  });
  CHECK(kept == "");
  const std::string refused = on_ranks(2, [](auto communicator) -> std::string {
    std::vector<double> gradient{5};
    return thrown_by([&] {
             ek::clip_global_gradient_norm(ek::serial, one_parameter(gradient), communicator.rank() == 0 ? -1 : 1,
                                           communicator);
           }) +
           (gradient[0] == 5 ? "" : "and changes something");
  });
  CHECK(refused == "ShapeError RankError ");
  std::vector<double> gradient{3, 4};
  CHECK(ek::global_gradient_norm(ek::serial, one_parameter(gradient), ek::LocalCommunicator()) == 5);
}

TEST_CASE("a tapered layer's factor is the same on all ranks", "[distributed]") {
  const ek::Taper taper({.warmup_steps = 10, .end_step = 20}, 0.1);
  std::vector<double> factors(3);
  const auto calibrate = [&](auto communicator) -> std::string {
    ek::TaperRmsNorm<float> layer(4, taper);
    for (int step = 0; step < 5; ++step)
      layer.observe(1 + communicator.rank() + 0.3 * step, 2 + 0.5 * communicator.rank());
    layer.calibrate(communicator);
    factors[std::size_t(communicator.rank())] = layer.factor();
    return layer.calibrated() ? "" : "not calibrated";
  };
  CHECK(on_ranks(3, calibrate) == "");
  // One process whose batches are the means over ranks.
  ek::Ema numerator(0.1), denominator(0.1);
  for (int step = 0; step < 5; ++step) numerator.add(2 + 0.3 * step), denominator.add(2.5);
  CHECK(factors[0] == Approx(numerator.value() / denominator.value()).epsilon(1e-14));
  CHECK(factors[1] == factors[0]);
  CHECK(factors[2] == factors[0]);

  // A rank without batches does not count, one that is calibrated already is an error on all, and so are no batches at all.
  const std::string some = on_ranks(2, [&](auto communicator) -> std::string {
    ek::TaperRmsNorm<float> layer(4, taper);
    if (communicator.rank() == 0) layer.observe(3, 4);
    layer.calibrate(communicator);
    return std::abs(layer.factor() - 0.75) < 1e-15 ? "" : text(layer.factor());
  });
  CHECK(some == "");
  const std::string twice = on_ranks(2, [&](auto communicator) -> std::string {
    ek::TaperRmsNorm<float> layer(4, taper);
    layer.observe(3, 4);
    if (communicator.rank() == 1) layer.calibrate(2.0);
    return thrown_by([&] { layer.calibrate(communicator); }) + (layer.calibrated() ? "calibrated " : "");
  });
  CHECK(twice == "RankError StateError calibrated ");
  const std::string none = on_ranks(2, [&](auto communicator) -> std::string {
    ek::TaperRmsNorm<float> layer(4, taper);
    return thrown_by([&] { layer.calibrate(communicator); });
  });
  CHECK(none == "StateError StateError ");
}

TEST_CASE("a scale anchor's target is the same on all ranks", "[distributed]") {
  const ek::Taper taper({.warmup_steps = 10, .end_step = 20});
  const std::string wrong = on_ranks(2, [&](auto communicator) -> std::string {
    ek::ScaleAnchor<float> anchor(taper);
    // Averages of 2 and of 5, the second of more batches.
    anchor.restore({.scale = communicator.rank() == 0 ? ek::EmaState{1.0, 0.5, 1} : ek::EmaState{3.75, 0.75, 2}});
    anchor.freeze(communicator);
    return anchor.frozen() && std::abs(anchor.target() - 3.8) < 1e-14 ? "" : text(anchor.target());
  });
  CHECK(wrong == "");
  const std::string twice = on_ranks(2, [&](auto communicator) -> std::string {
    ek::ScaleAnchor<float> anchor(taper);
    anchor.restore({.scale = {1, 0.5, 1}});
    if (communicator.rank() == 0) anchor.freeze(1.5);
    return thrown_by([&] { anchor.freeze(communicator); }) + (anchor.frozen() ? "frozen " : "");
  });
  CHECK(twice == "StateError frozen RankError ");
}
