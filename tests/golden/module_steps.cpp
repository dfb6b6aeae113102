// Layers that train: ten steps of SGD on the loss mean((y - target)^2), each with a batch of its own, then inference.
#include "cases/channel_layer.hpp"
#include "golden/expect.hpp"
#include "support/channel_reference.hpp"

#include <algorithm>

using namespace golden;
using cases_test::LayerKind, cases_test::make_layer;

namespace {

// The layer after each step, in exact arithmetic.
struct Step {
  Values y, dweight_magnitude, dbias_magnitude;
  double loss = 0, loss_magnitude = 0;
  Values weight, bias, running_mean, running_var;
};

struct Training {
  std::size_t samples, channels, positions, steps, size;
  double rate, eps;
  bool cumulative;
  double momentum;
  Values batches, target;

  explicit Training(const Case& c)
      : samples(std::size_t(c.shape.at(0))),
        channels(std::size_t(c.shape.at(1))),
        positions(1),
        steps(std::size_t(c.options.at("steps"))),
        rate(c.options.at("rate")),
        eps(c.options.at("eps")),
        cumulative(!c.options.count("momentum")),
        momentum(c.option("momentum", 0)),
        batches(c.input("x")),
        target(c.input("target")) {
    for (std::size_t a = 2; a < c.shape.size(); ++a) positions *= std::size_t(c.shape[a]);
    size = samples * channels * positions;
  }
  Values batch(std::size_t step) const {
    return Values(batches.begin() + std::ptrdiff_t(step * size), batches.begin() + std::ptrdiff_t((step + 1) * size));
  }
  Values loss_gradient(const Values& y) const {
    Values dy;
    for (std::size_t i = 0; i < size; ++i) dy.push_back(2 * (y.at(i) - target[i]) / double(size));
    return dy;
  }
  double loss(const Values& y) const {
    double sum = 0;
    for (std::size_t i = 0; i < size; ++i) sum += (y.at(i) - target[i]) * (y.at(i) - target[i]);
    return sum / double(size);
  }
};

std::vector<Step> exact_steps(const Training& t, LayerKind kind) {
  std::vector<Step> steps;
  reference::Channels p;
  p.N = t.samples, p.C = p.groups = t.channels, p.S = t.positions;
  p.ghost = kind == LayerKind::batch ? p.N : 1;
  p.eps = t.eps;
  p.weight.assign(p.C, 1), p.bias.assign(p.C, 0);
  Values mean(p.C, 0), var(p.C, 1);
  for (std::size_t s = 0; s < t.steps; ++s) {
    p.x = t.batch(s);
    p.dy.assign(t.size, 0);
    Step step;
    const auto forward = reference::channel_norm(p);
    step.y = forward.y;
    step.loss = t.loss(step.y);
    for (std::size_t i = 0; i < t.size; ++i) {
      const double size = forward.y_magnitude[i] + std::abs(t.target[i]);
      step.loss_magnitude += 2 * std::abs(step.y[i] - t.target[i]) * size / double(t.size);
    }
    step.loss_magnitude += step.loss;
    p.dy = t.loss_gradient(step.y);
    const auto backward = reference::channel_norm(p);
    // dy holds the error of y, so the sizes of its own terms stand for it.
    for (std::size_t i = 0; i < t.size; ++i)
      p.dy[i] = 2 * (forward.y_magnitude[i] + std::abs(t.target[i])) / double(t.size);
    const auto sizes = reference::channel_norm(p);
    step.dweight_magnitude = sizes.dweight_magnitude;
    step.dbias_magnitude = sizes.dbias_magnitude;
    const double m = t.cumulative ? 1 / double(s + 1) : t.momentum;
    const std::size_t sets = backward.mean.size() / p.C;
    for (std::size_t k = 0; k < p.C; ++k) {
      p.weight[k] -= t.rate * backward.dweight[k];
      p.bias[k] -= t.rate * backward.dbias[k];
      double batch_mean = 0, batch_var = 0;
      for (std::size_t set = 0; set < sets; ++set) {
        const std::size_t i = set * p.C + k;
        batch_mean += backward.mean[i] / double(sets);
        batch_var += backward.variance[i] * backward.count[i] / (backward.count[i] - 1) / double(sets);
      }
      mean[k] = (1 - m) * mean[k] + m * batch_mean;
      var[k] = (1 - m) * var[k] + m * batch_var;
    }
    step.weight = p.weight, step.bias = p.bias, step.running_mean = mean, step.running_var = var;
    steps.push_back(step);
  }
  return steps;
}

// Every step has roundings of its own and hands on those of the steps before, so magnitudes grow by a step's each time.
template <class T>
void check_steps(const Case& c, const Named& results, LayerKind kind, bool last) {
  const Training t(c);
  const std::vector<Step> exact = exact_steps(t, kind);
  const auto layer =
      make_layer<T>({.kind = kind,
                     .channels = Eigen::Index(t.channels),
                     .eps = t.eps,
                     .momentum = t.cumulative ? ek::Momentum::cumulative() : ek::Momentum(ek::NewWeight{t.momentum})},
                    last);
  const auto samples = Eigen::Index(t.samples), positions = Eigen::Index(t.positions);
  const std::size_t count = t.samples * t.positions;
  const auto torch = [&](const char* name, std::size_t step) {
    const auto first = results.at(name).begin() + std::ptrdiff_t(step * t.channels);
    return Values(first, first + std::ptrdiff_t(t.channels));
  };
  Values weight_size(t.channels, 1), bias_size(t.channels, 0), mean_size(t.channels, 0), var_size(t.channels, 1);
  double loss_size = 0;
  for (std::size_t s = 0; s < t.steps; ++s) {
    INFO("step " << s);
    const Values x = t.batch(s), y = layer->forward(samples, positions, x);
    layer->backward(samples, positions, rounded<T>(t.loss_gradient(y)), x);
    for (const char* name : {"weight", "bias"}) {
      Values stepped = layer->parameter(name);
      const Values gradient = layer->gradient(name);
      for (std::size_t k = 0; k < stepped.size(); ++k) stepped[k] = as<T>(stepped[k] - t.rate * gradient[k]);
      layer->set_parameter(name, stepped);
    }
    const Step& step = exact[s];
    loss_size += step.loss_magnitude;
    double reach = 0;
    for (const double v : x) reach = std::max(reach, std::abs(v));
    for (std::size_t k = 0; k < t.channels; ++k) {
      weight_size[k] += std::abs(step.weight[k]) + t.rate * step.dweight_magnitude[k];
      bias_size[k] += std::abs(step.bias[k]) + t.rate * step.dbias_magnitude[k];
      mean_size[k] += reach;
      var_size[k] += step.running_var[k];
    }
    expect<T>("loss", {t.loss(y)}, {results.at("loss").at(s)}, {step.loss}, {loss_size}, t.size);
    expect<T>("weight", layer->parameter("weight"), torch("weight", s), step.weight, weight_size, count);
    expect<T>("bias", layer->parameter("bias"), torch("bias", s), step.bias, bias_size, count);
    const cases_test::Running running = layer->running();
    expect<T>("running_mean", running.mean, torch("running_mean", s), step.running_mean, mean_size, count);
    expect<T>("running_var", running.var, torch("running_var", s), step.running_var, var_size, count);
    // torch's InstanceNorm has the counter and never moves it; this library counts in both.
    const double batches = kind == LayerKind::batch ? double(s + 1) : 0;
    CHECK(results.at("num_batches_tracked").at(s) == batches);
    CHECK(running.batches == std::int64_t(s + 1));
  }
  layer->set_training(false);
  const Values probe = c.input("x_inference"), y = layer->forward(samples, positions, probe);
  const Step& end = exact.back();
  Values exact_y, size;
  for (std::size_t i = 0; i < t.size; ++i) {
    const std::size_t k = i / t.positions % t.channels;
    const double rstd = 1 / std::sqrt(end.running_var[k] + t.eps);
    const double xhat = (probe[i] - end.running_mean[k]) * rstd;
    exact_y.push_back(xhat * end.weight[k] + end.bias[k]);
    const double relative_var = var_size[k] / end.running_var[k];
    size.push_back((std::abs(probe[i]) + mean_size[k]) * rstd * std::abs(end.weight[k]) +
                   std::abs(xhat) * (weight_size[k] + relative_var * std::abs(end.weight[k])) + bias_size[k]);
  }
  expect<T>("y_inference", y, results.at("y_inference"), exact_y, size, count);
  CHECK(layer->running().batches == std::int64_t(t.steps));
  CHECK(results.at("num_batches_tracked_after_inference").at(0) == (kind == LayerKind::batch ? double(t.steps) : 0));
}

template <LayerKind kind>
void check_module(const Case& c) {
  for (const bool last : {false, true}) {
    INFO("channels last " << last);
    check_steps<double>(c, c.results.at("float64"), kind, last);
    check_steps<float>(c, c.results.at("float32"), kind, last);
  }
}

}  // namespace

void golden::add_module_steps(Table& table) {
  table["batch_norm_steps"] = check_module<LayerKind::batch>;
  table["instance_norm_steps"] = check_module<LayerKind::instance>;
}
