/// What a forward of BatchNorm, GroupNorm or InstanceNorm leaves for its backward, and the shape of such a call.
#pragma once

#include "evenkeel/detail/arguments.hpp"
#include "evenkeel/detail/channel_pass_cpu.hpp"
#include "evenkeel/detail/rank_math.hpp"
#include "evenkeel/moments.hpp"
#include "evenkeel/storage.hpp"

#include <algorithm>

namespace evenkeel {
namespace detail {

/// Which elements share a mean and a variance.
struct ChannelSpec {
  double eps;
  Axes axis;
  int sample_axis;
  bool per_sample;   ///< each sample, or each ghost batch of samples, by itself
  Index ghost;       ///< samples that share statistics, where per_sample
  Index groups;      ///< groups that the channels fall into; 0: each channel by itself
  bool averaged;     ///< running statistics take the mean over samples (InstanceNorm)
  const char* unit;  ///< what has one mean, in messages
};

/// The call that filled a `saved`.
struct ChannelCall {
  ChannelSpec spec{};
  ChannelGrid grid{0, 0, {}};
  Index groups = 0;
  const char* scalar = "";
  const void* activation = nullptr;
  bool has_weight = false, has_bias = false, has_residual = false, has_mask = false, in_place = false,
       over_ranks = false;
  bool filled = false;
};

/// One address for each activation.
template <class Activation>
inline constexpr char activation_tag = 0;

inline namespace EVENKEEL_ISA {

/// The arguments of a call, checked, as cells.
struct ChannelShape {
  ChannelGrid grid;
  SampleLevel level;
  Index ghost, groups;
  template <class R>
  auto cells(const R& rows) const {
    return cells_of(rows, level, ghost);
  }
};

/// Values of scratch, `sums` of double, for statistics over ranks. Forward: (count | shift | delta | M2, channels), then
/// each rank's message. Backward: (g | g_xhat, channels), the message, (2, channels).
inline Index room_of_ranks(Index channels, int ranks) {
  return 4 * channels + std::max(ranks * moments_message(channels), gradients_message(channels));
}

inline ChannelShape channel_shape(const char* function, const RowArguments& arguments, const ChannelSpec& spec) {
  const RowGrid rows = arguments.grid();
  const SampleLevel level = arguments.sample_level();
  Index ghost = spec.ghost;
  if (level != SampleLevel::none) {
    const Index samples = rows.extent[level == SampleLevel::outer ? 0 : 2];
    if (ghost < 1 || samples % ghost != 0)
      throw_shape_error(function, "ghost batches of ", ghost, " samples do not divide the batch of ", samples, " (",
                        arguments.shape(), ")");
  }
  const Index groups = spec.groups == 0 ? rows.length : spec.groups;
  if (groups < 1 || rows.length % groups != 0)
    throw_shape_error(function, groups, " groups do not divide ", rows.length, " channels (", arguments.shape(), ")");
  return {channel_grid(rows, level, ghost), level, ghost, groups};
}

}  // namespace EVENKEEL_ISA
}  // namespace detail

inline namespace EVENKEEL_ISA {

/// Statistics that a norm over channels leaves for its backward, and scratch. A is the accumulator type of the data.
/// One set of statistics for each sample (or ghost batch; one for BatchNorm) and group (or channel).
template <class A, class Storage = HostStorage>
class ChannelNormSaved {
 public:
  using Scalar = A;

  Index samples() const { return call.grid.samples; }
  Index groups() const { return call.groups; }
  Index channels() const { return call.grid.channels; }

  // Where the storage is the host's:

  /// Count, mean and spread of what channel or group `g` of sample `s` holds; mergeable with ek::merge.
  Moments<A> moments(Index g, Index s = 0) const requires(Storage::on_host) {
    const Moments<double> m = wide_moments(g, s);
    const A shift = static_cast<A>(m.shift);
    return {m.count, shift, static_cast<A>(m.shift - static_cast<double>(shift) + m.delta), static_cast<A>(m.M2)};
  }
  /// The mean, rounded to one number. The backward uses what that leaves, too.
  A mean(Index g, Index s = 0) const requires(Storage::on_host) { return statistics.data()[s * call.groups + g]; }
  A rstd(Index g, Index s = 0) const requires(Storage::on_host) {
    return statistics.data()[(2 * samples() + s) * call.groups + g];
  }

  // What the norms keep here.

  Moments<double> wide_moments(Index g, Index s = 0) const requires(Storage::on_host) {
    const double* const m = moments_.data() + s * call.groups + g;
    const Index sets = samples() * call.groups;
    return {static_cast<std::int64_t>(m[0]), m[sets], m[2 * sets], m[3 * sets]};
  }
  void set_moments(Index set, const Moments<double>& m) requires(Storage::on_host) {
    const Index sets = samples() * call.groups;
    double* const to = moments_.data() + set;
    to[0] = static_cast<double>(m.count), to[sets] = m.shift, to[2 * sets] = m.delta, to[3 * sets] = m.M2;
  }
  /// (count | shift | delta | M2, samples, groups)
  double* moments_data() { return moments_.data(); }
  const double* moments_data() const { return moments_.data(); }

  template <class Device>
  void begin(const Device& device, const detail::ChannelCall& now) {
    make_room(device, now.grid, now.groups);
    call = now;
  }
  /// Room for a call, with at least `least_sums` values of sums. Throws where there is none, and a device's cannot be made.
  template <class Device>
  void make_room(const Device& device, const detail::ChannelGrid& grid, Index groups, Index least_sums = 0) {
    const Index sets = grid.samples * groups;
    const detail::ChannelRoom room = channel_room(device, grid, groups);
    statistics.ensure(3 * sets);
    moments_.ensure(4 * sets);
    known.ensure(room.known);
    sums.ensure(std::max(room.sums, least_sums));
  }
  template <class Device, class X>
  void reserve_for(const Device& device, const X& x, const detail::ChannelSpec& spec, int ranks = 0) {
    detail::RowArguments arguments("reserve");
    if (spec.per_sample) arguments.keep_samples(spec.sample_axis);
    arguments.reference("x", x, spec.axis);
    const detail::ChannelShape shape = detail::channel_shape("reserve", arguments, spec);
    const Index sets = shape.grid.samples * shape.groups;
    const detail::ChannelRoom room = channel_room(device, shape.grid, shape.groups);
    statistics.reserve(3 * sets);
    moments_.reserve(4 * sets);
    known.reserve(room.known);
    sums.reserve(std::max(room.sums, ranks > 0 ? detail::room_of_ranks(shape.grid.channels, ranks) : 0));
  }

  detail::ChannelCall call;
  typename Storage::template Buffer<A> statistics;  // (mean | rest | rstd, samples, groups)
  typename Storage::template Buffer<A> known;       // scratch
  typename Storage::template Buffer<double> sums;   // scratch

 private:
  typename Storage::template Buffer<double> moments_;
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
