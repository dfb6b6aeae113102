#pragma once

#include "evenkeel/clipping.hpp"
#include "evenkeel/parameter.hpp"
#include "nn/checkpoint.hpp"
#include "nn/parallel.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace nn {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

/// Adam with decoupled weight decay, for the parameters that ask for decay.
/// Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019, algorithm 2.
template <class T>
class AdamW {
 public:
  explicit AdamW(std::vector<ek::ParameterRef<T>> parameters, AdamWOptions options = {})
      : parameters_(std::move(parameters)), options_(options), factors_(parameters_.size()) {
    for (const auto& p : parameters_) {
      mean_.push_back(Vector::Zero(p.size));
      square_.push_back(Vector::Zero(p.size));
    }
  }

  /// Of the parameters, in their order.
  struct Factors {
    double learning_rate = 1, weight_decay = 1;
  };
  void set_factors(std::vector<Factors> factors) { factors_ = std::move(factors); }

  void zero_gradient() {
    for (const auto& p : parameters_) std::fill_n(p.gradient, p.size, T(0));
  }

  /// Scales all gradients so that their common norm is at most `limit`; returns the norm that they had.
  template <class Device>
  double clip_gradient(const Device& device, double limit) {
    return ek::clip_global_gradient_norm(device, parameters_, limit);
  }

  template <class Device>
  void step(const Device& device, double learning_rate) {
    ++steps_;
    const double correction1 = 1 - std::pow(options_.beta1, steps_), correction2 = 1 - std::pow(options_.beta2, steps_);
    const T beta1 = T(options_.beta1), beta2 = T(options_.beta2), eps = T(options_.eps);
    const T root = T(1 / std::sqrt(correction2));
    for_each_parameter(device, [&](std::size_t i, auto value, auto gradient) {
      Vector &mean = mean_[i], &square = square_[i];
      const double own_rate = learning_rate * factors_[i].learning_rate;
      const T rate = T(own_rate / correction1);
      if (parameters_[i].weight_decay) value *= T(1 - own_rate * options_.weight_decay * factors_[i].weight_decay);
      mean = beta1 * mean + (1 - beta1) * gradient;
      square = beta2 * square + (1 - beta2) * gradient.square();
      value -= rate * mean / (root * square.sqrt() + eps);
    });
  }

  /// The parameters and what the optimizer knows of them.
  void save_or_load(Checkpoint& file) {
    file.value("adamw.steps", steps_);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto& p = parameters_[i];
      const std::string name = "parameter." + std::to_string(i) + "." + std::string(p.name);
      file.values(name, p.value, p.size);
      file.values(name + ".mean", mean_[i].data(), p.size);
      file.values(name + ".square", square_[i].data(), p.size);
    }
  }

 private:
  using Vector = Eigen::Array<T, Eigen::Dynamic, 1>;

  // f(index, value, gradient); one parameter is one task.
  template <class Device, class F>
  void for_each_parameter(const Device& device, const F& f) {
    for_each_block(device, Index(parameters_.size()), [&](Index block) {
      const auto& p = parameters_[std::size_t(block)];
      f(std::size_t(block), Eigen::Map<Vector>(p.value, p.size), Eigen::Map<Vector>(p.gradient, p.size));
    });
  }

  std::vector<ek::ParameterRef<T>> parameters_;
  AdamWOptions options_;
  std::vector<Factors> factors_;
  std::vector<Vector> mean_, square_;  // (size of the parameter)
  long steps_ = 0;
};

}  // namespace nn
