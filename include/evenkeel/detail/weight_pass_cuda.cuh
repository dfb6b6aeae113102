/// Passes over weights on a CUDA device, with the math of the CPU in double. Nothing here allocates, synchronizes or asks
/// the device, but what is for setting up.
#pragma once

#include "evenkeel/cuda_stream.cuh"
#include "evenkeel/detail/channel_pass_cuda.cuh"
#include "evenkeel/detail/for_each_value.cuh"
#include "evenkeel/detail/weight_kernels.cuh"
#include "evenkeel/storage.hpp"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <type_traits>

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// Values of scratch for the sums of a pass over these cells: (2, cells) starts, then up to two sums of each part.
template <StreamDevice Device>
Index unit_room(const Device& device, const ChannelGrid& grid) {
  return 2 * grid.cells() + 2 * most_channel_values(grid.samples, grid.channels, grid.count(), cuda_facts(device));
}

/// to = from / norm(from); where from is zero, to stays what it was.
template <StreamDevice Device>
void normalize(const Device& device, const double* from, double* to, Index count) {
  LaunchShape shape;
  shape.block = normalize_threads;
  launch(&normalize_kernel<normalize_threads>, shape, device.stream(), from, to, static_cast<std::int64_t>(count));
}

template <class Inputs>
inline constexpr bool holds_double = false;
template <class... T>
inline constexpr bool holds_double<List<DeviceCells<T>...>> = (std::is_same_v<std::remove_const_t<T>, double> || ...);

/// The values of each unit, from its sums, to pass.kept, and then between(unit). `scratch` holds unit_room() values.
template <StreamDevice Device, class Math, class... X, class P, class Y, class Known, class Kept,
          class Between = NothingBetween>
void unit_sums(const Device& device, const ChannelPass<Math, std::tuple<X...>, P, Y, Known, Kept>& pass,
               double* scratch, double, const Between& between = {}) {
  using Start = typename Math::template Start<double>;
  constexpr bool given = std::is_same_v<typename Math::template Known<double>, Start>;
  const std::int64_t units = pass.grid.cells(), channels = pass.grid.channels;
  if (units == 0) return;
  double* const parts = scratch + 2 * units;
  const double* starts = scratch;
  if constexpr (given && !is_none_v<Known>) starts = pass.known;
  const auto on_device = device_channels(
      ChannelPass{PartSums<Math>{pass.math}, pass.grid, pass.inputs, pass.parameters, pass.outputs}, 1, starts, parts);
  using Inputs = std::remove_cvref_t<decltype(on_device.inputs)>;
  if constexpr (!given && !std::is_empty_v<Start>)
    launch(&unit_start_kernel<Math, Inputs, static_cast<int>(sizeof...(X))>, between_shape(units), device.stream(),
           pass.math, on_device.inputs, channels, units, scratch);
  const auto finish = [&](double* better) {
    const std::int64_t count = run_channels<false>(device, on_device);
    const auto lanes = static_cast<int>(std::min<Index>(32, power_of_two_from(count)));
    launch(&unit_finish_kernel<Math, Between>, between_shape(lanes * units), device.stream(), pass.math,
           static_cast<const double*>(parts), count, lanes, units, starts, better, pass.kept, between);
  };
  // Squares of floats have room in double: only doubles may need another start.
  if constexpr (CanRestart<Math> && holds_double<Inputs>) finish(scratch);
  finish(nullptr);
}

/// Memory of the device for one call that is for setting up. Freeing it waits for the device.
template <StreamDevice Device>
CudaBuffer<double> scratch_of(const Device&, Index size) {
  CudaBuffer<double> buffer;
  buffer.reserve(size);
  return buffer;
}
/// Values of the device, for the host to read. Waits for the device.
template <StreamDevice Device>
const double* host_values(const Device& device, const double* values, Index count, HostBuffer<double>& copy) {
  copy.reserve(count);
  check_cuda(cudaMemcpyAsync(copy.data(), values, static_cast<std::size_t>(count) * sizeof(double),
                             cudaMemcpyDeviceToHost, device.stream()),
             "host_values", "cudaMemcpyAsync");
  check_cuda(cudaStreamSynchronize(device.stream()), "host_values", "cudaStreamSynchronize");
  return copy.data();
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
