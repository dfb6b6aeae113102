// How passes over channels are spread over a device: pure functions, no device.

#include "evenkeel/detail/channel_plan.hpp"

#include "support/catch.hpp"
#include "support/data.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

using namespace evenkeel;
using namespace evenkeel::detail;

namespace {

const std::vector<Index> sample_counts{1, 2, 33, 4096};
const std::vector<Index> channel_counts{1, 3, 7, 8, 31, 33, 64, 100, 2048};
const std::vector<Index> position_counts{1, 2, 5, 49, 1000, 3136, 65536, 65537, 802816, Index(1) << 33};
const std::vector<CudaFacts> devices{{132, 232448, 90}, {40, 65536, 75}, {1, 65536, 75}};

template <class F>
void for_each_problem(const F& f) {
  for (const Index samples : sample_counts)
    for (const Index channels : channel_counts)
      for (const Index positions : position_counts)
        for (const ChannelLayout layout : {ChannelLayout::along, ChannelLayout::across})
          for (const int vector : {1, 2, 4, 8})
            for (const bool writes : {false, true})
              for (const CudaFacts& facts : devices) {
                // An access has neighbours only where they fill it.
                if ((layout == ChannelLayout::along ? positions : channels) % vector != 0) continue;
                f(ChannelProblem{samples, channels, positions, layout, vector, writes}, facts);
              }
}

bool is_power_of_two(Index n) { return n > 0 && (n & (n - 1)) == 0; }

}  // namespace

TEST_CASE("channel plans cover all channels and positions once", "[cuda][plan]") {
  int wrong = 0, problems = 0;
  for_each_problem([&](const ChannelProblem& p, const CudaFacts& facts) {
    const ChannelPlan plan = plan_channels(p, facts);
    const bool along = p.layout == ChannelLayout::along;
    const Index wide = along ? 1 : Index(plan.lanes) * p.vector, step = along ? Index(plan.rows) * p.vector : plan.rows;
    bool ok = plan.layout == p.layout && plan.vector == p.vector;
    ok = ok && is_power_of_two(plan.lanes) && plan.lanes <= 32 && is_power_of_two(plan.rows) &&
         plan.lanes * plan.rows <= channel_threads && (!along || plan.lanes == 1);
    ok = ok && plan.tiles * wide >= p.channels && (plan.tiles - 1) * wide < p.channels;
    ok = ok && plan.parts * plan.part >= p.positions && (plan.parts - 1) * plan.part < p.positions;
    ok = ok && plan.part % step == 0 && plan.part <= channel_part;
    ok = ok && plan.units == p.samples * plan.tiles * plan.parts;
    ok = ok && plan.blocks >= 1 && plan.blocks <= 2147483647 &&
         (plan.blocks == 2147483647 || plan.blocks * plan.units_per_block() >= plan.units) &&
         (plan.blocks - 1) * plan.units_per_block() < plan.units;
    // Only whole blocks share a channel.
    ok = ok && (plan.parts == 1 || plan.lanes * plan.rows == channel_threads);
    // A sum is a chain of at most 256 additions.
    ok = ok && (p.writes || plan.part / plan.rows <= 256);
    ++problems;
    wrong += !ok;
    if (!ok && wrong < 5)
      FAIL_CHECK(text(plan) << " for " << p.samples << " x " << p.channels << " x " << p.positions << ", vector "
                            << p.vector << ", writes " << p.writes);
  });
  CHECK(wrong == 0);
  CHECK(problems > 5000);
}

TEST_CASE("the most values of a sum over channels hold for every plan", "[cuda][plan]") {
  int wrong = 0;
  for_each_problem([&](const ChannelProblem& p, const CudaFacts& facts) {
    if (p.writes) return;
    const Index most = most_channel_values(p.samples, p.channels, p.positions, facts);
    wrong += p.samples * p.channels * plan_channels(p, facts).parts > most;
    // Partial sums, of at most 4 values, stay small beside the data: a value for 32 elements or for a cell.
    wrong += most > p.samples * p.channels * (1 + p.positions / 32);
  });
  CHECK(wrong == 0);
}

TEST_CASE("channel plans fill the device where there is enough to do", "[cuda][plan]") {
  const CudaFacts facts{132, 232448, 90};
  const auto blocks = [&](ChannelProblem p) { return plan_channels(p, facts).blocks; };
  for (const bool writes : {false, true}) {
    CHECK(blocks({1, 64, 256 * 3136, ChannelLayout::along, 8, writes}) >= 3 * 132);
    CHECK(blocks({1, 64, 256 * 3136, ChannelLayout::across, 8, writes}) >= 3 * 132);
    CHECK(blocks({1, 1, 1 << 24, ChannelLayout::along, 4, writes}) >= 3 * 132);
    CHECK(blocks({32, 256, 3136, ChannelLayout::across, 8, writes}) >= 2 * 132);
    CHECK(blocks({1, 512, 8192, ChannelLayout::across, 8, writes}) >= 132);
  }
  // Small cells share a block.
  CHECK(plan_channels({32, 2048, 49, ChannelLayout::along, 1, false}, facts).units_per_block() == 16);
  CHECK(plan_channels({65536, 64, 1, ChannelLayout::across, 8, false}, facts).units_per_block() == 32);
  CHECK(plan_channels({65536, 1, 2, ChannelLayout::along, 1, false}, facts).units_per_block() == 256);
}

TEST_CASE("channel plans do nothing for nothing", "[cuda][plan]") {
  for (const ChannelLayout layout : {ChannelLayout::along, ChannelLayout::across}) {
    CHECK(plan_channels({0, 3, 5, layout, 1, false}, {}).units == 0);
    CHECK(plan_channels({2, 3, 0, layout, 1, false}, {}).units == 0);
    CHECK(plan_channels({2, 3, 0, layout, 1, true}, {}).parts == 0);
  }
}

TEST_CASE("a Divider divides", "[cuda][plan]") {
  int wrong = 0;
  const auto try_divisor = [&](std::uint32_t d) {
    const Divider divider(d);
    const auto try_number = [&](std::uint64_t n) {
      if (n < (std::uint64_t(1) << 31)) wrong += divider.quotient(std::uint32_t(n)) != std::uint32_t(n) / d;
    };
    for (std::uint64_t n = 0; n < 70; ++n) try_number(n);
    for (std::uint64_t k : {std::uint64_t(1), std::uint64_t(2), std::uint64_t(1000), (std::uint64_t(1) << 31) / d})
      for (std::uint64_t near : {0, 1, 2}) try_number(k * d + 1 - near);
    try_number((std::uint64_t(1) << 31) - 1);
  };
  for (std::uint32_t d = 1; d < 3000; ++d) try_divisor(d);
  for (int bit = 12; bit < 31; ++bit)
    for (std::uint32_t near : {0u, 1u, 2u}) try_divisor((1u << bit) + 1 - near);
  CHECK(wrong == 0);
}

TEST_CASE("a LevelWalk carries as 64-bit division does", "[cuda][plan]") {
  int wrong = 0;
  support::Random random(3);
  for (const Index extent : {Index(1), Index(2), Index(7), Index(49), Index(channel_part) - 1, Index(channel_part),
                             Index(channel_part) + 1, Index(1) << 20, (Index(1) << 33) + 5}) {
    const LevelWalk level(extent);
    CHECK(level.extent() == extent);
    std::vector<Index> indices{0,
                               extent / 2,
                               extent - 1,
                               std::max<Index>(0, extent - channel_part),
                               std::max<Index>(0, extent - channel_part - 1),
                               std::max<Index>(0, extent - 3)};
    for (int k = 0; k < 20; ++k) indices.push_back(Index(double(extent) * random.uniform()));
    for (const Index index : indices) {
      if (index >= extent) continue;
      std::vector<int> steps{0, 1, 2, 3, channel_part - 1, channel_part};
      for (int k = 0; k < 20; ++k) steps.push_back(int(channel_part * random.uniform()));
      for (const int step : steps) wrong += level.carries(level.place(index), step) != (index + step) / extent;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("positions become few levels", "[cuda][plan]") {
  using Strides = std::array<Index, 4>;
  const auto levels = [](const Strides& extent, const std::vector<Strides>& strides) {
    return channel_levels_of(extent, strides.data(), int(strides.size()));
  };
  // N,C,space: samples and space stay apart.
  const ChannelLevels first = levels({8, 1, 49, 1}, {{64 * 49, 0, 1, 0}, {64 * 49, 0, 1, 0}});
  CHECK(first.extent == std::array<Index, 3>{1, 8, 49});
  CHECK(first.axis == std::array<int, 3>{-1, 0, 2});
  // N,space,C: all positions are one level, of a mask too.
  const ChannelLevels last = levels({8, 49, 1, 1}, {{49 * 64, 64, 0, 0}, {49, 1, 0, 0}});
  CHECK(last.extent == std::array<Index, 3>{1, 1, 8 * 49});
  CHECK(last.axis[2] == 1);
  // Unless one tensor has gaps.
  const ChannelLevels gaps = levels({8, 49, 1, 1}, {{49 * 64, 64, 0, 0}, {50 * 64, 64, 0, 0}});
  CHECK(gaps.extent == std::array<Index, 3>{1, 8, 49});
  // A group's channels follow its space.
  const ChannelLevels group = levels({1, 1, 49, 16}, {{0, 0, 1, 49}});
  CHECK(group.extent == std::array<Index, 3>{1, 1, 16 * 49});
  CHECK(group.axis[2] == 2);
  // The fastest axis is the last level, whatever its number.
  const ChannelLevels turned = levels({3, 5, 7, 1}, {{1, 100, 10000, 0}});
  CHECK(turned.extent == std::array<Index, 3>{7, 5, 3});
  CHECK(turned.axis == std::array<int, 3>{2, 1, 0});
  // One position.
  CHECK(levels({1, 1, 1, 1}, {{5, 6, 7, 8}}).extent == std::array<Index, 3>{1, 1, 1});
}
