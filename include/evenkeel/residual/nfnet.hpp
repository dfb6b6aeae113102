/// NFNet residual block: y = x + alpha * f(x / beta), without norms. beta is the standard deviation that x is expected
/// to have at this depth, so f sees unit variance. A. Brock, S. De, S. Smith, "Characterizing signal propagation to
/// close the performance gap in unnormalized ResNets", 2021, and A. Brock et al., "High-Performance Large-Scale Image
/// Recognition Without Normalization", 2021.
#pragma once

#include "evenkeel/residual/residual_block.hpp"

#include <cmath>
#include <utility>

namespace evenkeel {

namespace detail::inline EVENKEEL_ISA {

/// What an NFNet block has where others have the norm: y = x / beta.
template <class T>
struct DividedInput {
  using Scalar = T;
  double beta;

  explicit DividedInput(double divisor) : beta(divisor) {
    if (!(beta > 0)) throw_shape_error("NfnetBlock", "beta is ", beta, ", expected a number above 0");
  }

  template <class Device, class X, class Y>
  void forward(const Device& device, const X& x, Y&& y) {
    scaled_sum("NfnetBlock::forward", device, none, x, y, factor());
  }
  /// dx = dsum + dy / beta; dsum may be none.
  template <class Device, class Dy, class Dsum, class X, class Dx>
  void add_backward(const Device& device, const Dy& dy, const Dsum& dsum, const X&, Dx&& dx) {
    scaled_sum("NfnetBlock::backward", device, dsum, dy, dx, factor());
  }
  template <class F>
  void for_each_parameter(F&&) {}

 private:
  auto factor() const { return static_cast<accumulator_t<T>>(1 / beta); }
};

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// The variance that a stream is expected to have, block by block.
///
///     ek::NfnetVariance variance(0.2);
///     for (blocks of the network) beta = variance.next(is_first_of_its_stage);
class NfnetVariance {
 public:
  explicit NfnetVariance(double alpha = 0.2) : alpha_(alpha) {}

  /// The beta of the next block, sqrt(variance); then adds what the block does. A transition block, the first of a
  /// stage, gives its shortcut x / beta, whose variance is 1: after it the variance is 1 + alpha^2.
  double next(bool is_transition) {
    const double beta = std::sqrt(variance_);
    variance_ = (is_transition ? 1 : variance_) + alpha_ * alpha_;
    return beta;
  }
  /// Before the next block.
  double variance() const { return variance_; }

 private:
  double alpha_, variance_ = 1;
};

/// T is the scalar of the activations; see ResidualBlock for the sublayer f, which begins with its activation function.
///
///     ek::NfnetBlock<float, Branch> block(branch, 0.2, variance.next(false));
template <class T, class Sublayer, class Storage = HostStorage>
class NfnetBlock : public ResidualBlock<detail::DividedInput<T>, ConstantJoin<T, double>, Sublayer, T, Storage> {
 public:
  NfnetBlock(Sublayer block_sublayer, double alpha, double beta)
      : ResidualBlock<detail::DividedInput<T>, ConstantJoin<T, double>, Sublayer, T, Storage>(
            detail::DividedInput<T>(beta), ConstantJoin<T, double>(alpha), std::move(block_sublayer)) {}
};

/// The first block of a stage: y = shortcut(z) + alpha * f(z), z = x / beta. The shortcut is a sublayer as f is; y, the
/// outputs of both, may have another shape than x.
///
///     ek::NfnetTransition<float, Branch, Convolution> block(branch, shortcut, 0.2, variance.next(true));
template <class T, class Sublayer, class Shortcut, class Storage = HostStorage>
class NfnetTransition {
 public:
  NfnetTransition(Sublayer block_sublayer, Shortcut block_shortcut, double alpha, double beta)
      : sublayer(std::move(block_sublayer)), shortcut(std::move(block_shortcut)), alpha_(alpha), input_(beta) {}

  /// y may not be x: the backward needs x.
  template <class Device, class X, class Y>
  void forward(const Device& device, const X& x, Y&& y) {
    detail::require_apart("NfnetTransition::forward", x, y);
    auto z = z_.like(x);
    auto f = f_.like(y);
    input_.forward(device, x, z);
    sublayer.forward(device, z, f);
    shortcut.forward(device, z, y);
    residual_sum(device, y, f, y, alpha());
  }

  /// dx is written and may be dy where their shapes are the same, parameter gradients are accumulated. x is the
  /// forward's.
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device& device, const Dy& dy, const X& x, Dx&& dx) {
    auto z = z_.like(x), dz = dz_.like(x), dz_shortcut = dz_shortcut_.like(x);
    auto df = f_.like(dy);
    detail::scaled_sum("NfnetTransition::backward", device, none, dy, df, alpha());
    sublayer.backward(device, df, z, dz);
    shortcut.backward(device, dy, z, dz_shortcut);
    residual_sum(device, dz_shortcut, dz, dz);
    input_.add_backward(device, dz, none, x, dx);
  }

  template <class F>
  void for_each_parameter(F&& f) {
    sublayer.for_each_parameter(f);
    shortcut.for_each_parameter(f);
  }

  /// Makes room for a forward and a backward in the block itself.
  template <class Device, class X, class Y>
  void reserve(const Device&, const X& x, const Y& y) {
    z_.reserve(x), dz_.reserve(x), dz_shortcut_.reserve(x), f_.reserve(y);
  }

  Sublayer sublayer;
  Shortcut shortcut;

 private:
  auto alpha() const { return static_cast<accumulator_t<T>>(alpha_); }

  double alpha_;
  detail::DividedInput<T> input_;
  detail::Activation<T, Storage> z_, dz_, dz_shortcut_;  // (the shape of x)
  detail::Activation<T, Storage> f_;                     // (the shape of y); serves the backward as its gradient
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
