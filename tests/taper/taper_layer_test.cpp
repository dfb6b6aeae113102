#include "evenkeel/evenkeel.hpp"
#include "residual/sublayers.hpp"
#include "support/data.hpp"
#include "taper/taper_reference.hpp"

#include <array>
#include <map>
#include <utility>
#include <vector>

namespace ek = evenkeel;

namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::ArrayXd;
constexpr Eigen::Index rows = 6, width = 10;

Matrix batch(std::uint64_t seed, double spread = 1) {
  const auto values = support::normal<double>(std::size_t(rows * width), seed, 0.25, spread);
  return Eigen::Map<const Matrix>(values.data(), rows, width);
}
std::vector<double> listed(const Matrix& m) { return {m.data(), m.data() + m.size()}; }
template <class P>
Vector values(const P& p) {
  return Eigen::Map<const Vector>(p.value(), p.size());
}

template <class Layer>
void randomize_weight(Layer& layer, std::uint64_t seed) {
  const auto w = support::normal<double>(std::size_t(width), seed, 1, 0.3);
  std::copy(w.begin(), w.end(), layer.weight.value());
}

// One step of training without an optimizer.
template <class Layer>
void step(Layer& layer, const Matrix& x) {
  Matrix y(rows, width), dx(rows, width);
  layer.forward(ek::serial, x, y);
  layer.backward(ek::serial, y, x, dx);
}

template <class F>
void for_each_layer(const F& f) {
  f(std::type_identity<ek::TaperRmsNorm<double>>{}, false);
  f(std::type_identity<ek::TaperLayerNorm<double>>{}, true);
}

// Two norms with a scale between them, a loss of sum(y * (y - x)), and plain descent, under one Taper.
template <class Layer>
struct Network {
  explicit Network(const ek::Taper& taper) : layers{Layer(width, taper), Layer(width, taper)} {
    for (std::size_t l = 0; l < 2; ++l) randomize_weight(layers[l], 50 + l);
  }
  double train(const Matrix& x) {
    Matrix a(rows, width), y(rows, width), dx(rows, width);
    layers[0].forward(ek::serial, x, a);
    layers[1].forward(ek::serial, a, y);
    const Matrix dy = 2 * y - x;
    for (Layer& layer : layers)
      layer.for_each_parameter([](ek::ParameterRef<double> p) { std::fill_n(p.gradient, p.size, 0.0); });
    layers[1].backward(ek::serial, dy, a, dx);
    layers[0].backward(ek::serial, dx, x, dx);
    for (Layer& layer : layers)
      layer.for_each_parameter([](ek::ParameterRef<double> p) {
        for (ek::Index i = 0; i < p.size; ++i) p.value[i] -= 0.01 * p.gradient[i];
      });
    return (y.array() * (y - x).array()).sum();
  }
  std::vector<Layer> layers;
};

}  // namespace

TEST_CASE("a tapered layer's factor is the least-squares one of its warmup, newest batches first", "[taper]") {
  for_each_layer([]<class Layer>(std::type_identity<Layer>, bool centred) {
    const int steps = 7;
    const double rate = 0.1;
    ek::Taper taper({.warmup_steps = steps, .end_step = 20}, rate);
    Layer layer(width, taper);
    randomize_weight(layer, 3);
    const Vector weight = values(layer.weight);
    double numerator = 0, denominator = 0;
    for (int t = 0; t < steps; ++t) {
      const Matrix x = batch(std::uint64_t(10 + t), 0.5 + t);
      Matrix unseen(rows, width);
      layer.forward(ek::serial, batch(99, 100), unseen);  // a validation does not count
      step(layer, x);
      Matrix dx(rows, width);
      layer.backward(ek::serial, x, x, dx);  // nor does a second backward
      const auto expected = reference::taper_norm({std::size_t(rows),
                                                   std::size_t(width),
                                                   listed(x),
                                                   listed(x),
                                                   {weight.data(), weight.data() + width},
                                                   {},
                                                   {},
                                                   1,
                                                   0,
                                                   centred ? 1e-5 : 1e-6,
                                                   centred});
      const double fade = rate * std::pow(1 - rate, steps - 1 - t);
      numerator += fade * expected.numerator;
      denominator += fade * expected.denominator;
      CHECK(!layer.calibrated());
      taper.advance();
    }
    CHECK(layer.numerator().value() == Approx(numerator / (1 - std::pow(1 - rate, steps))).epsilon(1e-12));
    CHECK((values(layer.scale_weight) == 1).all());
    Matrix y(rows, width);
    layer.forward(ek::serial, batch(1), y);
    CHECK(layer.calibrated());
    CHECK(layer.factor() == Approx(numerator / denominator).epsilon(1e-12));
    CHECK((values(layer.scale_weight) == weight).all());
    CHECK(layer.gate() == 1);  // at step k_w the gate has not moved yet
  });
}

TEST_CASE("with one batch the factor minimizes the distance of both branches", "[taper]") {
  for_each_layer([]<class Layer>(std::type_identity<Layer>, bool centred) {
    ek::Taper taper({.warmup_steps = 1, .end_step = 2});
    Layer layer(width, taper);
    randomize_weight(layer, 3);
    const Matrix x = batch(4);
    step(layer, x);
    taper.advance();
    layer.calibrate();
    // The sum of (h * w/r - c * h * w)^2 is least at c.
    const auto distance = [&](double c) {
      double sum = 0;
      for (Eigen::Index r = 0; r < rows; ++r) {
        const Vector h = x.row(r).transpose().array() - (centred ? x.row(r).mean() : 0);
        const double root = std::sqrt(h.square().mean() + (centred ? 1e-5 : 1e-6));
        sum += (h * values(layer.weight) * (1 / root - c)).square().sum();
      }
      return sum;
    };
    const double c = layer.factor();
    CHECK(distance(c) < distance(c * 1.001));
    CHECK(distance(c) < distance(c * 0.999));
  });
}

TEST_CASE("a tapered layer follows the gate to its linear map", "[taper]") {
  for_each_layer([]<class Layer>(std::type_identity<Layer>, bool centred) {
    ek::Taper taper({.warmup_steps = 1, .end_step = 3});
    Layer layer(width, taper);
    randomize_weight(layer, 3);
    const Matrix x = batch(4);
    step(layer, x);
    taper.advance();
    step(layer, x);
    taper.advance();
    CHECK_THROWS_WITH(layer.linear_map(), support::contains_text("::linear_map: got gate 0.500000, expected gate 0"));
    step(layer, x);
    taper.advance();
    for (Eigen::Index i = 0; i < width; ++i) layer.scale_weight.value()[i] += 0.1 * double(i);
    if (centred) layer.bias.value()[2] = 3;
    Matrix y(rows, width);
    layer.forward(ek::serial, x, y);
    const ek::AffineMap map = layer.linear_map();
    CHECK(map.centred == centred);
    CHECK(map.offset.size() == (centred ? std::size_t(width) : 0u));
    for (Eigen::Index r = 0; r < rows; ++r)
      for (Eigen::Index i = 0; i < width; ++i) {
        const double h = x(r, i) - (centred ? x.row(r).mean() : 0);
        const auto at = std::size_t(i);
        CHECK(y(r, i) == Approx(h * map.scale[at] + (centred ? map.offset[at] : 0)).epsilon(1e-12));
      }
  });
}

TEST_CASE("a network restored in any phase goes on bit for bit", "[taper]") {
  for_each_layer([]<class Layer>(std::type_identity<Layer>, bool) {
    for (const int saved_at : {0, 2, 4, 6, 9}) {
      const ek::TaperSchedule schedule{.warmup_steps = 4, .end_step = 8};
      ek::Taper taper(schedule), again_taper(schedule);
      Network<Layer> network(taper), again(again_taper);
      std::vector<double> losses, again_losses;
      for (int t = 0; t < 12; ++t) {
        if (t == saved_at) {
          again_taper.restore(taper.state());
          for (std::size_t l = 0; l < 2; ++l) {
            again.layers[l].restore(network.layers[l].state());
            std::map<std::string, const double*> from;
            network.layers[l].for_each_parameter(
                [&](ek::ParameterRef<double> p) { from[std::string(p.name)] = p.value; });
            again.layers[l].for_each_parameter(
                [&](ek::ParameterRef<double> p) { std::copy_n(from.at(std::string(p.name)), p.size, p.value); });
          }
        }
        losses.push_back(network.train(batch(std::uint64_t(t))));
        taper.advance();
        if (t < saved_at) continue;
        CHECK(again.train(batch(std::uint64_t(t))) == losses.back());
        again_taper.advance();
      }
      CHECK(network.layers[1].factor() == again.layers[1].factor());
      CHECK(network.layers[0].factor() != network.layers[1].factor());
    }
  });
}

TEST_CASE("copies and moves of a tapered layer go on by themselves", "[taper]") {
  ek::Taper taper({.warmup_steps = 2, .end_step = 4});
  std::vector<ek::TaperRmsNorm<double>> layers;
  for (int l = 0; l < 5; ++l) {  // which moves them
    layers.emplace_back(width, taper);
    step(layers.back(), batch(std::uint64_t(l)));
  }
  ek::TaperRmsNorm<double> copy = layers[1];
  step(copy, batch(77));
  taper.advance(), taper.advance();
  for (auto& layer : layers) layer.calibrate();
  copy.calibrate();
  CHECK(layers[0].factor() != layers[1].factor());
  CHECK(layers[1].factor() != copy.factor());
  CHECK(layers[4].numerator().count() == 1);
  CHECK(copy.numerator().count() == 2);
}

TEST_CASE("tapered layers stand in residual blocks, with right gradients at every gate", "[taper]") {
  using namespace residual_test;
  for_each_layer([]<class Layer>(std::type_identity<Layer>, bool) {
    for (const int steps : {0, 2, 3}) {
      ek::Taper taper({.warmup_steps = 1, .end_step = 3});
      ek::PreNorm block{Layer(6, taper, {.eps = 1e-3}), Tanh<double>(6)};
      randomize(block, 4);
      if (steps > 0) {
        block.norm.calibrate(0.7);
        for (ek::Index i = 0; i < 6; ++i) block.norm.scale_weight.value()[i] -= 0.2 * double(i);
      }
      for (int t = 0; t < steps; ++t) taper.advance();
      INFO("gate " << taper.gate());
      check_gradients(block, 4, 6);
    }
  });
}

TEST_CASE("a layer that is not tapered is the plain norm for good", "[taper]") {
  ek::Taper taper({.warmup_steps = 1, .end_step = 2});
  ek::TaperRmsNorm<double> final_norm(width, taper, {.tapered = false});
  ek::RmsNorm<double> plain(width);
  std::vector<std::string> names;
  final_norm.for_each_parameter([&](ek::ParameterRef<double> p) {
    names.emplace_back(p.name);
    CHECK(!p.weight_decay);
  });
  CHECK(names == std::vector<std::string>{"weight"});
  for (int t = 0; t < 4; ++t, taper.advance()) {
    const Matrix x = batch(std::uint64_t(t));
    Matrix y(rows, width), dx(rows, width), plain_y(rows, width), plain_dx(rows, width);
    final_norm.forward(ek::serial, x, y);
    final_norm.backward(ek::serial, x, x, dx);
    plain.forward(ek::serial, x, plain_y);
    plain.backward(ek::serial, x, x, plain_dx);
    CHECK(y == plain_y);
    CHECK(dx == plain_dx);
    CHECK(final_norm.gate() == 1);
  }
  CHECK(!final_norm.calibrated());
  CHECK_THROWS_WITH(final_norm.calibrate(2),
                    "TaperRmsNorm::calibrate: got a layer with tapered = false, expected a tapered one");
  CHECK_THROWS_AS(final_norm.linear_map(), ek::StateError);
}

TEST_CASE("tapered layers name their parameters and what comes at the wrong time", "[taper][errors]") {
  ek::Taper taper({.warmup_steps = 1, .end_step = 2});
  ek::TaperLayerNorm<double> layer(width, taper);
  std::vector<std::string> names;
  layer.for_each_parameter([&](ek::ParameterRef<double> p) { names.emplace_back(p.name); });
  CHECK(names == std::vector<std::string>{"weight", "scale_weight", "bias"});
  CHECK_THROWS_WITH(ek::TaperLayerNorm<double>(0, taper),
                    "TaperLayerNorm::TaperLayerNorm: the layer has 0 features, expected 1 or more");
  taper.advance();
  const Matrix x = batch(1);
  Matrix y(rows, width);
  CHECK_THROWS_WITH(layer.forward(ek::serial, x, y),
                    "TaperLayerNorm::calibrate: got no batches in the warmup, expected 1 or more that went forward and "
                    "backward, or calibrate(factor)");
  layer.observe(0, 0);
  CHECK_THROWS_WITH(layer.calibrate(),
                    "TaperLayerNorm::calibrate: got a mean of ||h * weight||^2 of 0.000000, expected more than 0");
  CHECK_THROWS_WITH(layer.calibrate(NAN), "TaperLayerNorm::calibrate: got the factor nan, expected a finite number");
  layer.calibrate(0.5);
  CHECK_THROWS_WITH(layer.calibrate(),
                    "TaperLayerNorm::calibrate: got a layer whose factor is 0.500000 already, "
                    "expected one that is not calibrated yet");
  CHECK_THROWS_AS(layer.observe(1, 1), ek::StateError);
  const ek::TaperLayerState good = layer.state();
  CHECK(good.calibrated);
  ek::TaperLayerState bad = good;
  bad.factor = INFINITY;
  CHECK_THROWS_AS(layer.restore(bad), ek::StateError);
  bad = good, bad.calibrated = false;
  CHECK_THROWS_WITH(layer.restore(bad),
                    "TaperLayerNorm::restore: got factor 0.500000, calibrated 0, counts 1 and 1, expected a finite "
                    "factor, 0 where not calibrated, and equal counts");
  bad = good, bad.numerator.count = 4;
  CHECK_THROWS_AS(layer.restore(bad), ek::StateError);
  bad = good, bad.denominator.weight = 7;
  CHECK_THROWS_AS(layer.restore(bad), ek::StateError);
  CHECK(layer.factor() == 0.5);
}
