/// A pass over rows on the CPU: which loop, which blocks. Rows, not threads, decide both, so results do not depend on
/// the number of threads.
#pragma once

#include "evenkeel/detail/parallel_cpu.hpp"
#include "evenkeel/detail/row_across_cpu.hpp"
#include "evenkeel/detail/row_along_cpu.hpp"

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// Blocks that the rows of a pass with feature sums fall into: at least `chain` rows each, and fewer blocks for longer
/// rows so that the partial sums stay small beside the data.
inline Index feature_blocks(Index rows, Index length) {
  const Index most = std::clamp<Index>((Index(1) << 22) / std::max<Index>(length, 1), 8, 64);
  return std::clamp<Index>((rows + chain - 1) / chain, 1, most);
}

/// Values of A that such a pass needs as scratch.
template <class A, int FeatureCount>
Index feature_scratch(Index rows, Index length) {
  return FeatureCount == 0 ? 0 : feature_blocks(rows, length) * FeatureSums<A, FeatureCount>::size(length);
}

/// Bytes that a pass reads and writes, counting each tensor once.
template <class Math, class... X, class P, class... Y, class Known, class Kept>
double traffic(const RowPass<Math, std::tuple<X...>, P, std::tuple<Y...>, Known, Kept>& pass) {
  const auto width = []<class T>(const T*) -> int {
    if constexpr (is_none_v<T>)
      return 0;
    else
      return static_cast<int>(sizeof(*T::data));
  };
  const int bytes =
      (0 + ... + width(static_cast<const X*>(nullptr))) + (0 + ... + width(static_cast<const Y*>(nullptr)));
  return static_cast<double>(bytes) * static_cast<double>(pass.grid.rows()) * static_cast<double>(pass.grid.length);
}

/// Runs the pass. Where the math has feature sums, `scratch` holds feature_scratch() values, and row k of the result,
/// at scratch + k * FeatureSums::pitch_of(length), has the sums of feature term k over all rows.
template <class Device, class Math, class X, class P, class Y, class Known, class Kept>
void row_pass(const Device& device, const RowPass<Math, X, P, Y, Known, Kept>& pass,
              typename Math::Scalar* scratch = nullptr) {
  require_cpu_device<Device>();
  using Pass = RowPass<Math, X, P, Y, Known, Kept>;
  using A = typename Math::Scalar;
  using Features = FeatureSums<A, Math::feature_sums>;
  const Index rows = pass.grid.rows(), length = pass.grid.length;
  const bool along = RowsAlong<Pass>::fits(pass);
  const Index units = along ? rows : RowsAcross<Pass>::groups(pass), unit_rows = along ? 1 : pack_size<A>;
  const Index row_block = std::max<Index>(1, (Index(1) << 14) / std::max<Index>(length * unit_rows, 1));
  const Index blocks = Math::feature_sums ? std::min(std::max<Index>(units, 1), feature_blocks(rows, length))
                                          : (units + row_block - 1) / row_block;
  const Index per_block = Math::feature_sums ? (units + blocks - 1) / blocks : row_block;
  const auto run = [&](Index first, Index last, A* memory) {
    if (along)
      RowsAlong<Pass>::run(pass, first, last, memory);
    else
      RowsAcross<Pass>::run(pass, first, last, memory);
  };
  if (Math::feature_sums == 0 && SerialDevice<Device>) return run(0, units, nullptr);
  for_each_block(device, blocks, traffic(pass), [&](Index block) {
    const Index first = std::min(units, block * per_block), last = std::min(units, first + per_block);
    run(first, last, scratch + block * Features::size(length));
  });
  for (Index block = 1; block < blocks; ++block) {
    const A* const partial = scratch + block * Features::size(length);
    for (Index i = 0; i < Math::feature_sums * Features::pitch_of(length); i += pack_size<A>)
      store<Pack<A>>(scratch + i, Pack<A>(load<Pack<A>>(scratch + i) + load<Pack<A>>(partial + i)));
  }
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
