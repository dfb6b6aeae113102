/// What the layers over channels have in common: parameters, running statistics, training and inference.
#pragma once

#include "evenkeel/norms/channel_norm.hpp"
#include "evenkeel/norms/frozen_channel_norm.hpp"
#include "evenkeel/norms/running_statistics.hpp"
#include "evenkeel/parameter.hpp"

namespace evenkeel {

namespace detail {
inline namespace EVENKEEL_ISA {

/// Weight and bias of a layer over channels.
template <class T, class Storage>
class ChannelParameters {
 public:
  using Scalar = T;

  ChannelParameters(const char* name, Index channels, Affine affine)
      : weight("weight", checked(name, channels), false),
        bias("bias", affine == Affine::weight_and_bias ? channels : 0, false),
        affine_(affine) {
    weight.fill(T(1));
  }

  /// Calls f(ParameterRef<T>) for weight and bias, as far as the layer has them.
  template <class F>
  void for_each_parameter(F&& f) {
    if (affine_ != Affine::off) f(weight.ref());
    if (affine_ == Affine::weight_and_bias) f(bias.ref());
  }
  Index channels() const { return weight.size(); }

  Parameter<T, Storage> weight;  // (channels)
  Parameter<T, Storage> bias;    // (channels), or none

 protected:
  /// Without parameters there is nothing else that would notice.
  template <class X>
  void check_channels(const char* function, const X& x, const Axes& axis) const {
    RowArguments arguments(function);
    arguments.reference("x", x, axis);
    if (arguments.grid().length != channels())
      throw_shape_error(function, "x has ", arguments.grid().length, " channels, the layer has ", channels(), " (",
                        arguments.shape(), ")");
  }

  /// Calls f(weight, bias, dweight, dbias), each a map or none.
  template <class F>
  void with_parameters(const F& f) {
    using Values = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;
    const auto map = [](T* data, Index size) { return Values(data, size); };
    const Values w = map(weight.value(), weight.size()), dw = map(weight.gradient(), weight.size());
    const Values b = map(bias.value(), bias.size()), db = map(bias.gradient(), bias.size());
    if (affine_ == Affine::off)
      f(none, none, none, none);
    else if (affine_ == Affine::weight)
      f(w, none, dw, none);
    else
      f(w, b, dw, db);
  }

 private:
  static Index checked(const char* name, Index channels) {
    if (channels < 1) throw_shape_error(name, "the layer has ", channels, " channels, expected 1 or more");
    return channels;
  }

  Affine affine_;
};

}  // namespace EVENKEEL_ISA
}  // namespace detail
/// Whether a layer keeps running statistics.
enum class Tracking { off, on };

namespace detail {
inline namespace EVENKEEL_ISA {

/// A layer over channels that may keep running statistics. In training it normalizes with the statistics of the data
/// and lets running follow them; in inference, or frozen, with running. Without tracking it always uses the data's.
template <class T, class Activation, class Storage, class Saved, class Options, auto spec_of>
class TrackedChannelNorm : public ChannelParameters<T, Storage> {
 public:
  using A = accumulator_t<T>;

  TrackedChannelNorm(const char* name, Index channels, const Options& options, Affine affine, Tracking tracking,
                     const RunningOptions& running_options)
      : ChannelParameters<T, Storage>(name, channels, affine),
        running(channels, running_options),
        options_(options),
        tracking_(tracking) {}

  /// true at first. While false, forward reads running and changes nothing but y: inference, or training with frozen
  /// statistics. Without tracking it does not matter.
  bool training = true;

  /// y = act(norm(x)); in training running follows. y may be x, then no backward is possible.
  template <class Device, class X, class Y>
  void forward(const Device& device, const X& x, Y&& y) {
    run("forward", device, x, none, none, y);
  }
  /// y = act(norm(x) + residual).
  template <class Device, class X, class Residual, class Y>
  void add_forward(const Device& device, const X& x, const Residual& residual, Y&& y) {
    run("add_forward", device, x, residual, none, y);
  }
  /// Of padded data: see masked_batch_norm.
  template <class Device, class X, class Mask, class Y>
  void masked_forward(const Device& device, const X& x, const Mask& mask, Y&& y) {
    run("masked_forward", device, x, none, mask, y);
  }

  /// dx is written, the gradients of weight and bias are accumulated. x is the forward's; the statistics are those of
  /// the last forward in training, or running where `training` is false.
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device& device, const Dy& dy, const X& x, Dx&& dx, GradientMode mode = GradientMode::accumulate) {
    None dresidual;
    run_backward("backward", device, dy, x, none, none, dx, dresidual, mode);
  }
  template <class Device, class Dy, class X, class Residual, class Dx, class Dresidual>
  void add_backward(const Device& device, const Dy& dy, const X& x, const Residual& residual, Dx&& dx,
                    Dresidual&& dresidual, GradientMode mode = GradientMode::accumulate) {
    run_backward("add_backward", device, dy, x, residual, none, dx, dresidual, mode);
  }
  template <class Device, class Dy, class X, class Mask, class Dx>
  void masked_backward(const Device& device, const Dy& dy, const X& x, const Mask& mask, Dx&& dx,
                       GradientMode mode = GradientMode::accumulate) {
    None dresidual;
    run_backward("masked_backward", device, dy, x, none, mask, dx, dresidual, mode);
  }

  const Options& options() const { return options_; }

  RunningStatistics<A, Storage> running;  ///< running_mean, running_var, num_batches_tracked
  Saved saved;

 private:
  bool frozen() const { return !training && tracking_ == Tracking::on; }

  template <class Device, class X, class Residual, class Mask, class Y>
  void run(const char* function, const Device& device, const X& x, const Residual& residual, const Mask& mask, Y& y) {
    this->check_channels(function, x, options_.axis);
    this->with_parameters([&](const auto& w, const auto& b, const auto&, const auto&) {
      if (frozen())
        return frozen_channel_norm<Activation>(function, device, x, residual, mask, w, b, running, y,
                                               spec_of(options_));
      channel_norm<Activation>(function, device, x, residual, mask, w, b, y, saved, spec_of(options_));
      if (tracking_ == Tracking::on) running.update(device, saved);
    });
  }
  template <class Device, class Dy, class X, class Residual, class Mask, class Dx, class Dresidual>
  void run_backward(const char* function, const Device& device, const Dy& dy, const X& x, const Residual& residual,
                    const Mask& mask, Dx& dx, Dresidual& dresidual, GradientMode mode) {
    this->with_parameters([&](const auto& w, const auto& b, auto dw, auto db) {
      if (frozen())
        frozen_channel_norm_backward<Activation>(function, device, dy, x, residual, mask, w, b, running, saved, dx,
                                                 dresidual, dw, db, spec_of(options_), mode);
      else
        channel_norm_backward<Activation>(function, device, dy, x, residual, mask, w, b, saved, dx, dresidual, dw, db,
                                          mode);
    });
  }

  Options options_;
  Tracking tracking_;
};

}  // namespace EVENKEEL_ISA
}  // namespace detail
}  // namespace evenkeel
