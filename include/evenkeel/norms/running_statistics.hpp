/// Running mean and variance of channels: what BatchNorm and InstanceNorm normalize with after training.
///
///     new = (1 - m) * old + m * batch,  m the weight of the new value
///
/// running_var takes the unbiased variance of the batch, M2/(n - 1), though training normalizes with the biased one.
#pragma once

#include "evenkeel/detail/running_math.hpp"
#include "evenkeel/moments.hpp"
#include "evenkeel/norms/channel_saved.hpp"
#include "evenkeel/storage.hpp"

#include <cstdint>

namespace evenkeel {

/// Momentum as torch means it: the weight of the new value, 0.1.
struct NewWeight {
  double value;
};
/// Momentum as Keras and TensorFlow mean it: the weight of the old value, 0.99.
struct OldWeight {
  double value;
};

/// How running statistics follow the batches.
class Momentum {
 public:
  constexpr Momentum(NewWeight w) : new_weight_(w.value) {}      // NOLINT(google-explicit-constructor)
  constexpr Momentum(OldWeight w) : new_weight_(1 - w.value) {}  // NOLINT(google-explicit-constructor)
  /// The plain average over batches, each of which counts once.
  static constexpr Momentum cumulative() { return Momentum(NewWeight{-1}); }

  /// The weight of a new value; below 0 where it is 1 / the number of the batch, counted from 1.
  double new_weight() const { return new_weight_; }
  bool valid() const { return new_weight_ <= 1; }

 private:
  double new_weight_;
};

/// Which variance of a batch the running variance follows.
enum class RunningVariance {
  unbiased,  ///< M2/(n - 1) enters running_var (torch)
  biased     ///< M2/n (Keras, TensorFlow's non-fused kernels)
};

/// How running statistics are kept.
struct RunningOptions {
  Momentum momentum = NewWeight{0.1};
  RunningVariance variance = RunningVariance::unbiased;
};

namespace detail::inline EVENKEEL_ISA {

/// Running statistics (mean | var, channels) take in moments (count | shift | delta | M2, samples, channels). Returns
/// the batches after it.
template <class Device, class A>
  requires(!StreamDevice<Device>)
std::int64_t update_running(const Device&, const RunningStep& step, const ChannelGrid& grid, const double* moments,
                            A* values) {
  std::int64_t batches = step.batches;
  const Index channels = grid.channels, sets = grid.samples * channels;
  for (Index c = 0; c < channels; ++c)
    batches = step.take(values[c], values[channels + c], grid.samples, [&](Index s) {
      const double* const m = moments + s * channels + c;
      return Moments<double>{static_cast<std::int64_t>(m[0]), m[sets], m[2 * sets], m[3 * sets]};
    });
  return batches;
}

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// Running mean (0 at first), running variance (1 at first) and the number of batches that they have seen.
template <class A, class Storage = HostStorage>
class RunningStatistics {
 public:
  using Scalar = A;

  /// Throws ShapeError for fewer than one channel, or a momentum outside 0..1.
  explicit RunningStatistics(Index channels, const RunningOptions& options = {})
      : channels_(channels), options_(options) {
    if (channels < 1)
      detail::throw_shape_error("RunningStatistics", "there are ", channels, " channels, expected 1 or more");
    if (!options.momentum.valid()) detail::throw_shape_error("RunningStatistics", "momentum is outside 0 to 1");
    values_.reserve(2 * channels);
    reset();
  }

  Index channels() const { return channels_; }
  A* mean() { return values_.data(); }
  const A* mean() const { return values_.data(); }
  A* var() { return values_.data() + channels_; }
  const A* var() const { return values_.data() + channels_; }
  const A* data() const { return values_.data(); }

  void reset() {
    Storage::fill(mean(), channels_, A(0));
    Storage::fill(var(), channels_, A(1));
    num_batches_tracked = 0;
  }

  /// Takes in the batch whose statistics `saved` holds; of ghost batches one after the other; of InstanceNorm the mean
  /// over samples. A batch without values changes nothing. Throws ShapeError, and changes nothing, where the channels
  /// are not these. A CUDA device does so in its stream: num_batches_tracked, which stays on the host, then counts a
  /// masked batch, or one over ranks, whether or not anything in it counts.
  template <class Device>
  void update(const Device& device, const ChannelNormSaved<A, Storage>& saved) {
    detail::require_device<Device>();
    if (!saved.call.filled || saved.groups() != channels_)
      detail::throw_shape_error("RunningStatistics::update", "saved holds ", saved.groups(), " channels, expected ",
                                channels_);
    num_batches_tracked = update_running(
        device,
        detail::RunningStep{options_.momentum.new_weight(), num_batches_tracked, saved.call.spec.averaged,
                            options_.variance == RunningVariance::unbiased, saved.call.over_ranks},
        saved.call.grid, saved.moments_data(), values_.data());
  }
  void update(const ChannelNormSaved<A, Storage>& saved) requires(Storage::on_host) { update(serial, saved); }

  /// The statistics of channel c become those of a population: a pass over a whole data set, merged with ek::merge.
  void assign(Index c, const Moments<A>& population) requires(Storage::on_host) {
    mean()[c] = population.mean();
    var()[c] = options_.variance == RunningVariance::unbiased ? population.unbiased_variance() : population.variance();
  }

  std::int64_t num_batches_tracked = 0;

 private:
  Index channels_;
  RunningOptions options_;
  typename Storage::template Buffer<A> values_;  // (mean | var, channels): what the norms read
};

}  // namespace EVENKEEL_ISA

}  // namespace evenkeel
