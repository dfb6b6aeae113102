/// InstanceNorm: standardizes each channel of each sample over space. D. Ulyanov, A. Vedaldi, V. Lempitsky, "Instance
/// Normalization", 2016, equation 2. It is GroupNorm with as many groups as channels, and may keep running statistics:
/// the mean over samples of the instances' means and of their unbiased variances.
#pragma once

#include "evenkeel/norms/channel_layer.hpp"

namespace evenkeel {

/// Options of instance_norm.
struct InstanceNormOptions {
  double eps = 1e-5;    ///< added to the variance, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = 1;        ///< the channel axis: 1 for N,C,space and -1 for N,space,C
  int sample_axis = 0;  ///< the axis of samples, the first or the last one
};

namespace detail {

inline ChannelSpec instance_norm_spec(const InstanceNormOptions& o) {
  return {o.eps, o.axis, o.sample_axis, true, 1, 0, true, "channel"};
}

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// Statistics that instance_norm leaves for instance_norm_backward, and scratch.
template <class A, class Storage = HostStorage>
class InstanceNormSaved : public ChannelNormSaved<A, Storage> {
 public:
  /// Makes room for a forward and a backward over x, so that neither allocates.
  template <class Device, class X>
  void reserve(const Device& device, const X& x, const InstanceNormOptions& options = {}) {
    this->reserve_for(device, x, detail::instance_norm_spec(options));
  }
};

/// y = act((x - mean) * rstd * weight + bias) with the statistics of each sample's channels: see group_norm. One
/// position per channel is an error, whatever the number of samples.
template <class Activation = Identity, class Device, class X, class Weight, class Bias, class Y, class A, class Storage>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void instance_norm(const Device& device, const X& x, const Weight& weight, const Bias& bias, Y&& y,
                   ChannelNormSaved<A, Storage>& saved, const InstanceNormOptions& options = {}) {
  detail::channel_norm<Activation>("instance_norm", device, x, none, none, weight, bias, y, saved,
                                   detail::instance_norm_spec(options));
}

/// instance_norm of padded data: see masked_batch_norm.
template <class Activation = Identity, class Device, class X, class Mask, class Weight, class Bias, class Y, class A,
          class Storage>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void masked_instance_norm(const Device& device, const X& x, const Mask& mask, const Weight& weight, const Bias& bias,
                          Y&& y, ChannelNormSaved<A, Storage>& saved, const InstanceNormOptions& options = {}) {
  detail::channel_norm<Activation>("masked_instance_norm", device, x, none, mask, weight, bias, y, saved,
                                   detail::instance_norm_spec(options));
}

/// The gradients of instance_norm: see group_norm_backward.
template <class Activation = Identity, class Device, class Dy, class X, class Weight, class Bias, class A,
          class Storage, class Dx, class Dweight, class Dbias>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void instance_norm_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight, const Bias& bias,
                            ChannelNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight, Dbias&& dbias,
                            GradientMode mode = GradientMode::accumulate) {
  None dresidual;
  detail::channel_norm_backward<Activation>("instance_norm_backward", device, dy, x, none, none, weight, bias, saved,
                                            dx, dresidual, dweight, dbias, mode);
}

/// The gradients of masked_instance_norm.
template <class Activation = Identity, class Device, class Dy, class X, class Mask, class Weight, class Bias, class A,
          class Storage, class Dx, class Dweight, class Dbias>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void masked_instance_norm_backward(const Device& device, const Dy& dy, const X& x, const Mask& mask,
                                   const Weight& weight, const Bias& bias, ChannelNormSaved<A, Storage>& saved, Dx&& dx,
                                   Dweight&& dweight, Dbias&& dbias, GradientMode mode = GradientMode::accumulate) {
  None dresidual;
  detail::channel_norm_backward<Activation>("masked_instance_norm_backward", device, dy, x, none, mask, weight, bias,
                                            saved, dx, dresidual, dweight, dbias, mode);
}

/// InstanceNorm with running statistics, weight, bias, gradients and saved statistics.
template <class T, class Activation = Identity, class Storage = HostStorage>
class InstanceNorm
    : public detail::TrackedChannelNorm<T, Activation, Storage, InstanceNormSaved<accumulator_t<T>, Storage>,
                                        InstanceNormOptions, detail::instance_norm_spec> {
 public:
  /// As in torch, without parameters and running statistics unless they are asked for.
  explicit InstanceNorm(Index channels, const InstanceNormOptions& options = {},
                        const RunningOptions& running_options = {}, Affine affine = Affine::off,
                        Tracking tracking = Tracking::off)
      : detail::TrackedChannelNorm<T, Activation, Storage, InstanceNormSaved<accumulator_t<T>, Storage>,
                                   InstanceNormOptions, detail::instance_norm_spec>(
            "InstanceNorm", channels, options, affine, tracking, running_options) {}
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
