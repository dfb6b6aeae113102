/// A pass over rows on the CPU: which loop, which blocks. Rows, not threads, decide both, so results do not depend on
/// the number of threads.
#pragma once

#include "evenkeel/detail/arguments.hpp"
#include "evenkeel/detail/kernels_cpu.hpp"
#include "evenkeel/detail/parallel_cpu.hpp"
#include "evenkeel/detail/row_math.hpp"

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// Blocks that the rows of a pass with feature sums fall into: at least `chain` rows each, and fewer blocks for longer
/// rows so that the partial sums stay small beside the data.
inline Index feature_blocks(Index rows, Index length) {
  const Index most = std::clamp<Index>((Index(1) << 22) / std::max<Index>(length, 1), 8, 64);
  return std::clamp<Index>((rows + chain - 1) / chain, 1, most);
}

/// Values of A that such a pass needs as scratch.
template <class A, int FeatureCount, class Device>
  requires(!StreamDevice<Device>)
Index feature_scratch(const Device&, Index rows, Index length) {
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

/// Gradients, pointers or none in the order of a pass's sums, which may be used as memory for these sums: those of type
/// A that are overwritten. Else null.
template <class A, class Device, class... T>
  requires(!StreamDevice<Device>)
auto sums_in_place(const Device&, GradientMode mode, T... gradients) {
  std::array<A*, (0 + ... + !is_none_v<T>)> place{};
  if constexpr (((is_none_v<T> || std::is_same_v<T, A*>)&&...)) {
    std::size_t k = 0;
    const auto set = [&](auto gradient) {
      if constexpr (!is_none_v<decltype(gradient)>) place[k++] = gradient;
    };
    if (mode == GradientMode::overwrite) (set(gradients), ...);
  }
  return place;
}

/// Runs the pass. Where the math has feature sums, `scratch` holds feature_scratch() values and receives them, in one
/// part; or the sums of few rows go to `place`, if it is not null.
template <class Device, class Math, class X, class P, class Y, class Known, class Kept>
  requires(!StreamDevice<Device>)
FeatureParts row_pass(const Device& device, const RowPass<Math, X, P, Y, Known, Kept>& pass,
                      typename Math::Scalar* scratch = nullptr,
                      const std::array<typename Math::Scalar*, Math::feature_sums>& place = {}) {
  require_device<Device>();
  using Pass = RowPass<Math, X, P, Y, Known, Kept>;
  using A = typename Math::Scalar;
  using Features = FeatureSums<A, Math::feature_sums>;
  using Place = typename Features::Place;
  const Index rows = pass.grid.rows(), length = pass.grid.length;
  FeatureParts parts{1, Features::pitch_of(length), Math::feature_sums};
  const Index done = with_kernels([&]<class Kernels>(Kernels) -> Index {
    using Along = typename Kernels::template Along<Pass>;
    using Across = typename Kernels::template Across<Pass>;
    const bool along = Along::fits(pass);
    const Index units = along ? rows : Across::groups(pass), unit_rows = along ? 1 : Kernels::template lanes<A>;
    parts.in_place = along && rows <= chain && place != Place{};
    const auto run = [&](Index first, Index last, A* memory) {
      if (along)
        Along::run(pass, first, last, memory, parts.in_place ? place : Place{});
      else
        Across::run(pass, first, last, memory);
    };
    if (Math::feature_sums == 0 && SerialDevice<Device>) {
      run(0, units, nullptr);
      return 1;
    }
    const Index row_block = std::max<Index>(1, (Index(1) << 14) / std::max<Index>(length * unit_rows, 1));
    const Index blocks = Math::feature_sums ? std::min(std::max<Index>(units, 1), feature_blocks(rows, length))
                                            : (units + row_block - 1) / row_block;
    const Index per_block = Math::feature_sums ? (units + blocks - 1) / blocks : row_block;
    for_each_block(device, blocks, traffic(pass), [&](Index block) {
      const Index first = std::min(units, block * per_block), last = std::min(units, first + per_block);
      run(first, last, scratch + block * Features::size(length));
    });
    return blocks;
  });
  for (Index block = 1; block < done; ++block) {
    const A* const partial = scratch + block * Features::size(length);
    for (Index i = 0; i < Math::feature_sums * Features::pitch_of(length); i += pack_size<A>)
      store<Pack<A>>(scratch + i, Pack<A>(load<Pack<A>>(scratch + i) + load<Pack<A>>(partial + i)));
  }
  return parts;
}

/// Adds the sums over rows that a pass left in its scratch to gradients, or writes them there: pointers or none. The k-th
/// of those that are there belongs to the k-th sum.
template <class Device, class A, class... T>
  requires(!StreamDevice<Device>)
void put_gradients(const Device&, const A* scratch, const FeatureParts& parts, Index length, GradientMode mode,
                   T... gradients) {
  if (parts.in_place) return;
  Index k = 0;
  const auto put = [&](auto gradient) {
    if constexpr (!is_none_v<decltype(gradient)>) put_gradient(gradient, scratch + k++ * parts.pitch, length, mode);
  };
  (put(gradients), ...);
}

/// Adds the sum of what the rows kept to a scalar's gradient, or writes it there; a pointer or none.
template <class Device, class A, class T>
  requires(!StreamDevice<Device>)
void put_total(const Device&, const A* shares, Index rows, GradientMode mode, T gradient) {
  if constexpr (!is_none_v<T>) {
    using Scalar = std::remove_pointer_t<T>;
    double sum = 0;
    for (Index r = 0; r < rows; ++r) sum += static_cast<double>(shares[r]);
    if (mode == GradientMode::accumulate) sum += static_cast<double>(*gradient);
    *gradient = static_cast<Scalar>(sum);
  }
}

/// Writes `ones` ones and zeros after them.
template <class Device, class A>
  requires(!StreamDevice<Device>)
void put_indicator(const Device&, A* values, Index length, Index ones) {
  for (Index i = 0; i < length; ++i) values[i] = A(i < ones);
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
