/// A pass over channels on the CPU: see channel_math.hpp.
#pragma once

#include "evenkeel/detail/channel_math.hpp"
#include "evenkeel/detail/kernels_cpu.hpp"
#include "evenkeel/detail/parallel_cpu.hpp"

#include <algorithm>

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// Values of scratch for a forward and a backward: known (up to 8, cells), sums (up to 4, cells) and (2, channels).
template <class Device>
  requires(!StreamDevice<Device>)
ChannelRoom channel_room(const Device&, const ChannelGrid& grid, Index) {
  return {8 * grid.cells(), 4 * grid.cells() + 2 * grid.channels};
}

/// The sums of one pass and the outputs of another, unit by unit: sums(unit), between(sample, first, last), write(unit)
/// for channels first..last-1, a multiple of `group`. A unit's data are still in the cache when they are written. The sums'
/// cells may be of several channels, of which `group` is a multiple.
template <class Device, class SumPass, class Between, class WritePass>
void channel_passes(const Device& device, const SumPass& sum_pass, const Between& between, const WritePass& write_pass,
                    Index group, double bytes) {
  require_cpu_device<Device>();
  with_kernels([&]<class Kernels>(Kernels) {
    const Index parts = parts_for(device, sum_pass.grid.samples);
    const typename Kernels::template Cells<SumPass> sums(sum_pass, parts);
    typename Kernels::template Cells<WritePass> write(write_pass, parts);
    const Index channels = write_pass.grid.channels, joined = channels ? channels / sum_pass.grid.channels : 1;
    const Index unit = std::max(sums.unit(group / joined) * joined, write.unit(group));
    const Index units = (channels + unit - 1) / unit;
    write.fetch_ahead(unit);
    const auto body = [&](Index block) {
      const Index sample = block / units, first = block % units * unit, last = std::min(channels, first + unit);
      sums.sums(sample, first / joined, last / joined);
      between(sample, first, last);
      write.write(sample, first, last);
    };
    for_each_block(device, sum_pass.grid.samples * units, bytes, body, [&] { write.finish(); });
  });
}

/// f(channels, sample, first, last) for each unit of work: its kernels, and channels first..last-1 of a sample.
template <class Device, class Pass, class F>
void for_each_unit(const Device& device, const Pass& pass, double bytes, const F& f) {
  with_kernels([&]<class Kernels>(Kernels) {
    const typename Kernels::template Cells<Pass> channels(pass, parts_for(device, pass.grid.samples));
    const Index unit = channels.unit(1), units = (pass.grid.channels + unit - 1) / unit;
    const auto body = [&](Index block) {
      const Index first = block % units * unit;
      f(channels, block / units, first, std::min(pass.grid.channels, first + unit));
    };
    for_each_block(device, pass.grid.samples * units, bytes, body, [&] { channels.finish(); });
  });
}

/// The values of each cell, from its sums, to pass.kept.
template <class Device, class M, class I, class P, class O, class Known, class Kept>
void channel_sums(const Device& device, const ChannelPass<M, I, P, O, Known, Kept>& pass, double bytes) {
  require_cpu_device<Device>();
  for_each_unit(device, pass, bytes, [](const auto& channels, Index sample, Index first, Index last) {
    channels.sums(sample, first, last);
  });
}

/// The outputs, from the inputs and each cell's known values.
template <class Device, class M, class I, class P, class O, class Known, class Kept>
void channel_write(const Device& device, const ChannelPass<M, I, P, O, Known, Kept>& pass, double bytes) {
  require_cpu_device<Device>();
  for_each_unit(device, pass, bytes, [](const auto& channels, Index sample, Index first, Index last) {
    channels.write(sample, first, last);
  });
}

template <class Device, class M, class I, class P, class O, class Known, class Kept>
void channel_sums(const Device& device, const RowPass<M, I, P, O, Known, Kept>& pass, double bytes) {
  channel_sums(device, over_channels(pass), bytes);
}
template <class Device, class M, class I, class P, class O, class Known, class Kept>
void channel_write(const Device& device, const RowPass<M, I, P, O, Known, Kept>& pass, double bytes) {
  channel_write(device, over_channels(pass), bytes);
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
