/// Passes over channels on a CUDA device: from a pass to its plan, and from the plan to its kernels. Nothing here
/// allocates, synchronizes or asks the device.
///
/// Values that leave the range of the accumulator type are not done again in double, as they are on the CPU.
#pragma once

#include "evenkeel/cuda_stream.cuh"
#include "evenkeel/detail/channel_kernels.cuh"
#include "evenkeel/detail/row_pass_cuda.cuh"

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>

namespace evenkeel::detail::inline EVENKEEL_ISA {

template <class T>
constexpr int scalar_bytes<DeviceCells<T>> = sizeof(T);

/// The layout of a pass, and the elements that one access may take of every tensor: `full`, `narrower` or 1. They divide
/// the positions of a run, or the channels, each stride that is used, and each address.
template <class Pass>
class ChannelAccess;

template <class Math, class... X, class... P, class... Y>
class ChannelAccess<DeviceChannelPass<Math, List<X...>, List<P...>, List<Y...>>> {
  using Pass = DeviceChannelPass<Math, List<X...>, List<P...>, List<Y...>>;
  static constexpr int last = channel_levels - 1;

 public:
  static constexpr int full = 16 / std::max({1, scalar_bytes<X>..., scalar_bytes<Y>...});
  /// The next narrower access. Maths in double on narrower data are those of weights, which are few and mostly aligned:
  /// pairs would add half as many kernels again.
  static constexpr int narrower = full > 2 && !std::is_same_v<typename Math::Scalar, double> ? 2 : 1;

  explicit ChannelAccess(const Pass& pass) : pass_(pass) {
    const DeviceChannelGrid& grid = pass.grid;
    const bool touch = all([](const auto& cells) { return cells.stride[last] == 1; });
    const bool runs = touch && grid.level[last].extent() > 1;
    const bool across = all([](const auto& cells) { return cells.channel_stride == 1 || cells.channel_stride == 0; });
    layout = grid.channels > 1 && across && !runs ? ChannelLayout::across : ChannelLayout::along;
    if (layout == ChannelLayout::along && !runs) return;
    vector = fits(full) ? full : narrower > 1 && fits(narrower) ? narrower : 1;
  }

  ChannelLayout layout;
  int vector = 1;

 private:
  template <class F>
  bool all(const F& f) const {
    bool ok = true;
    const auto check = [&]<class T>(const T& cells) {
      if constexpr (!is_none_v<T>) ok = ok && f(cells);
    };
    for_each(pass_.inputs, check);
    for_each(pass_.outputs, check);
    return ok;
  }
  bool fits(int elements) const {
    const DeviceChannelGrid& grid = pass_.grid;
    const bool along = layout == ChannelLayout::along;
    const auto divides = [&](std::uintptr_t bytes, std::size_t scalar) {
      return bytes % std::min<std::size_t>(16, scalar * static_cast<std::size_t>(elements)) == 0;
    };
    bool ok = (along ? grid.level[last].extent() : grid.channels) % elements == 0;
    ok = ok && all([&](const auto& cells) {
           constexpr std::size_t scalar = sizeof(*cells.data);
           if (!along && cells.channel_stride == 0) return true;  // one value for all channels
           const auto stride_fits = [&](Index extent, Index stride) {
             return extent <= 1 || divides(static_cast<std::uintptr_t>(stride) * scalar, scalar);
           };
           bool fit = divides(reinterpret_cast<std::uintptr_t>(cells.data), scalar) &&
                      stride_fits(grid.samples, cells.sample_stride) &&
                      (!along || stride_fits(grid.channels, cells.channel_stride));
           for (int level = 0; level < (along ? last : channel_levels); ++level)
             fit = fit && stride_fits(grid.level[level].extent(), cells.stride[level]);
           return fit;
         });
    if (!along)
      for_each(pass_.parameters, [&]<class Parameter>(const Parameter& p) {
        if constexpr (!is_none_v<Parameter>) ok = ok && divides(reinterpret_cast<std::uintptr_t>(p), sizeof(*p));
      });
    return ok;
  }

  const Pass& pass_;
};

/// The pass on the device. `group` neighbouring channels share the values in `known`.
template <class Math, class... X, class... P, class... Y, class Known, class Kept>
auto device_channels(const ChannelPass<Math, std::tuple<X...>, std::tuple<P...>, std::tuple<Y...>, Known, Kept>& pass,
                     Index group, const typename Math::Scalar* known, typename Math::Scalar* kept) {
  std::array<std::array<Index, 4>, sizeof...(X) + sizeof...(Y)> strides{};
  int tensors = 0;
  const auto remember = [&]<class T>(const T& cells) {
    if constexpr (!is_none_v<T>) strides[static_cast<std::size_t>(tensors++)] = cells.stride;
  };
  const auto all = [](const auto& tuple, const auto& f) { std::apply([&](const auto&... t) { (f(t), ...); }, tuple); };
  all(pass.inputs, remember);
  all(pass.outputs, remember);
  const ChannelLevels levels = channel_levels_of(pass.grid.extent, strides.data(), tensors);
  const auto cells = [&]<class T>(const T& t) {
    if constexpr (is_none_v<T>) {
      return none;
    } else {
      DeviceCells<device_scalar_t<std::remove_pointer_t<decltype(t.data)>>> to{
          device_pointer(t.data), t.sample_stride, t.channel_stride, {1, 1, 1}};
      for (std::size_t level = 0; level < channel_levels; ++level)
        if (levels.axis[level] >= 0) to.stride[level] = t.stride[static_cast<std::size_t>(levels.axis[level])];
      return to;
    }
  };
  const DeviceChannelGrid grid{pass.grid.samples,
                               pass.grid.channels,
                               pass.grid.count(),
                               {LevelWalk(levels.extent[0]), LevelWalk(levels.extent[1]), LevelWalk(levels.extent[2])},
                               group};
  const auto inputs = list_of(pass.inputs, cells);
  const auto parameters = list_of(pass.parameters, [](const auto& p) { return device_pointer(p); });
  const auto outputs = list_of(pass.outputs, cells);
  return DeviceChannelPass<Math, std::remove_const_t<decltype(inputs)>, std::remove_const_t<decltype(parameters)>,
                           std::remove_const_t<decltype(outputs)>>{pass.math, grid,  inputs, parameters,
                                                                   outputs,   known, kept};
}

/// A pass without parameters whose channels are groups of `size` channels.
template <class Math, class... X, class Known, class Kept>
auto grouped(const ChannelPass<Math, std::tuple<X...>, std::tuple<>, std::tuple<>, Known, Kept>& pass, Index size) {
  auto groups = pass;
  groups.grid.channels /= size;
  groups.grid.extent[3] = size;
  const auto join = [&]<class T>(T& cells) {
    if constexpr (!is_none_v<T>) {
      cells.stride[3] = cells.channel_stride;
      cells.channel_stride *= size;
    }
  };
  std::apply([&](auto&... t) { (join(t), ...); }, groups.inputs);
  return groups;
}

/// Launches the kernel that the plan names.
template <bool writes, class Pass, ChannelLayout Layout, int V>
void launch_channels(cudaStream_t stream, const Pass& pass, const ChannelPlan& plan) {
  if constexpr (V > 1)
    if (plan.vector < V)
      return launch_channels<writes, Pass, Layout, (V > 2 ? ChannelAccess<Pass>::narrower : 1)>(stream, pass, plan);
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(plan.blocks);
  shape.block = channel_threads;
  if constexpr (writes)
    launch(&channel_write_kernel<Pass, Layout, V>, shape, stream, pass, plan);
  else
    launch(&channel_sums_kernel<Pass, Layout, V>, shape, stream, pass, plan);
}

/// Runs one kernel over all cells. Returns the parts of each.
template <bool writes, class Device, class Pass>
Index run_channels(const Device& device, const Pass& pass) {
  const DeviceChannelGrid& grid = pass.grid;
  const ChannelAccess<Pass> access(pass);
  const ChannelPlan plan = plan_channels(
      {grid.samples, grid.channels, grid.positions, access.layout, access.vector, writes}, cuda_facts(device));
  if (plan.units == 0) return plan.parts;
  constexpr int full = ChannelAccess<Pass>::full;
  if (plan.layout == ChannelLayout::along)
    launch_channels<writes, Pass, ChannelLayout::along, full>(device.stream(), pass, plan);
  else
    launch_channels<writes, Pass, ChannelLayout::across, full>(device.stream(), pass, plan);
  return plan.parts;
}

inline LaunchShape between_shape(Index threads) {
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(quotient_up(threads, between_threads));
  shape.block = between_threads;
  return shape;
}

/// Where the parts of cells begin in `known`, after the values of the sets.
inline Index parts_offset(Index sets) { return rounded_up(5 * sets, 32); }

/// Values of scratch for a forward and a backward.
template <StreamDevice Device>
ChannelRoom channel_room(const Device& device, const ChannelGrid& grid, Index groups) {
  const Index size = grid.channels / groups;
  const auto values = [&](Index samples, Index channels, Index positions) {
    return most_channel_values(samples, channels, positions, cuda_facts(device));
  };
  return {parts_offset(grid.samples * groups) +
              4 * std::max({values(grid.samples, grid.channels, grid.count()),
                            values(grid.samples, groups, grid.count() * size),
                            values(1, grid.channels, grid.count() * grid.samples)}),  // frozen
          0};
}

/// The outputs, from the inputs and each cell's known values.
template <StreamDevice Device, class M, class I, class P, class O, class Known, class Kept>
void channel_write(const Device& device, const ChannelPass<M, I, P, O, Known, Kept>& pass, double) {
  run_channels<true>(device, device_channels(pass, 1, pass.known, nullptr));
}

/// Moments of the sets, (count | shift | delta | M2, sets), and their statistics, (mean | rest | rstd, sets).
template <StreamDevice Device, class SumPass, class Saved>
void set_moments(const Device& device, const SumPass& sum_pass, Saved& saved, Index groups, double eps, double* moments,
                 typename Saved::Scalar* statistics) {
  using A = typename Saved::Scalar;
  const ChannelGrid& grid = sum_pass.grid;
  const Index size = grid.channels / groups, sets = grid.samples * groups;
  A* const parts = saved.known.data() + parts_offset(sets);
  Index parts_of_set = 0;
  const auto sums = device_channels(sum_pass, 1, nullptr, parts);
  if (size > 1 &&
      (grid.count() == 1 || ChannelAccess<std::remove_const_t<decltype(sums)>>(sums).layout == ChannelLayout::along))
    parts_of_set = run_channels<false>(device, device_channels(grouped(sum_pass, size), 1, nullptr, parts));
  else
    parts_of_set = size * run_channels<false>(device, sums);
  if (sets == 0) return;
  launch(&moments_kernel<A>, between_shape(32 * sets), device.stream(), static_cast<const A*>(parts),
         static_cast<std::int64_t>(parts_of_set), static_cast<std::int64_t>(sets), eps, moments, statistics);
}

/// A forward: moments of the sets to saved.moments_data(), their statistics to saved.statistics, the outputs. A set in
/// which at most one value counts has variance 0: a mask's count is not known here.
template <StreamDevice Device, class SumPass, class WritePass, class Saved>
void channel_forward(const Device& device, const SumPass& sum_pass, const WritePass& write_pass, Saved& saved,
                     double eps) {
  const Index groups = saved.call.groups;
  auto* const statistics = saved.statistics.data();
  set_moments(device, sum_pass, saved, groups, eps, saved.moments_data(), statistics);
  if (sum_pass.grid.samples * groups == 0) return;
  run_channels<true>(device, device_channels(write_pass, sum_pass.grid.channels / groups, statistics, nullptr));
}

/// A pointer of the device, or a null pointer where there is none.
template <class A, class T>
auto pointer_or_null(T p) {
  if constexpr (is_none_v<T>)
    return static_cast<A*>(nullptr);
  else
    return device_pointer(p);
}

/// What lies between the sums of a backward and the writing; without sets the gradients of the parameters alone.
template <StreamDevice Device, class A, class Weight, class Dw, class Db>
void channel_gradients(const Device& device, const ChannelGrid& grid, const A* parts, Index parts_of_cell, Index sets,
                       const double* moments, const A* statistics, A* known, Weight weight, Dw dw, Db db,
                       GradientMode mode) {
  auto* const w = pointer_or_null<const A>(weight);
  auto* const dweight = pointer_or_null<A>(dw);
  auto* const dbias = pointer_or_null<A>(db);
  using Step = GradientStep<A, std::remove_cvref_t<decltype(*w)>, std::remove_cvref_t<decltype(*dweight)>,
                            std::remove_cvref_t<decltype(*dbias)>>;
  constexpr bool wanted = !is_none_v<Dw> || !is_none_v<Db>;
  const Index warps = sets + (wanted ? grid.channels : 0);
  if (warps == 0) return;
  const Step step{parts,
                  grid.samples,
                  grid.channels,
                  parts_of_cell,
                  sets,
                  sets == 0 ? 1 : grid.cells() / sets,
                  moments,
                  statistics,
                  known,
                  w,
                  dweight,
                  dbias,
                  mode == GradientMode::accumulate};
  launch(&channel_gradient_kernel<A, std::remove_cvref_t<decltype(*w)>, std::remove_cvref_t<decltype(*dweight)>,
                                  std::remove_cvref_t<decltype(*dbias)>>,
         between_shape(32 * warps), device.stream(), step);
}

/// A backward through the statistics of the data.
template <StreamDevice Device, class SumPass, class WritePass, class Saved, class Dw, class Db>
void channel_backward(const Device& device, const SumPass& sum_pass, const WritePass& write_pass, Saved& saved, Dw dw,
                      Db db, GradientMode mode, double) {
  using A = typename Saved::Scalar;
  const ChannelGrid& grid = sum_pass.grid;
  const Index groups = saved.call.groups, size = grid.channels / groups, sets = grid.samples * groups;
  const A* const statistics = saved.statistics.data();
  A* const known = saved.known.data();
  A* const parts = known + parts_offset(sets);
  const Index count = run_channels<false>(device, device_channels(sum_pass, size, statistics, parts));
  channel_gradients(device, grid, static_cast<const A*>(parts), count, sets,
                    static_cast<const double*>(saved.moments_data()), statistics, known,
                    std::get<0>(sum_pass.parameters), dw, db, mode);
  run_channels<true>(device, device_channels(write_pass, size, known, nullptr));
}

/// The gradients of the parameters where the statistics are constants.
template <StreamDevice Device, class SumPass, class Saved, class Dw, class Db>
void frozen_gradients(const Device& device, const SumPass& sum_pass, Saved& scratch, Dw dw, Db db, GradientMode mode) {
  using A = typename Saved::Scalar;
  const ChannelGrid& grid = sum_pass.grid;
  scratch.known.ensure(2 * most_channel_values(1, grid.channels, grid.count(), cuda_facts(device)));
  A* const parts = scratch.known.data();
  const Index count = run_channels<false>(device, device_channels(sum_pass, 1, sum_pass.known, parts));
  channel_gradients(device, grid, static_cast<const A*>(parts), count, 0, static_cast<const double*>(nullptr),
                    static_cast<const A*>(nullptr), static_cast<A*>(nullptr), none, dw, db, mode);
}

/// Running statistics (mean | var, channels) take in the moments of a call's samples. Returns the batches after it; the
/// host cannot know whether anything counted in a masked one.
template <StreamDevice Device, class A>
std::int64_t update_running(const Device& device, const RunningStep& step, const ChannelGrid& grid,
                            const double* moments, A* values) {
  const std::int64_t samples = grid.samples, channels = grid.channels;
  if (samples * grid.count() == 0 && !step.over_ranks) return step.batches;
  launch(&running_kernel<A>, between_shape(channels), device.stream(), step, moments, samples, channels, values);
  return step.batches + (step.together ? 1 : samples);
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
