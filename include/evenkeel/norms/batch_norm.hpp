/// BatchNorm: standardizes each channel over the batch and all positions. S. Ioffe, C. Szegedy, "Batch Normalization",
/// 2015, algorithms 1 and 2.
///
///     training:   mean, biased var of a channel's n values;  xhat = (x - mean)/sqrt(var + eps),  y = xhat * weight +
///     bias
///                 dweight = sum(dy * xhat),  dbias = sum(dy),  dx = weight * rstd * (dy - dbias/n - xhat * dweight/n)
///     inference:  xhat = (x - running_mean)/sqrt(running_var + eps);  dx = dy * weight * rstd
///
/// Three steps: moments of each channel, their exchange where a communicator is given (SyncBatchNorm), and the application.
///
/// With an activation, y = act(u) of that u, and dy becomes dy * act'(u). With a residual, u = xhat * weight + bias +
/// residual. With ghost batches each run of options.ghost samples has statistics of its own (E. Hoffer, I. Hubara,
/// D. Soudry, "Train longer, generalize better", 2017, algorithm 1).
#pragma once

#include "evenkeel/norms/channel_layer.hpp"

#include <utility>

namespace evenkeel {

/// Options of batch_norm.
struct BatchNormOptions {
  double eps = 1e-5;    ///< added to the variance, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = 1;        ///< the channel axis
  Index ghost = 0;      ///< samples that share statistics; 0: the whole batch. Must divide the batch
  int sample_axis = 0;  ///< the axis of samples, first or last; it matters to ghost batches only
};

namespace detail {

inline ChannelSpec batch_norm_spec(const BatchNormOptions& o) {
  return {o.eps, o.axis, o.sample_axis, o.ghost != 0, o.ghost == 0 ? 1 : o.ghost, 0, false, "channel"};
}

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// Statistics that batch_norm leaves for batch_norm_backward, and scratch.
template <class A, class Storage = HostStorage>
class BatchNormSaved : public ChannelNormSaved<A, Storage> {
 public:
  /// Makes room for a forward and a backward over x, so that neither allocates.
  template <class Device, class X>
  void reserve(const Device& device, const X& x, const BatchNormOptions& options = {}) {
    this->reserve_for(device, x, detail::batch_norm_spec(options));
  }
  /// The same for the ranks of a communicator.
  template <class Device, class X, Communicator C>
  void reserve(const Device& device, const X& x, const BatchNormOptions& options, const C& communicator) {
    this->reserve_for(device, x, detail::batch_norm_spec(options), communicator.size());
  }
  template <class Device, class X>
  void reserve(const Device& device, const X& x, const Axes& axis) {
    reserve(device, x, BatchNormOptions{.axis = axis});
  }
};

/// y = act((x - mean) * rstd * weight + bias) with the statistics of the data: training mode.
///
/// Activation    ek::Identity, ek::Relu, ek::Silu
/// x, y          any shape with a channel axis (options.axis); y may be x itself, then no backward is possible
/// weight, bias  one value per channel, or ek::none
/// saved         receives each channel's moments, mean and rstd
/// Writes y and saved. Throws ShapeError before any work, also for one value per channel. Nothing at all is done where
/// there is no value. The eps stands inside the root. Allocates nothing but what saved lacks.
/// Example: tests/norms/batch_norm_test.cpp.
template <class Activation = Identity, class Device, class X, class Weight, class Bias, class Y, class A, class Storage>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void batch_norm(const Device& device, const X& x, const Weight& weight, const Bias& bias, Y&& y,
                ChannelNormSaved<A, Storage>& saved, const BatchNormOptions& options = {}) {
  detail::channel_norm<Activation>("batch_norm", device, x, none, none, weight, bias, y, saved,
                                   detail::batch_norm_spec(options));
}

/// batch_norm with the statistics of all ranks' data, the same bits on each rank: SyncBatchNorm. One message, of 3 doubles
/// for each channel and one more.
///
/// Ranks may hold different numbers of values, also none; whether there are enough is decided after the exchange, so all
/// ranks throw or none. Where the call fails on one rank (ShapeError there), the others throw RankError; on none of them
/// anything has changed. All ranks have the same number of channels, which a rank with a wrong x takes from weight or bias;
/// without both, an x with a wrong number of channels makes messages of unequal lengths, which not every communicator
/// notices. Ghost batches are an error.
template <class Activation = Identity, class Device, class X, class Weight, class Bias, class Y, class A, class Storage,
          Communicator C>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void batch_norm(const Device& device, const X& x, const Weight& weight, const Bias& bias, Y&& y,
                ChannelNormSaved<A, Storage>& saved, const BatchNormOptions& options, C&& communicator) {
  detail::start_synchronized_norm<Activation>("batch_norm", device, x, none, none, weight, bias, y, saved,
                                              detail::batch_norm_spec(options),
                                              detail::channels_of(x, weight, bias, options.axis), communicator)
      .finish();
}
/// The same in two halves: until finish() of what is returned, whatever the call was given stays and is not touched.
template <class Activation = Identity, class Device, class X, class Weight, class Bias, class Y, class A, class Storage,
          Communicator C>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>> Pending
  start_batch_norm(const Device& device, const X& x, const Weight& weight, const Bias& bias, Y&& y,
                   ChannelNormSaved<A, Storage>& saved, const BatchNormOptions& options, C& communicator) {
    return Pending(detail::start_synchronized_norm<Activation>(
        "start_batch_norm", device, x, none, none, weight, bias, y, saved, detail::batch_norm_spec(options),
        detail::channels_of(x, weight, bias, options.axis), communicator));
  }

/// y = act(batch_norm(x) + residual), in one pass: the end of a residual block. residual and y have the shape of x; y
/// may be residual.
template <class Activation = Identity, class Device, class X, class Residual, class Weight, class Bias, class Y,
          class A, class Storage>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void batch_norm_add(const Device& device, const X& x, const Residual& residual, const Weight& weight, const Bias& bias,
                    Y&& y, ChannelNormSaved<A, Storage>& saved, const BatchNormOptions& options = {}) {
  detail::channel_norm<Activation>("batch_norm_add", device, x, residual, none, weight, bias, y, saved,
                                   detail::batch_norm_spec(options));
}
/// The same over all ranks' data.
template <class Activation = Identity, class Device, class X, class Residual, class Weight, class Bias, class Y,
          class A, class Storage, Communicator C>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void batch_norm_add(const Device& device, const X& x, const Residual& residual, const Weight& weight, const Bias& bias,
                    Y&& y, ChannelNormSaved<A, Storage>& saved, const BatchNormOptions& options, C&& communicator) {
  detail::start_synchronized_norm<Activation>("batch_norm_add", device, x, residual, none, weight, bias, y, saved,
                                              detail::batch_norm_spec(options),
                                              detail::channels_of(x, weight, bias, options.axis), communicator)
      .finish();
}

/// batch_norm of padded data. mask has one value for each position, the same for all channels: 1 (or true) where x
/// counts and 0 where it is padding, which enters no sum; there y is 0. Its shape is x's without the channel axis.
/// Where nothing counts, y is 0 and moments have count 0. One value that counts is an error; a CUDA device, whose masks
/// the host does not read, takes its variance as 0.
template <class Activation = Identity, class Device, class X, class Mask, class Weight, class Bias, class Y, class A,
          class Storage>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void masked_batch_norm(const Device& device, const X& x, const Mask& mask, const Weight& weight, const Bias& bias,
                       Y&& y, ChannelNormSaved<A, Storage>& saved, const BatchNormOptions& options = {}) {
  detail::channel_norm<Activation>("masked_batch_norm", device, x, none, mask, weight, bias, y, saved,
                                   detail::batch_norm_spec(options));
}
/// The same over all ranks' data, of which the counted ones are counted.
template <class Activation = Identity, class Device, class X, class Mask, class Weight, class Bias, class Y, class A,
          class Storage, Communicator C>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void masked_batch_norm(const Device& device, const X& x, const Mask& mask, const Weight& weight, const Bias& bias,
                       Y&& y, ChannelNormSaved<A, Storage>& saved, const BatchNormOptions& options, C&& communicator) {
  detail::start_synchronized_norm<Activation>("masked_batch_norm", device, x, none, mask, weight, bias, y, saved,
                                              detail::batch_norm_spec(options),
                                              detail::channels_of(x, weight, bias, options.axis), communicator)
      .finish();
}

/// The gradients of batch_norm.
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
void batch_norm_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight, const Bias& bias,
                         ChannelNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight, Dbias&& dbias,
                         GradientMode mode = GradientMode::accumulate) {
  None dresidual;
  detail::channel_norm_backward<Activation>("batch_norm_backward", device, dy, x, none, none, weight, bias, saved, dx,
                                            dresidual, dweight, dbias, mode);
}
/// Without an activation: the bias is not needed.
template <class Device, class Dy, class X, class Weight, class A, class Storage, class Dx, class Dweight, class Dbias>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void batch_norm_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight,
                         ChannelNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight, Dbias&& dbias,
                         GradientMode mode = GradientMode::accumulate) {
  batch_norm_backward<Identity>(device, dy, x, weight, none, saved, dx, dweight, dbias, mode);
}

/// The gradients of batch_norm over all ranks, in one message of 2 doubles for each channel and one more. dweight and dbias
/// are this rank's own: a trainer averages those of all parameters. Where the call fails on one rank, all throw, as in the
/// forward.
template <class Activation = Identity, class Device, class Dy, class X, class Weight, class Bias, class A,
          class Storage, class Dx, class Dweight, class Dbias, Communicator C>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void batch_norm_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight, const Bias& bias,
                         ChannelNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight, Dbias&& dbias,
                         GradientMode mode, C&& communicator) {
  None dresidual;
  detail::start_synchronized_norm_backward<Activation>(
      "batch_norm_backward", device, dy, x, none, none, weight, bias, saved, dx, dresidual, dweight, dbias, mode,
      detail::channels_of(x, weight, bias, saved.call.spec.axis), communicator)
      .finish();
}
/// The same in two halves: until finish() of what is returned, whatever the call was given stays and is not touched.
template <class Activation = Identity, class Device, class Dy, class X, class Weight, class Bias, class A,
          class Storage, class Dx, class Dweight, class Dbias, Communicator C>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>> Pending
  start_batch_norm_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight, const Bias& bias,
                            ChannelNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight, Dbias&& dbias,
                            GradientMode mode, C& communicator) {
    None dresidual;
    return Pending(detail::start_synchronized_norm_backward<Activation>(
        "start_batch_norm_backward", device, dy, x, none, none, weight, bias, saved, dx, dresidual, dweight, dbias,
        mode, detail::channels_of(x, weight, bias, saved.call.spec.axis), communicator));
  }

/// The gradients of batch_norm_add: dresidual is written beside dx. It may be dy itself where dx is not.
template <class Activation = Identity, class Device, class Dy, class X, class Residual, class Weight, class Bias,
          class A, class Storage, class Dx, class Dresidual, class Dweight, class Dbias>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void batch_norm_add_backward(const Device& device, const Dy& dy, const X& x, const Residual& residual,
                             const Weight& weight, const Bias& bias, ChannelNormSaved<A, Storage>& saved, Dx&& dx,
                             Dresidual&& dresidual, Dweight&& dweight, Dbias&& dbias,
                             GradientMode mode = GradientMode::accumulate) {
  detail::channel_norm_backward<Activation>("batch_norm_add_backward", device, dy, x, residual, none, weight, bias,
                                            saved, dx, dresidual, dweight, dbias, mode);
}
/// The same over all ranks.
template <class Activation = Identity, class Device, class Dy, class X, class Residual, class Weight, class Bias,
          class A, class Storage, class Dx, class Dresidual, class Dweight, class Dbias, Communicator C>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void batch_norm_add_backward(const Device& device, const Dy& dy, const X& x, const Residual& residual,
                             const Weight& weight, const Bias& bias, ChannelNormSaved<A, Storage>& saved, Dx&& dx,
                             Dresidual&& dresidual, Dweight&& dweight, Dbias&& dbias, GradientMode mode,
                             C&& communicator) {
  detail::start_synchronized_norm_backward<Activation>(
      "batch_norm_add_backward", device, dy, x, residual, none, weight, bias, saved, dx, dresidual, dweight, dbias,
      mode, detail::channels_of(x, weight, bias, saved.call.spec.axis), communicator)
      .finish();
}

/// The gradients of masked_batch_norm. Where the mask is 0, dx is 0 and dy is not read into any sum.
template <class Activation = Identity, class Device, class Dy, class X, class Mask, class Weight, class Bias, class A,
          class Storage, class Dx, class Dweight, class Dbias>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void masked_batch_norm_backward(const Device& device, const Dy& dy, const X& x, const Mask& mask, const Weight& weight,
                                const Bias& bias, ChannelNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight,
                                Dbias&& dbias, GradientMode mode = GradientMode::accumulate) {
  None dresidual;
  detail::channel_norm_backward<Activation>("masked_batch_norm_backward", device, dy, x, none, mask, weight, bias,
                                            saved, dx, dresidual, dweight, dbias, mode);
}
/// The same over all ranks.
template <class Activation = Identity, class Device, class Dy, class X, class Mask, class Weight, class Bias, class A,
          class Storage, class Dx, class Dweight, class Dbias, Communicator C>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void masked_batch_norm_backward(const Device& device, const Dy& dy, const X& x, const Mask& mask, const Weight& weight,
                                const Bias& bias, ChannelNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight,
                                Dbias&& dbias, GradientMode mode, C&& communicator) {
  None dresidual;
  detail::start_synchronized_norm_backward<Activation>(
      "masked_batch_norm_backward", device, dy, x, none, mask, weight, bias, saved, dx, dresidual, dweight, dbias, mode,
      detail::channels_of(x, weight, bias, saved.call.spec.axis), communicator)
      .finish();
}

/// Inference: y = act((x - running.mean) / sqrt(running.var + eps) * weight + bias). Reads running, changes nothing
/// else but y, which may be x.
template <class Activation = Identity, class Device, class X, class Weight, class Bias, class A, class Storage, class Y>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void batch_norm_inference(const Device& device, const X& x, const Weight& weight, const Bias& bias,
                          const RunningStatistics<A, Storage>& running, Y&& y, const BatchNormOptions& options = {}) {
  detail::frozen_channel_norm<Activation>("batch_norm_inference", device, x, none, none, weight, bias, running, y,
                                          detail::batch_norm_spec(options));
}

/// The gradients of batch_norm_inference: the statistics are constants. `scratch` is used for nothing else.
template <class Activation = Identity, class Device, class Dy, class X, class Weight, class Bias, class A,
          class Storage, class Dx, class Dweight, class Dbias>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const X>>>
void batch_norm_inference_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight,
                                   const Bias& bias, const RunningStatistics<A, Storage>& running,
                                   ChannelNormSaved<A, Storage>& scratch, Dx&& dx, Dweight&& dweight, Dbias&& dbias,
                                   const BatchNormOptions& options = {}, GradientMode mode = GradientMode::accumulate) {
  None dresidual;
  detail::frozen_channel_norm_backward<Activation>("batch_norm_inference_backward", device, dy, x, none, none, weight,
                                                   bias, running, scratch, dx, dresidual, dweight, dbias,
                                                   detail::batch_norm_spec(options), mode);
}

/// BatchNorm with its weight (ones at first), bias (zeros), gradients, running statistics and saved statistics.
///
///     ek::BatchNorm<float> norm(channels);                                     // torch's defaults
///     norm.forward(device, x, y);  norm.backward(device, dy, x, dx);           // training
///     norm.training = false;  norm.forward(device, x, y);                      // inference
///     ek::BatchNorm<float> slow(channels, {}, {.momentum = ek::OldWeight{0.99}});
template <class T, class Activation = Identity, class Storage = HostStorage, Communicator C = LocalCommunicator>
class BatchNorm : public detail::TrackedChannelNorm<T, Activation, Storage, BatchNormSaved<accumulator_t<T>, Storage>,
                                                    BatchNormOptions, detail::batch_norm_spec, C> {
  using Base = detail::TrackedChannelNorm<T, Activation, Storage, BatchNormSaved<accumulator_t<T>, Storage>,
                                          BatchNormOptions, detail::batch_norm_spec, C>;

 public:
  explicit BatchNorm(Index channels, const BatchNormOptions& options = {}, const RunningOptions& running_options = {},
                     Affine affine = Affine::weight_and_bias, Tracking tracking = Tracking::on) requires is_local_v<C>
      : Base("BatchNorm", channels, options, affine, tracking, running_options) {}
  /// Over the ranks of a communicator, of which the layer keeps a copy.
  BatchNorm(C communicator, Index channels, const BatchNormOptions& options = {},
            const RunningOptions& running_options = {}, Affine affine = Affine::weight_and_bias,
            Tracking tracking = Tracking::on) requires(!is_local_v<C>)
      : Base("SyncBatchNorm", channels, options, affine, tracking, running_options, std::move(communicator)) {}
};

/// BatchNorm with the statistics of all ranks' data: forward and backward exchange one message each, inference and frozen
/// statistics none. Running statistics are the same bits on all ranks. The gradients of weight and bias are this rank's
/// own. Errors on one rank are errors on all, see batch_norm.
///
///     ek::SyncBatchNorm<float, ek::MpiCommunicator> norm(ek::MpiCommunicator(MPI_COMM_WORLD), channels);
///     ek::Pending pending = norm.start_forward(device, x, y);                  // or norm.forward(device, x, y)
///     pending.finish();
template <class T, Communicator C, class Activation = Identity, class Storage = HostStorage>
using SyncBatchNorm = BatchNorm<T, Activation, Storage, C>;

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
