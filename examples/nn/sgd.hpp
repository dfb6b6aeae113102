#pragma once

#include "evenkeel/parameter.hpp"
#include "nn/parallel.hpp"

#include <cstddef>
#include <utility>
#include <vector>

namespace nn {

struct SgdOptions {
  double momentum = 0.9;
  double weight_decay = 5e-4;  ///< added to the gradient, of parameters that want it
  /// Of single numbers' steps, such as those of a branch's scale or of a bias of all channels, whose gradients are sums
  /// over all of a tensor. Fixup asks for a tenth.
  double single_rate = 0.1;
};

/// Stochastic gradient descent with Nesterov's momentum: v = momentum * v + g, value -= rate * (g + momentum * v).
template <class T>
class Sgd {
 public:
  explicit Sgd(std::vector<ek::ParameterRef<T>> parameters, const SgdOptions& options = {})
      : parameters_(std::move(parameters)), options_(options) {
    for (const auto& p : parameters_) velocity_.push_back(Vector::Zero(p.size));
  }

  template <class Device>
  void step(const Device& device, double learning_rate) {
    const T momentum = T(options_.momentum), decay = T(options_.weight_decay);
    for_each_block(device, Index(parameters_.size()), [&](Index block) {
      const auto& p = parameters_[std::size_t(block)];
      Eigen::Map<Vector> value(p.value, p.size), gradient(p.gradient, p.size);
      Vector& velocity = velocity_[std::size_t(block)];
      const T rate = T(p.size == 1 ? learning_rate * options_.single_rate : learning_rate);
      if (p.weight_decay) gradient += decay * value;
      velocity = momentum * velocity + gradient;
      value -= rate * (gradient + momentum * velocity);
    });
  }

 private:
  using Vector = Eigen::Array<T, Eigen::Dynamic, 1>;

  std::vector<ek::ParameterRef<T>> parameters_;
  SgdOptions options_;
  std::vector<Vector> velocity_;  // (size of the parameter)
};

}  // namespace nn
