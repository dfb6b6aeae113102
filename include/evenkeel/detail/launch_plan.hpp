/// How a pass over rows is spread over a CUDA device: a pure function of shapes and of facts about the device. No CUDA
/// header.
///
///     scope     a row belongs to                                             row lengths, bfloat16, sums alone
///     lanes     1 to 32 neighbouring lanes of a warp, in blocks of 128        up to 2,048
///     block     one block of up to 256, 512 or 1024 threads                   up to 32,768
///     cluster   2 to 8 blocks that read each other's shared memory (sm_90)    up to 65,536
///     stream    one block that reads the row again for each step              any length, any stride
///     across    a lane of each of the 8 warps of a block, its neighbours      any length, where elements lie apart and
///               those of neighbouring lanes                                   rows are neighbours
///
/// In the first three a thread keeps its part of the row in registers, `packs` accesses of `vector` elements, and the
/// row is read once. What a thread can keep without spilling bounds the lengths.
#pragma once

#include "evenkeel/device.hpp"
#include "evenkeel/error.hpp"

#include <algorithm>
#include <string>

namespace evenkeel {

/// What plans depend on. The default is an H200.
struct CudaFacts {
  int multiprocessors = 132;
  int shared_bytes = 232448;  ///< of one block, at most
  int architecture = 90;      ///< 10 * major + minor
  bool operator==(const CudaFacts&) const = default;
};

namespace detail {

enum class RowScope { lanes, block, cluster, stream, across };

/// What a plan depends on beside the device.
struct RowProblem {
  Index rows = 0, length = 0;
  int vector = 1;         // elements that one access may have: `full`, 2 or 1
  int full = 4;           // the same for aligned data
  int held = 4;           // bytes that a thread keeps for each element: inputs, and its sums over rows
  int sums = 0;           // sums over the rows, one per feature
  int sum_bytes = 4;      // of one of them
  bool strided = false;   // elements of a row are not neighbours
  bool touching = false;  // but those of enough rows are
};

struct RowPlan {
  RowScope scope = RowScope::stream;
  int vector = 1;
  int packs = 1;      // accesses of one thread
  int bound = 256;    // threads that the kernel is compiled for
  int threads = 256;  // of a block
  int lanes = 256;    // threads of a block that share a row
  int cluster = 1;    // blocks that share a row
  Index blocks = 0;   // of the grid
  Index shared = 0;   // bytes of dynamic shared memory
  Index parts = 0;    // partial rows of sums over the rows
  bool operator==(const RowPlan&) const = default;
  int rows_per_block() const { return threads / lanes; }
};

inline constexpr int lane_bound = 128, stream_bound = 256, feature_bound = 128, across_bound = 256;

/// Bytes that each thread can keep beside what it computes with, when `bound` threads share 65,536 registers.
constexpr int held_budget(int bound) { return bound <= 256 ? 384 : bound == 512 ? 192 : 96; }

/// The most packs that a kernel for `bound` threads keeps: 1, 2, 4, 8 or, where not even one fits, 0. Narrow accesses
/// are a fallback that has one size.
constexpr int most_packs(int bound, int vector, int full, int held) {
  const int wanted = bound == lane_bound ? 8 : 4;
  int packs = 0;
  for (int p = 1; p <= wanted; p *= 2)
    if (p * vector * held <= held_budget(bound)) packs = p;
  if (vector < full) return packs >= 4 && bound != 512 ? 4 : 0;
  return packs;
}
/// Whether such a kernel is of use: larger blocks only where they take longer rows.
constexpr bool takes_bound(int bound, int vector, int full, int held) {
  const int packs = most_packs(bound, vector, full, held);
  return packs > 0 && (bound <= 256 || (packs * bound > most_packs(bound / 2, vector, full, held) * (bound / 2) &&
                                        packs * bound > most_packs(256, vector, full, held) * 256));
}

constexpr Index rounded_up(Index n, Index step) { return (n + step - 1) / step * step; }
constexpr Index quotient_up(Index n, Index step) { return (n + step - 1) / step; }
constexpr Index power_of_two_from(Index n) {
  Index p = 1;
  while (p < n) p *= 2;
  return p;
}

/// Values of one row of partial sums over rows.
constexpr Index sums_pitch(Index length) { return rounded_up(length, 32); }

/// Bytes that a thread keeps, held ones and what a double accumulator, or the blocks of a cluster to find each other, add.
constexpr int kept_bytes(RowScope scope, int packs, int vector, int held, int sum_bytes) {
  return packs * vector * held + (sum_bytes > 4 ? 64 : 0) + (scope == RowScope::cluster ? 64 : 0);
}
/// Blocks that a multiprocessor has room for at once, where a thread keeps so many bytes: kernels are compiled to make
/// do with 65,536 / (bound * resident_blocks) registers a thread.
constexpr int resident_blocks(int bound, int kept) {
  const int registers = kept <= 64                                 ? 64
                        : kept <= 128                              ? 96
                        : kept <= (bound > lane_bound ? 384 : 192) ? 128
                        : kept <= 384                              ? 168
                                                                   : 255;
  return std::max(1, 65536 / (bound * registers));
}

/// Blocks that stay on the device while they walk over rows, so that sums over rows need few partial results.
inline Index persistent_blocks(const CudaFacts& facts, int bound, int kept) {
  const int resident = std::min(resident_blocks(bound, kept), std::max(1, 512 / bound));
  return static_cast<Index>(facts.multiprocessors) * resident;
}

/// The most partial rows that a pass over rows of this length may leave, whatever its types and their alignment.
inline Index most_parts(Index rows, Index length, const CudaFacts& facts) {
  const bool may_be_lanes = length <= 32 * 8 * 8;
  return std::min(rows, std::max<Index>(64, persistent_blocks(facts, may_be_lanes ? lane_bound : 256, 0)));
}

/// Where neighbours in memory belong to neighbouring rows.
inline RowPlan plan_across(const RowProblem& p, const CudaFacts& facts) {
  RowPlan plan;
  plan.scope = RowScope::across;
  plan.lanes = 32;
  const Index tiles = quotient_up(p.rows, plan.lanes);
  plan.blocks = std::min<Index>(tiles, 2147483647);  // the kernel loops over the rest
  if (p.sums > 0) plan.blocks = plan.parts = std::min(tiles, persistent_blocks(facts, across_bound, 0));
  return plan;
}

inline RowPlan plan_rows(const RowProblem& p, const CudaFacts& facts) {
  if (p.strided && p.touching) return plan_across(p, facts);
  RowPlan plan;
  const Index accesses = p.length / p.vector;
  const auto packs_for = [&](int bound) { return most_packs(bound, p.vector, p.full, p.held); };
  const auto choose = [&](RowScope scope, int bound, Index lanes_of_all) {
    plan.scope = scope;
    plan.vector = p.vector;
    plan.bound = bound;
    const Index share = quotient_up(accesses, plan.cluster);
    plan.packs = p.vector < p.full ? 4 : static_cast<int>(power_of_two_from(quotient_up(share, lanes_of_all)));
    plan.lanes = static_cast<int>(lanes_of_all);
    plan.threads = scope == RowScope::lanes ? lane_bound : plan.lanes;
  };
  const auto plan_scope = [&] {
    if (p.strided) return;
    if (const int most = packs_for(lane_bound); accesses <= Index(32) * most) {
      // Two accesses a thread keep enough bytes in flight; a whole warp takes more.
      const Index wanted = p.vector < p.full ? 4 : std::min(2, most);
      return choose(RowScope::lanes, lane_bound, std::min<Index>(32, power_of_two_from(quotient_up(accesses, wanted))));
    }
    for (const int bound : {256, 512, 1024}) {
      const int most = packs_for(bound);
      if (!takes_bound(bound, p.vector, p.full, p.held) || accesses > static_cast<Index>(bound) * most) continue;
      int packs = p.vector < p.full ? 4 : 1;
      while (packs < most && accesses > static_cast<Index>(256) * packs) packs *= 2;
      return choose(RowScope::block, bound, rounded_up(quotient_up(accesses, packs), 32));
    }
    const int most = packs_for(256);
    if (facts.architecture < 90 || p.vector < p.full || most == 0) return;
    for (const int cluster : {2, 4, 8}) {
      if (accesses > static_cast<Index>(256) * most * cluster) continue;
      plan.cluster = cluster;
      return choose(RowScope::cluster, 256, 256);
    }
  };
  plan_scope();
  if (plan.scope == RowScope::stream) plan.vector = !p.strided && p.vector == p.full ? p.full : 1;
  // The number of packs that was chosen is one that the kernels have: a power of two up to most_packs.
  const Index groups = plan.scope == RowScope::lanes ? quotient_up(p.rows, plan.rows_per_block()) : p.rows;
  plan.blocks = groups;
  if (p.sums > 0) {
    if (plan.scope == RowScope::stream) {
      plan.parts = std::min<Index>(quotient_up(p.rows, 32), 64);
    } else {
      const int kept = kept_bytes(plan.scope, plan.packs, plan.vector, p.held, p.sum_bytes);
      const Index resident = persistent_blocks(facts, plan.bound, kept);
      plan.parts = std::min(groups, std::max<Index>(1, resident / plan.cluster));
      plan.blocks = plan.parts;
      if (plan.scope == RowScope::lanes) plan.shared = p.sums * p.sum_bytes * sums_pitch(p.length);
    }
  }
  plan.blocks = std::min<Index>(plan.blocks, 2147483647 / plan.cluster) * plan.cluster;  // kernels loop over the rest
  return plan;
}

/// "block: 256 threads x 4 packs x 8 elements, 1000 blocks".
inline std::string text(const RowPlan& plan) {
  static constexpr const char* names[] = {"lanes", "block", "cluster", "stream", "across"};
  std::string s = names[static_cast<int>(plan.scope)];
  const auto add = [&](const char* name, Index value) {
    s += name;
    append(s, value);
  };
  add(": lanes ", plan.lanes);
  add(", packs ", plan.packs);
  add(", vector ", plan.vector);
  add(", threads ", plan.threads);
  add(", bound ", plan.bound);
  add(", cluster ", plan.cluster);
  add(", blocks ", plan.blocks);
  add(", shared ", plan.shared);
  add(", parts ", plan.parts);
  return s;
}

}  // namespace detail
}  // namespace evenkeel
