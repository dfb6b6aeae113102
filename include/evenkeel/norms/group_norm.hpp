/// GroupNorm: standardizes groups of neighbouring channels over space, sample by sample. Y. Wu, K. He, "Group
/// Normalization", 2018, equations 1 to 4 and 7.
///
///     channel c belongs to group c / (C/G);  xhat = (x - mean) * rstd of its sample and group
///     y = act(xhat * weight[c] + bias[c]),  h = dy * act'(u) * weight,  dx = rstd * (h - mean(h) - xhat * mean(h *
///     xhat))
///
/// One group is LayerNorm over channels and space with parameters per channel; as many groups as channels is
/// InstanceNorm.
#pragma once

#include "evenkeel/norms/channel_layer.hpp"

namespace evenkeel {

/// Options of group_norm.
struct GroupNormOptions {
  Index groups = 0;     ///< how many groups; must divide the channels, and must be given
  double eps = 1e-5;    ///< added to the variance, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = 1;        ///< the channel axis: 1 for N,C,space and -1 for N,space,C
  int sample_axis = 0;  ///< the axis of samples, the first or the last one
};

namespace detail {

inline ChannelSpec group_norm_spec(const char* function, const GroupNormOptions& o) {
  if (o.groups < 1) throw_shape_error(function, "groups is ", o.groups, ", expected 1 or more");
  return {o.eps, o.axis, o.sample_axis, true, 1, o.groups, false, "group"};
}

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// Statistics that group_norm leaves for group_norm_backward, and scratch.
template <class A, class Storage = HostStorage>
class GroupNormSaved : public ChannelNormSaved<A, Storage> {
 public:
  /// Makes room for a forward and a backward over x, so that neither allocates.
  template <class Device, class X>
  void reserve(const Device& device, const X& x, const GroupNormOptions& options) {
    this->reserve_for(device, x, detail::group_norm_spec("reserve", options));
  }
};

/// y = act((x - mean) * rstd * weight + bias) with the statistics of each sample's groups.
///
/// Activation    ek::Identity, ek::Relu, ek::Silu
/// x, y          any shape with a sample axis and a channel axis; y may be x itself, then no backward is possible. Samples
///               that come last need all other axes before the channels
/// weight, bias  one value per channel, or ek::none
/// saved         receives mean and rstd per sample and group
/// Writes y and saved. Throws ShapeError before any work, also for one value per group. The eps stands inside the root.
/// Allocates nothing but what saved lacks. Example: tests/norms/group_norm_test.cpp.
template <class Activation = Identity, class Device, class X, class Weight, class Bias, class Y, class A, class Storage>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void group_norm(const Device& device, const X& x, const Weight& weight, const Bias& bias, Y&& y,
                ChannelNormSaved<A, Storage>& saved, const GroupNormOptions& options) {
  detail::channel_norm<Activation>("group_norm", device, x, none, none, weight, bias, y, saved,
                                   detail::group_norm_spec("group_norm", options));
}

/// group_norm of padded data: see masked_batch_norm.
template <class Activation = Identity, class Device, class X, class Mask, class Weight, class Bias, class Y, class A,
          class Storage>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void masked_group_norm(const Device& device, const X& x, const Mask& mask, const Weight& weight, const Bias& bias,
                       Y&& y, ChannelNormSaved<A, Storage>& saved, const GroupNormOptions& options) {
  detail::channel_norm<Activation>("masked_group_norm", device, x, none, mask, weight, bias, y, saved,
                                   detail::group_norm_spec("masked_group_norm", options));
}

/// The gradients of group_norm.
///
/// dy, x, dx        the shape of the forward's x; dx may be dy itself
/// weight, bias     the forward's, ek::none where it had none; without an activation bias may be left out
/// saved            filled by the forward
/// dweight, dbias   one value per channel, or ek::none where they are not wanted; accumulated, or overwritten as `mode`
///                  says
/// Writes dx. Throws ShapeError before any work, also where saved does not belong to x.
template <class Activation = Identity, class Device, class Dy, class X, class Weight, class Bias, class A,
          class Storage, class Dx, class Dweight, class Dbias>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void group_norm_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight, const Bias& bias,
                         ChannelNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight, Dbias&& dbias,
                         GradientMode mode = GradientMode::accumulate) {
  None dresidual;
  detail::channel_norm_backward<Activation>("group_norm_backward", device, dy, x, none, none, weight, bias, saved, dx,
                                            dresidual, dweight, dbias, mode);
}
/// Without an activation: the bias is not needed.
template <class Device, class Dy, class X, class Weight, class A, class Storage, class Dx, class Dweight, class Dbias>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void group_norm_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight,
                         ChannelNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight, Dbias&& dbias,
                         GradientMode mode = GradientMode::accumulate) {
  group_norm_backward<Identity>(device, dy, x, weight, none, saved, dx, dweight, dbias, mode);
}

/// The gradients of masked_group_norm.
template <class Activation = Identity, class Device, class Dy, class X, class Mask, class Weight, class Bias, class A,
          class Storage, class Dx, class Dweight, class Dbias>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void masked_group_norm_backward(const Device& device, const Dy& dy, const X& x, const Mask& mask, const Weight& weight,
                                const Bias& bias, ChannelNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight,
                                Dbias&& dbias, GradientMode mode = GradientMode::accumulate) {
  None dresidual;
  detail::channel_norm_backward<Activation>("masked_group_norm_backward", device, dy, x, none, mask, weight, bias,
                                            saved, dx, dresidual, dweight, dbias, mode);
}

/// GroupNorm with its weight (ones at first), bias (zeros), gradients and saved statistics.
///
///     ek::GroupNorm<float, ek::Silu> norm(channels, {.groups = 32});
///     norm.forward(device, x, y);
///     norm.backward(device, dy, x, dx);
template <class T, class Activation = Identity, class Storage = HostStorage>
class GroupNorm : public detail::ChannelParameters<T, Storage> {
 public:
  /// Throws ShapeError unless `groups` divides `channels`, both at least 1.
  explicit GroupNorm(Index channels, const GroupNormOptions& options, Affine affine = Affine::weight_and_bias)
      : detail::ChannelParameters<T, Storage>("GroupNorm", channels, affine), options_(options) {
    detail::group_norm_spec("GroupNorm", options);
    if (channels % options.groups != 0)
      detail::throw_shape_error("GroupNorm", options.groups, " groups do not divide ", channels, " channels");
  }

  /// y = act(norm(x)). y may be x, then no backward is possible.
  template <class Device, class X, class Y>
  void forward(const Device& device, const X& x, Y&& y) {
    this->check_channels("GroupNorm::forward", x, options_.axis);
    this->with_parameters([&](const auto& w, const auto& b, const auto&, const auto&) {
      detail::channel_norm<Activation>("GroupNorm::forward", device, x, none, none, w, b, y, saved,
                                       detail::group_norm_spec("GroupNorm::forward", options_));
    });
  }
  /// dx is written, the gradients of weight and bias are accumulated. x is the forward's.
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device& device, const Dy& dy, const X& x, Dx&& dx, GradientMode mode = GradientMode::accumulate) {
    this->with_parameters([&](const auto& w, const auto& b, auto dw, auto db) {
      None dresidual;
      detail::channel_norm_backward<Activation>("GroupNorm::backward", device, dy, x, none, none, w, b, saved, dx,
                                                dresidual, dw, db, mode);
    });
  }

  const GroupNormOptions& options() const { return options_; }

  GroupNormSaved<accumulator_t<T>, Storage> saved;

 private:
  GroupNormOptions options_;
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
