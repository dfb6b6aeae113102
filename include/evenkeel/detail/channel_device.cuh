/// A pass over channels as kernels see it: plain pointers, sizes and the math.
#pragma once

#include "evenkeel/detail/channel_plan.hpp"
#include "evenkeel/detail/row_device.cuh"

#include <cstdint>

namespace evenkeel::detail {

/// One tensor's cells: see Cells. The levels are those of the grid.
template <class T>
struct DeviceCells {
  using Scalar = T;
  T* data;
  std::int64_t sample_stride, channel_stride;
  std::int64_t stride[channel_levels];
};

/// e / n, and its rest: 64-bit division is slow on the device.
struct Quotient {
  std::int64_t whole, rest;
  EVENKEEL_DEVICE Quotient(std::int64_t e, std::int64_t n) {
    if (((e | n) >> 32) == 0) {
      whole = static_cast<std::uint32_t>(e) / static_cast<std::uint32_t>(n);
      rest = static_cast<std::uint32_t>(e) % static_cast<std::uint32_t>(n);
    } else {
      whole = e / n;
      rest = e % n;
    }
  }
};

struct DeviceChannelGrid {
  std::int64_t samples, channels;
  std::int64_t positions;  // the product of the levels' extents
  LevelWalk level[channel_levels];
  std::int64_t group;  // neighbouring channels that share known values

  EVENKEEL_DEVICE std::int64_t cells() const { return samples * channels; }
  EVENKEEL_DEVICE std::int64_t sets() const { return group == 1 ? cells() : samples * (channels / group); }
  /// The set of known values of a cell.
  EVENKEEL_DEVICE std::int64_t set(std::int64_t sample, std::int64_t channel) const {
    if (group == 1) return sample * channels + channel;
    return sample * (channels / group) + Quotient(channel, group).whole;
  }
  /// Whether there are several runs of the last level, and whether the first level counts.
  EVENKEEL_DEVICE bool has_runs() const { return level[2].extent() != positions; }
  EVENKEEL_DEVICE bool is_deep() const { return level[0].extent() != 1; }
};

/// Inputs, Outputs: Lists of DeviceCells or None. Parameters: a List of pointers or None, one value for each channel.
template <class Math, class Inputs, class Parameters, class Outputs>
struct DeviceChannelPass {
  using Scalar = typename Math::Scalar;
  Math math;
  DeviceChannelGrid grid;
  Inputs inputs;
  Parameters parameters;
  Outputs outputs;
  const Scalar* known;  // (members, samples, channels / group), or null
  Scalar* kept;         // (members, samples, channels, parts), or null
};

/// Sums over the threads of a unit, lane by lane: the same in each of them, and in the same order whatever the schedule.
/// `Count` values of a thread at most; all threads of the block call together.
template <class A, int Count>
class UnitReduction {
 public:
  EVENKEEL_DEVICE UnitReduction(int lanes, int rows, A* shared, int* flags)
      : lanes_(lanes), span_(lanes * rows), shared_(shared), flags_(flags) {}

  template <int N, int Channels>
  EVENKEEL_DEVICE void sum(Values<A, N> (&values)[Channels]) {
    static_assert(N * Channels <= Count);
    const int within = span_ < 32 ? span_ : 32;
    for (int offset = lanes_; offset < within; offset *= 2)
#pragma unroll
      for (int j = 0; j < Channels; ++j)
        each<N>([&](auto k) { values[j][k] += __shfl_xor_sync(0xffffffffu, values[j][k], offset); });
    if (span_ <= 32) return;
    const auto thread = static_cast<int>(threadIdx.x);
    const int warp = thread / 32, lane = thread % lanes_, warps = span_ / 32;
    const auto slot = [&](int w, int n) { return (w * N * Channels + n) * lanes_ + lane; };
    __syncthreads();  // before what the last sum left is overwritten
    if (thread % 32 < lanes_)
#pragma unroll
      for (int j = 0; j < Channels; ++j) each<N>([&](auto k) { shared_[slot(warp, j * N + k)] = values[j][k]; });
    __syncthreads();
    const int first = warp / warps * warps;
#pragma unroll
    for (int j = 0; j < Channels; ++j)
      each<N>([&](auto k) {
        A sum = shared_[slot(first, j * N + k)];
        for (int w = 1; w < warps; ++w) sum += shared_[slot(first + w, j * N + k)];
        values[j][k] = sum;
      });
  }

  /// Whether any thread says so: of the warp where units lie within warps, else of the block.
  EVENKEEL_DEVICE bool any(bool says) {
    int flag = says ? 1 : 0;
    for (int offset = 16; offset > 0; offset /= 2) flag |= __shfl_xor_sync(0xffffffffu, flag, offset);
    if (span_ <= 32) return flag != 0;
    const auto thread = static_cast<int>(threadIdx.x);
    __syncthreads();
    if (thread % 32 == 0) flags_[thread / 32] = flag;
    __syncthreads();
    for (int w = 0; w < channel_warps; ++w) flag |= flags_[w];
    return flag != 0;
  }

 private:
  int lanes_, span_;
  A* shared_;
  int* flags_;
};

/// What the kernels do with a pass, for one thread. An access has V positions of a channel, or V channels of a position.
template <class Pass, ChannelLayout Layout, int V>
struct ChannelSteps;

template <class Math, class... X, class... P, class... Y, ChannelLayout Layout, int V>
struct ChannelSteps<DeviceChannelPass<Math, List<X...>, List<P...>, List<Y...>>, Layout, V> {
  using Pass = DeviceChannelPass<Math, List<X...>, List<P...>, List<Y...>>;
  using A = typename Math::Scalar;
  using Known = typename Math::template Known<A>;
  using Start = typename Math::template Start<A>;
  using Row = typename Math::template Row<A>;
  using Sums = Values<A, Math::sums>;
  using Inputs = std::index_sequence_for<X...>;
  static constexpr bool along = Layout == ChannelLayout::along;
  static constexpr int inputs = sizeof...(X), parameters = sizeof...(P), outputs = sizeof...(Y);
  /// Channels of a thread, positions of an access, and the channel of element i.
  static constexpr int channels = along ? 1 : V, positions = along ? V : 1;
  static EVENKEEL_DEVICE constexpr int channel_of(int i) { return along ? 0 : i; }

  template <class T>
  static constexpr int element_bytes() {
    if constexpr (is_none_v<T>)
      return 0;
    else
      return static_cast<int>(sizeof(typename T::Scalar));
  }
  static constexpr int access_bytes = (0 + ... + element_bytes<X>()) * V;
  /// Accesses that a thread starts before it uses the first.
  static constexpr int in_flight = access_bytes <= 16 ? 4 : access_bytes <= (along ? 64 : 32) ? 2 : 1;

  template <class T>
  static EVENKEEL_DEVICE T* pointer_at(const DeviceCells<T>& cells, std::int64_t sample, std::int64_t channel,
                                       const std::int64_t (&level)[channel_levels]) {
    return cells.data + (sample * cells.sample_stride + channel * cells.channel_stride + level[0] * cells.stride[0] +
                         level[1] * cells.stride[1] + level[2] * cells.stride[2]);
  }
  static EVENKEEL_DEVICE None pointer_at(None, std::int64_t, std::int64_t, const std::int64_t (&)[channel_levels]) {
    return {};
  }
  template <class T>
  using Pointer = decltype(pointer_at(std::declval<T>(), 0, 0, std::declval<const std::int64_t (&)[channel_levels]>()));
  /// From one element of an access to the next.
  template <class T>
  static EVENKEEL_DEVICE std::int64_t element_stride(const DeviceCells<T>& cells) {
    return along ? 1 : cells.channel_stride;
  }
  static EVENKEEL_DEVICE std::int64_t element_stride(None) { return 0; }

  static EVENKEEL_DEVICE Absent<A, V> load_cell(None, std::int64_t) { return {}; }
  template <class T>
  static EVENKEEL_DEVICE auto load_cell(T* from, std::int64_t stride) {
    return load_plain_chunk<A, V>(from, stride);
  }
  using Chunks = List<decltype(load_cell(std::declval<Pointer<X>>(), 0))...>;
  template <class Q>
  using ParameterChunk = decltype(load_parameter<A, channels>(std::declval<Q>(), 0));
  using Parameters = List<ParameterChunk<P>...>;

  /// What a thread does of a unit: its channels from `channel` on, and `positions` positions, of which the first one has
  /// these pointers and, on the levels 1 and 2, these places.
  struct Unit {
    std::int64_t sample = 0, channel = 0, part = 0;
    int positions = 0;  // 0 where the thread has nothing to do
    int place[channel_levels] = {};
    List<Pointer<X>...> in;
    List<Pointer<Y>...> out;
  };
  static EVENKEEL_DEVICE Unit unit_of(const Pass& pass, const ChannelPlan& plan, std::int64_t number) {
    Unit unit;
    if (number >= plan.units) return unit;
    const DeviceChannelGrid& grid = pass.grid;
    const Quotient parts(number, plan.parts), tiles(parts.whole, plan.tiles);
    const int lane = static_cast<int>(threadIdx.x) % plan.lanes;
    const std::int64_t channel = along ? tiles.rest : (tiles.rest * plan.lanes + lane) * V;
    if (channel >= grid.channels) return unit;
    unit.sample = tiles.whole;
    unit.channel = channel;
    unit.part = parts.rest;
    const std::int64_t begin = unit.part * plan.part, left = grid.positions - begin;
    unit.positions = static_cast<int>(left < plan.part ? left : plan.part);
    std::int64_t level[channel_levels] = {0, 0, begin};
    if (grid.has_runs()) {
      const Quotient runs(begin, grid.level[2].extent());
      level[1] = runs.whole;
      level[2] = runs.rest;
      unit.place[2] = grid.level[2].place(level[2]);
      if (grid.is_deep()) {
        const Quotient outer(level[1], grid.level[1].extent());
        level[0] = outer.whole;
        level[1] = outer.rest;
        unit.place[1] = grid.level[1].place(level[1]);
      }
    }
    each<inputs>([&](auto k) { at<k>(unit.in) = pointer_at(at<k>(pass.inputs), unit.sample, channel, level); });
    each<outputs>([&](auto k) { at<k>(unit.out) = pointer_at(at<k>(pass.outputs), unit.sample, channel, level); });
    return unit;
  }

  /// The way from a unit's first position to its position t, level by level.
  struct Way {
    std::int64_t level[channel_levels];
    bool has_runs, is_deep;
    template <class T>
    EVENKEEL_DEVICE std::int64_t offset(const DeviceCells<T>& cells) const {
      std::int64_t way = level[2];
      if constexpr (!along || V == 1) way *= cells.stride[2];
      if (has_runs) way += level[1] * cells.stride[1];
      if (is_deep) way += level[0] * cells.stride[0];
      return way;
    }
    EVENKEEL_DEVICE std::int64_t offset(None) const { return 0; }
  };
  static EVENKEEL_DEVICE Way way_to(const Pass& pass, const Unit& unit, int t) {
    const DeviceChannelGrid& grid = pass.grid;
    Way way{{0, 0, t}, grid.has_runs(), false};
    if (!way.has_runs) return way;
    const int runs = grid.level[2].carries(unit.place[2], t);
    way.level[2] -= runs * grid.level[2].extent();
    way.level[1] = runs;
    if (!grid.is_deep()) return way;
    way.is_deep = true;
    const int outer = grid.level[1].carries(unit.place[1], runs);
    way.level[1] -= outer * grid.level[1].extent();
    way.level[0] = outer;
    return way;
  }

  static EVENKEEL_DEVICE Chunks load(const Pass& pass, const Unit& unit, int t) {
    const Way way = way_to(pass, unit, t);
    Chunks chunks;
    each<inputs>([&](auto k) {
      const auto& cells = at<k>(pass.inputs);
      at<k>(chunks) = load_cell(moved(at<k>(unit.in), way.offset(cells)), element_stride(cells));
    });
    return chunks;
  }
  static EVENKEEL_DEVICE Parameters load_parameters(const Pass& pass, const Unit& unit) {
    Parameters chunks;
    each<parameters>(
        [&](auto k) { at<k>(chunks) = load_parameter<A, channels>(at<k>(pass.parameters), unit.channel); });
    return chunks;
  }

  /// The values that an earlier pass left for channel j of the thread.
  template <class R>
  static EVENKEEL_DEVICE R read_known(const Pass& pass, const Unit& unit, int j) {
    R row{};
    const std::int64_t sets = pass.grid.sets(), set = pass.grid.set(unit.sample, unit.channel + j);
    for_each_field(row, [&](int k, A& value) { value = pass.known[k * sets + set]; });
    return row;
  }
  static EVENKEEL_DEVICE Row row_of(const Pass& pass, const Unit& unit, int j) {
    if constexpr (requires { typename Math::template Stored<A>; })
      return pass.math.prepared(read_known<typename Math::template Stored<A>>(pass, unit, j));
    else
      return read_known<Row>(pass, unit, j);
  }
  /// Where the start is known and does not depend on the data.
  static EVENKEEL_DEVICE Start known_start(const Pass& pass, const Unit& unit, int j) {
    const Known known = read_known<Known>(pass, unit, j);
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return pass.math.start(known, zero_of<static_cast<int>(I)>()...);
    }
    (Inputs{});
  }

  static EVENKEEL_DEVICE void accumulate_first(Values<A, 2>& sums, const Chunks& x, int i) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      Math::accumulate_first(sums, at<static_cast<int>(I)>(x).value(i)...);
    }
    (Inputs{});
  }
  static EVENKEEL_DEVICE void accumulate(const Math& math, Sums& sums, const Start& start, const Chunks& x,
                                         const Parameters& p, int i) {
    Values<A, 0> terms;
    [&]<std::size_t... I, std::size_t... J>(std::index_sequence<I...>, std::index_sequence<J...>) {
      math.accumulate(sums, terms, start, at<static_cast<int>(I)>(x).value(i)...,
                      at<static_cast<int>(J)>(p).value(channel_of(i))...);
    }
    (Inputs{}, std::index_sequence_for<P...>{});
  }

  static EVENKEEL_DEVICE void keep(const Pass& pass, const Unit& unit, const ChannelPlan& plan, const Row& row, int j) {
    const std::int64_t cells = pass.grid.cells(), cell = unit.sample * pass.grid.channels + unit.channel + j;
    Row copy = row;
    for_each_field(copy,
                   [&](int k, const A& value) { pass.kept[(k * cells + cell) * plan.parts + unit.part] = value; });
  }

  static EVENKEEL_DEVICE void write(const Pass& pass, const Unit& unit, const Row (&row)[channels], int t,
                                    const Chunks& x, const Parameters& p) {
    List<Elements<typename Y::Scalar, V>...> out;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      Values<A, Math::outputs> values;
      [&]<std::size_t... I, std::size_t... J>(std::index_sequence<I...>, std::index_sequence<J...>) {
        pass.math.write(values, row[channel_of(i)], at<static_cast<int>(I)>(x).value(i)...,
                        at<static_cast<int>(J)>(p).value(channel_of(i))...);
      }
      (Inputs{}, std::index_sequence_for<P...>{});
      each<outputs>([&](auto o) { at<o>(out)[i] = to<std::remove_cvref_t<decltype(at<o>(out)[i])>>(values[o]); });
    }
    const Way way = way_to(pass, unit, t);
    each<outputs>([&](auto o) { store_elements(moved(at<o>(unit.out), way.offset(at<o>(pass.outputs))), at<o>(out)); });
  }

  /// Whether the start is a shift that is found from the first accesses, and may be found to be a bad one.
  static constexpr bool seeks_shift = requires(const Values<A, 2>& first) { Math::start_from(first); };

 private:
  template <class T>
  static EVENKEEL_DEVICE T* moved(T* pointer, std::int64_t offset) {
    return pointer + offset;
  }
  static EVENKEEL_DEVICE None moved(None, std::int64_t) { return {}; }
  template <int I>
  static EVENKEEL_DEVICE auto zero_of() {
    if constexpr (is_none_v<decltype(at<I>(std::declval<List<X...>&>()))>)
      return None{};
    else
      return A(0);
  }
};

}  // namespace evenkeel::detail
