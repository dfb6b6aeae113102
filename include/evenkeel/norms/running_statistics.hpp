/// Running mean and variance of channels: what BatchNorm and InstanceNorm normalize with after training.
///
///     new = (1 - m) * old + m * batch,  m the weight of the new value
///
/// running_var takes the unbiased variance of the batch, M2/(n - 1), though training normalizes with the biased one.
#pragma once

#include "evenkeel/moments.hpp"
#include "evenkeel/norms/channel_norm.hpp"
#include "evenkeel/storage.hpp"

#include <algorithm>
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
  constexpr Momentum(NewWeight w) : new_weight_(w.value) {}
  constexpr Momentum(OldWeight w) : new_weight_(1 - w.value) {}
  /// The plain average over batches, each of which counts once.
  static constexpr Momentum cumulative() { return Momentum(NewWeight{-1}); }

  /// The weight of batch number `batches`, counted from 1.
  double new_weight(std::int64_t batches) const {
    return new_weight_ < 0 ? 1 / static_cast<double>(batches) : new_weight_;
  }
  bool valid() const { return new_weight_ <= 1; }

 private:
  double new_weight_;  // below 0: cumulative
};

enum class RunningVariance {
  unbiased,  ///< M2/(n - 1) enters running_var (torch)
  biased     ///< M2/n (Keras, TensorFlow's non-fused kernels)
};

/// How running statistics are kept.
struct RunningOptions {
  Momentum momentum = NewWeight{0.1};
  RunningVariance variance = RunningVariance::unbiased;
};

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
    std::fill_n(mean(), channels_, A(0));
    std::fill_n(var(), channels_, A(1));
    num_batches_tracked = 0;
  }

  /// Takes in the batch whose statistics `saved` holds; of ghost batches one after the other; of InstanceNorm the mean
  /// over samples. A batch without values changes nothing. Throws ShapeError, and changes nothing, where the channels
  /// are not these.
  void update(const ChannelNormSaved<A, Storage>& saved) {
    if (!saved.call.filled || saved.groups() != channels_)
      detail::throw_shape_error("RunningStatistics::update", "saved holds ", saved.groups(), " channels, expected ",
                                channels_);
    const Index samples = saved.samples();
    if (!saved.call.spec.averaged) {
      for (Index s = 0; s < samples; ++s) take(saved, s, s + 1);
    } else {
      take(saved, 0, samples);
    }
  }

  /// The statistics of channel c become those of a population: a pass over a whole data set, merged with ek::merge.
  void assign(Index c, const Moments<A>& population) {
    mean()[c] = population.mean();
    var()[c] = options_.variance == RunningVariance::unbiased ? population.unbiased_variance() : population.variance();
  }

  std::int64_t num_batches_tracked = 0;

 private:
  /// The mean over samples first..last-1.
  void take(const ChannelNormSaved<A, Storage>& saved, Index first, Index last) {
    const auto counts = [&](Index s) { return saved.wide_moments(0, s).count > 0; };
    Index used = 0;
    for (Index s = first; s < last; ++s) used += counts(s);
    if (used == 0) return;
    const double m = options_.momentum.new_weight(++num_batches_tracked);
    for (Index c = 0; c < channels_; ++c) {
      double mean_sum = 0, var_sum = 0;
      for (Index s = first; s < last; ++s) {
        if (!counts(s)) continue;
        const Moments<double> moments = saved.wide_moments(c, s);
        mean_sum += moments.mean();
        var_sum += options_.variance == RunningVariance::unbiased ? moments.unbiased_variance() : moments.variance();
      }
      const auto follow = [&](A& old, double sum) {
        old = static_cast<A>((1 - m) * static_cast<double>(old) + m * (sum / static_cast<double>(used)));
      };
      follow(mean()[c], mean_sum);
      follow(var()[c], var_sum);
    }
  }

  Index channels_;
  RunningOptions options_;
  typename Storage::template Buffer<A> values_;  // (mean | var, channels): what the norms read
};

}  // namespace EVENKEEL_ISA

}  // namespace evenkeel
