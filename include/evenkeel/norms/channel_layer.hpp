/// What the layers over channels have in common: parameters, running statistics, training and inference.
#pragma once

#include "evenkeel/norms/channel_norm.hpp"
#include "evenkeel/norms/frozen_channel_norm.hpp"
#include "evenkeel/norms/running_statistics.hpp"
#include "evenkeel/norms/synchronized_channel_norm.hpp"
#include "evenkeel/parameter.hpp"

#include <utility>

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
/// With a communicator other than the local one, the data are those of all its ranks; with running nothing is exchanged.
template <class T, class Activation, class Storage, class Saved, class Options, auto spec_of,
          Communicator C = LocalCommunicator>
class TrackedChannelNorm : public ChannelParameters<T, Storage> {
 public:
  using A = accumulator_t<T>;

  TrackedChannelNorm(const char* name, Index channels, const Options& options, Affine affine, Tracking tracking,
                     const RunningOptions& running_options, C communicator = C())
      : ChannelParameters<T, Storage>(name, channels, affine),
        running(channels, running_options),
        options_(options),
        tracking_(tracking),
        communicator_(std::move(communicator)) {
    if (!is_local_v<C> && spec_of(options_).per_sample)
      throw_shape_error(name, "statistics over ranks and over ghost batches exclude each other");
  }

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

  /// forward and backward in two halves, with the exchange between them: the first half is done here, the second by
  /// finish() of what is returned, and until then nothing that the call was given may be touched. Allocates a little.
  template <class Device, class X, class Y>
  Pending start_forward(const Device& device, const X& x, Y&& y) {
    Pending pending;
    run("forward", device, x, none, none, y, &pending);
    return pending;
  }
  template <class Device, class Dy, class X, class Dx>
  Pending start_backward(const Device& device, const Dy& dy, const X& x, Dx&& dx,
                         GradientMode mode = GradientMode::accumulate) {
    None dresidual;
    Pending pending;
    run_backward("backward", device, dy, x, none, none, dx, dresidual, mode, &pending);
    return pending;
  }

  /// For a rank that cannot call the forward, or the backward, that the others are in: it takes part in their exchange
  /// with the mark of a call that failed, and they throw RankError.
  void refuse_forward() requires(!is_local_v<C> && Storage::on_host) {
    if (!frozen()) refuse_moments(communicator_, {this->channels(), communicator_.size()});
  }
  void refuse_backward() requires(!is_local_v<C> && Storage::on_host) {
    if (!frozen()) refuse_gradients(communicator_, {this->channels(), communicator_.size()});
  }

  const Options& options() const { return options_; }
  C& communicator() { return communicator_; }

  RunningStatistics<A, Storage> running;  ///< running_mean, running_var, num_batches_tracked
  Saved saved;

 private:
  bool frozen() const { return !training && tracking_ == Tracking::on; }

  template <class Device, class X, class Residual, class Mask, class Y>
  void run(const char* function, const Device& device, const X& x, const Residual& residual, const Mask& mask, Y& y,
           Pending* pending = nullptr) {
    if (frozen() || is_local_v<C>) this->check_channels(function, x, options_.axis);
    this->with_parameters([&](const auto& w, const auto& b, const auto&, const auto&) {
      if (frozen())
        return frozen_channel_norm<Activation>(function, device, x, residual, mask, w, b, running, y,
                                               spec_of(options_));
      if constexpr (is_local_v<C>) {
        channel_norm<Activation>(function, device, x, residual, mask, w, b, y, saved, spec_of(options_));
        if (tracking_ == Tracking::on) running.update(device, saved);
      } else {
        auto step = start_synchronized_norm<Activation>(function, device, x, residual, mask, w, b, y, saved,
                                                        spec_of(options_), this->channels(), communicator_);
        finish_now_or_later(ExchangeStep(std::move(step),
                                         [this, &device] {
                                           if (tracking_ == Tracking::on) running.update(device, saved);
                                         }),
                            pending);
      }
    });
  }
  template <class Device, class Dy, class X, class Residual, class Mask, class Dx, class Dresidual>
  void run_backward(const char* function, const Device& device, const Dy& dy, const X& x, const Residual& residual,
                    const Mask& mask, Dx& dx, Dresidual& dresidual, GradientMode mode, Pending* pending = nullptr) {
    this->with_parameters([&](const auto& w, const auto& b, auto dw, auto db) {
      if (frozen())
        frozen_channel_norm_backward<Activation>(function, device, dy, x, residual, mask, w, b, running, saved, dx,
                                                 dresidual, dw, db, spec_of(options_), mode);
      else if constexpr (is_local_v<C>)
        channel_norm_backward<Activation>(function, device, dy, x, residual, mask, w, b, saved, dx, dresidual, dw, db,
                                          mode);
      else
        finish_now_or_later(
            start_synchronized_norm_backward<Activation>(function, device, dy, x, residual, mask, w, b, saved, dx,
                                                         dresidual, dw, db, mode, this->channels(), communicator_),
            pending);
    });
  }
  template <class Step>
  static void finish_now_or_later(Step step, Pending* pending) {
    if (pending != nullptr)
      *pending = Pending(std::move(step));
    else
      step.finish();
  }

  Options options_;
  Tracking tracking_;
  [[no_unique_address]] C communicator_;
};

}  // namespace EVENKEEL_ISA
}  // namespace detail
}  // namespace evenkeel
