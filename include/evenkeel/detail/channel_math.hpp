/// What a pass over channels is made of. No CUDA header.
///
/// A pass keeps a channel axis, and where the norm asks for it a sample axis, and reduces all others. One sample and
/// one channel make a cell. channel_sums turns the elements of each cell into a few values, channel_write goes over the
/// elements again with values that are known for each cell; what happens between is the norm's own: cells are merged
/// into groups, or exchanged with other processes.
///
/// The math is that of row_math.hpp with a cell in the place of a row, and parameters that belong to channels. On the CPU
/// finish is called with sums in double, whatever the data are: a channel may have millions of elements. On a device it
/// is called for parts of cells, with sums in the accumulator type.
#pragma once

#include "evenkeel/detail/row_math.hpp"

#include <array>

namespace evenkeel::detail {

/// Samples and channels that are kept, and the extents that are reduced.
struct ChannelGrid {
  Index samples = 1, channels = 0;
  std::array<Index, 4> extent{1, 1, 1, 1};

  Index cells() const { return samples * channels; }
  /// Values of one cell.
  Index count() const { return extent[0] * extent[1] * extent[2] * extent[3]; }
};

/// Values of scratch that a norm over channels needs: `known` of the accumulator type, `sums` of double.
struct ChannelRoom {
  Index known, sums;
};

/// Where the cells of one tensor lie.
template <class T>
struct Cells {
  T* data;
  Index sample_stride, channel_stride;
  std::array<Index, 4> stride;
};

/// Which level of an AxisView counts the samples.
enum class SampleLevel { none, outer, inner };

/// The grid of rows seen as cells, `ghost` samples counted as one.
inline ChannelGrid channel_grid(const RowGrid& rows, SampleLevel level, Index ghost = 1) {
  ChannelGrid grid{1, rows.length, {rows.extent[0], rows.extent[1], rows.extent[2], 1}};
  if (level == SampleLevel::none) return grid;
  Index& samples = grid.extent[level == SampleLevel::outer ? 0 : 2];
  grid.samples = samples / ghost;
  samples = ghost;
  return grid;
}
template <class T>
Cells<T> cells_of(const Rows<T>& rows, SampleLevel level, Index ghost = 1) {
  const Index sample_stride = rows.stride[level == SampleLevel::outer ? 0 : 2];
  return {rows.data,
          level == SampleLevel::none ? 0 : ghost * sample_stride,
          rows.length_stride,
          {rows.stride[0], rows.stride[1], rows.stride[2], 0}};
}
inline None cells_of(None, SampleLevel, Index = 1) { return none; }

/// One pass. `known` holds the math's Known (channel_sums) or Row (channel_write) as (members, cells), or None; `kept`
/// receives the members of what finish returns, (members, cells). A parameter has one value for each channel.
template <class Math, class Inputs, class Parameters, class Outputs, class Known = None, class Kept = None>
struct ChannelPass {
  Math math;
  ChannelGrid grid;
  Inputs inputs;
  Parameters parameters;
  Outputs outputs;
  Known known{};
  Kept kept{};
};
template <class M, class I, class P, class O, class Known = None, class Kept = None>
ChannelPass(M, ChannelGrid, I, P, O, Known = {}, Kept = {}) -> ChannelPass<M, I, P, O, Known, Kept>;

/// Makes a cell of every `size` neighbouring channels, which become a fourth level of its elements. Not where channels lie
/// closest to each other and are worked on in packs.
template <class M, class... X, class P, class O, class Known, class Kept>
void join_channels(ChannelPass<M, std::tuple<X...>, P, O, Known, Kept>& pass, Index size) {
  const auto& first = std::get<0>(pass.inputs);
  if (size == 1 || (first.channel_stride == 1 && pass.grid.count() > 1)) return;
  std::array<Index, 4>& extent = pass.grid.extent;
  const auto for_each_input = [&](const auto& f) { std::apply([&](auto&... t) { (f(t), ...); }, pass.inputs); };
  // Where the elements of one level end where the next channel begins, that level grows: longer lines.
  std::size_t level = 3;
  for (std::size_t a = 0; a < 3; ++a) {
    bool touch = extent[a] > 1;
    for_each_input([&]<class T>(const T& t) {
      if constexpr (!is_none_v<T>) touch = touch && t.stride[a] * extent[a] == t.channel_stride;
    });
    if (touch) level = a;
  }
  for_each_input([&]<class T>(T& t) {
    if constexpr (!is_none_v<T>) {
      if (level == 3) t.stride[3] = t.channel_stride;
      t.channel_stride *= size;
    }
  });
  extent[level] *= size;
  pass.grid.channels /= size;
}

/// A pass over rows seen as one over channels: one sample, and a channel for each place in a row.
template <class M, class... X, class P, class... Y, class Known, class Kept>
auto over_channels(const RowPass<M, std::tuple<X...>, P, std::tuple<Y...>, Known, Kept>& pass) {
  const auto all = [&](const auto& tensors) {
    return std::apply([&](const auto&... t) { return std::tuple(cells_of(t, SampleLevel::none)...); }, tensors);
  };
  return ChannelPass{pass.math,         channel_grid(pass.grid, SampleLevel::none),
                     all(pass.inputs),  pass.parameters,
                     all(pass.outputs), pass.known,
                     pass.kept};
}

}  // namespace evenkeel::detail
