/// How a pass over channels is spread over a CUDA device: a pure function of shapes and of facts about the device. No
/// CUDA header.
///
///     layout    neighbours in memory are       a thread's access                       examples
///     along     positions of one channel       `vector` positions of a channel         N,C,space
///     across    channels                       `vector` channels of a position         N,space,C and N,C
///
/// A unit is `part` positions of one tile, the channels that `lanes` threads take with one access each, of one sample.
/// `rows` threads for each lane share the positions; a block has as many units as fit into it. So a block is one part of
/// a large channel, or many small channels.
#pragma once

#include "evenkeel/detail/channel_math.hpp"
#include "evenkeel/detail/launch_plan.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

namespace evenkeel::detail {

enum class ChannelLayout { along, across };

inline constexpr int channel_threads = 256, channel_warps = channel_threads / 32, channel_levels = 3;
/// The most positions of a part.
inline constexpr int channel_part = 256 * channel_threads;

/// What a plan depends on beside the device.
struct ChannelProblem {
  Index samples = 1, channels = 1, positions = 0;
  ChannelLayout layout = ChannelLayout::along;
  int vector = 1;       // elements of one access
  bool writes = false;  // or else sums
};

struct ChannelPlan {
  ChannelLayout layout = ChannelLayout::along;
  int vector = 1;
  int lanes = 1;    // threads for neighbouring channels, a power of two up to 32
  int rows = 1;     // threads for different positions of the same channels, a power of two
  Index part = 0;   // positions of a part
  Index parts = 0;  // of a tile
  Index tiles = 0;  // of a sample
  Index units = 0;  // samples * tiles * parts
  Index blocks = 0;
  bool operator==(const ChannelPlan&) const = default;
  EVENKEEL_HD int units_per_block() const { return channel_threads / (lanes * rows); }
};

inline ChannelPlan plan_channels(const ChannelProblem& p, const CudaFacts& facts) {
  ChannelPlan plan;
  plan.layout = p.layout;
  plan.vector = p.vector;
  const bool along = p.layout == ChannelLayout::along;
  plan.lanes = along ? 1 : static_cast<int>(std::min<Index>(32, power_of_two_from(quotient_up(p.channels, p.vector))));
  plan.tiles = along ? p.channels : quotient_up(p.channels, static_cast<Index>(plan.lanes) * p.vector);
  const Index step = along ? p.vector : 1, accesses = quotient_up(p.positions, step);
  plan.rows = static_cast<int>(
      std::min<Index>(channel_threads / plan.lanes, power_of_two_from(std::max<Index>(1, quotient_up(accesses, 4)))));
  // Accesses of a thread: a few keep enough bytes in flight, and pay for the values of its channels, of which there are
  // more across. A thread adds up at most 256 elements to a sum: longer chains lose digits, and counts stay exact.
  const Index few = along ? 4 : 8, most = p.writes ? (along ? 4 : 32) : 256 / step;
  const Index wanted = quotient_up(Index(4) * facts.multiprocessors, std::max<Index>(1, p.samples * plan.tiles));
  const Index turn = plan.rows * step;  // positions of one access of all rows
  const Index share = quotient_up(quotient_up(p.positions, std::max<Index>(1, wanted)), turn);
  plan.part = turn * std::clamp(share, few, most);
  plan.parts = quotient_up(p.positions, plan.part);
  plan.units = p.samples * plan.tiles * plan.parts;
  plan.blocks = std::min<Index>(quotient_up(plan.units, plan.units_per_block()), 2147483647);  // kernels loop
  return plan;
}

/// The most values that a sum over cells of this shape may leave, one for each cell and part, whatever the layout and
/// the alignment.
inline Index most_channel_values(Index samples, Index channels, Index positions, const CudaFacts& facts) {
  Index most = 0;
  for (const ChannelLayout layout : {ChannelLayout::along, ChannelLayout::across})
    for (const int vector : {1, 2, 4, 8})
      most = std::max(
          most, samples * channels * plan_channels({samples, channels, positions, layout, vector, false}, facts).parts);
  return most;
}

/// "across: lanes 8, rows 32, vector 8, part 1024, parts 4, units 4, blocks 4".
inline std::string text(const ChannelPlan& plan) {
  std::string s = plan.layout == ChannelLayout::along ? "along" : "across";
  const auto add = [&](const char* name, Index value) {
    s += name;
    append(s, value);
  };
  add(": lanes ", plan.lanes);
  add(", rows ", plan.rows);
  add(", vector ", plan.vector);
  add(", part ", plan.part);
  add(", parts ", plan.parts);
  add(", tiles ", plan.tiles);
  add(", units ", plan.units);
  add(", blocks ", plan.blocks);
  return s;
}

/// Division of n below 2^31 by a constant. T. Granlund, P. L. Montgomery, "Division by Invariant Integers using
/// Multiplication", 1994, figure 4.1.
class Divider {
 public:
  Divider() = default;
  explicit Divider(std::uint32_t divisor) {
    while ((std::uint64_t(1) << shift_) < divisor) ++shift_;
    factor_ = static_cast<std::uint32_t>((((std::uint64_t(1) << shift_) - divisor) << 32) / divisor + 1);
  }
  EVENKEEL_HD std::uint32_t quotient(std::uint32_t n) const {
    return (static_cast<std::uint32_t>((static_cast<std::uint64_t>(factor_) * n) >> 32) + n) >> shift_;
  }

 private:
  std::uint32_t factor_ = 1, shift_ = 0;  // of the divisor 1
};

/// One level of positions, along which a kernel walks at most channel_part steps from a first place, in 32 bits. A place
/// is kept as its distance from the level's begin or, where the level is long, to its end.
class LevelWalk {
 public:
  LevelWalk() = default;
  explicit LevelWalk(Index extent)
      : extent_(extent), divider_(extent < channel_part ? static_cast<std::uint32_t>(std::max<Index>(extent, 1)) : 1) {}
  EVENKEEL_HD std::int64_t extent() const { return extent_; }
  EVENKEEL_HD int place(std::int64_t index) const {
    if (extent_ < channel_part) return static_cast<int>(index);
    const std::int64_t left = extent_ - index;
    return static_cast<int>(left < channel_part + 1 ? left : channel_part + 1);
  }
  /// How often `steps` steps from a place pass the level's end.
  EVENKEEL_HD int carries(int place, int steps) const {
    if (extent_ < channel_part) return static_cast<int>(divider_.quotient(static_cast<std::uint32_t>(place + steps)));
    return steps >= place ? 1 : 0;
  }

 private:
  std::int64_t extent_ = 1;
  Divider divider_;
};

/// The positions of a cell as few levels, the last one fastest. Level l has extent[l] positions, and every tensor's
/// stride there is that of its axis[l].
struct ChannelLevels {
  std::array<Index, channel_levels> extent{1, 1, 1};
  std::array<int, channel_levels> axis{-1, -1, -1};  // -1: no axis, the extent is 1
};

/// `strides` has those of `tensors` tensors; the first one's decide which level is fastest. At most three extents are
/// above 1.
inline ChannelLevels channel_levels_of(const std::array<Index, 4>& extent, const std::array<Index, 4>* strides,
                                       int tensors) {
  std::array<int, 4> order{};
  int count = 0;
  for (int a = 0; a < 4; ++a)
    if (extent[static_cast<std::size_t>(a)] != 1) order[static_cast<std::size_t>(count++)] = a;
  const auto stride = [&](int tensor, int axis) { return strides[tensor][static_cast<std::size_t>(axis)]; };
  std::stable_sort(order.begin(), order.begin() + count, [&](int a, int b) { return stride(0, a) > stride(0, b); });
  ChannelLevels levels;
  int level = channel_levels;
  for (int k = count - 1; k >= 0; --k) {
    const int axis = order[static_cast<std::size_t>(k)];
    const Index length = extent[static_cast<std::size_t>(axis)];
    bool continues = level < channel_levels;
    if (continues) {
      const auto l = static_cast<std::size_t>(level);
      for (int t = 0; t < tensors; ++t)
        continues = continues && stride(t, axis) == stride(t, levels.axis[l]) * levels.extent[l];
      if (continues) {
        levels.extent[l] *= length;
        continue;
      }
    }
    const auto l = static_cast<std::size_t>(--level);
    levels.axis[l] = axis;
    levels.extent[l] = length;
  }
  return levels;
}

}  // namespace evenkeel::detail
