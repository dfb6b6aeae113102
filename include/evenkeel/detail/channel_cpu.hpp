/// The CPU loops for norms that keep one axis, the channels, and reduce all others. Two steps that can be called apart:
/// channel_sums goes over the data and leaves the values of each channel, channel_write goes over the data again with
/// them.
///
/// The math is that of row_math.hpp, with a channel in the place of a row. finish is called with sums in double,
/// whatever the data are: a channel may have millions of elements.
#pragma once

#include "evenkeel/detail/parallel_cpu.hpp"
#include "evenkeel/detail/row_kernel_cpu.hpp"

namespace evenkeel::detail::inline EVENKEEL_ISA {

template <class Pass>
class Channels;

/// The pass's grid has the reduced extents, its length is the number of channels; `known` and `kept` are (members,
/// channels); a parameter has one value for each channel.
template <class Math, class... X, class... P, class... Y, class KnownRows, class KeptRows>
class Channels<RowPass<Math, std::tuple<X...>, std::tuple<P...>, std::tuple<Y...>, KnownRows, KeptRows>> {
  using Pass = RowPass<Math, std::tuple<X...>, std::tuple<P...>, std::tuple<Y...>, KnownRows, KeptRows>;
  using A = typename Math::Scalar;
  using V = Pack<A>;
  static constexpr int W = pack_size<A>;

 public:
  explicit Channels(const Pass& pass) : pass_(pass), run_axis_(run_axis()) {
    // Lines of the pass: one for each pair of coordinates of the two axes that are not run over.
    const auto d = static_cast<std::size_t>(run_axis_ < 0 ? 2 : run_axis_);
    run_ = pass.grid.extent[d];
    first_ = (d + 1) % 3;
    second_ = (d + 2) % 3;
  }

  /// Packs run along a line where some reduced axis is contiguous, else over neighbouring channels.
  Index blocks() const { return run_axis_ >= 0 ? pass_.grid.length : (pass_.grid.length + W - 1) / W; }

  void sums(Index block) const {
    if (run_axis_ >= 0)
      sums_along(block);
    else
      sums_across(block * W, count_at(block));
  }
  void write(Index block) const {
    if (run_axis_ >= 0)
      write_along(block);
    else
      write_across(block * W, count_at(block));
  }

 private:
  using Sums = Values<V, Math::sums>;
  using Total = Values<double, Math::sums>;
  template <class S>
  using Known = typename Math::template Known<S>;
  template <class S>
  using Start = typename Math::template Start<S>;
  template <class S>
  using Row = typename Math::template Row<S>;

  /// The reduced axis that is contiguous in every tensor, or -1.
  int run_axis() const {
    for (int axis = 2; axis >= 0; --axis) {
      const auto a = static_cast<std::size_t>(axis);
      const auto contiguous = [&](const auto& rows) {
        if constexpr (is_none_v<decltype(rows)>)
          return true;
        else
          return rows.stride[a] == 1;
      };
      if (pass_.grid.extent[a] > 1 &&
          std::apply([&](const auto&... r) { return (contiguous(r) && ...); }, pass_.inputs) &&
          std::apply([&](const auto&... r) { return (contiguous(r) && ...); }, pass_.outputs))
        return axis;
    }
    return -1;
  }
  int count_at(Index block) const { return static_cast<int>(std::min<Index>(W, pass_.grid.length - block * W)); }

  /// Calls f with a tuple of pointers to the start of each line of channel c.
  template <class T, class F>
  void for_each_line(const T& rows, Index c, const F& f) const {
    for (Index i = 0; i < pass_.grid.extent[first_]; ++i)
      for (Index j = 0; j < pass_.grid.extent[second_]; ++j)
        f(std::apply([&](const auto&... r) { return std::tuple(line(r, c, i, j)...); }, rows));
  }
  template <class T>
  T* line(const Rows<T>& rows, Index c, Index i, Index j) const {
    return rows.data + c * rows.length_stride + i * rows.stride[first_] + j * rows.stride[second_];
  }
  None line(None, Index, Index, Index) const { return none; }

  // Along: one channel, packs of neighbouring elements.

  void sums_along(Index c) const {
    const Start<A> start = start_of<A>(std::get<0>(pass_.inputs), c, [](const auto* p) { return static_cast<A>(*p); });
    Row<A> row = pass_.math.finish(total_along(start, c), start);
    if constexpr (CanRestart<Math>) {
      const Start<A> better = pass_.math.restart(start, row);
      if (!same_fields(better, start)) row = pass_.math.finish(total_along(better, c), better);
    }
    keep(row, c);
  }

  Total total_along(const Start<A>& start, Index c) const {
    const int rest = static_cast<int>(run_ % W);
    const V mask = lane_mask<V>(0, rest);
    Total wide{};
    Sums sums;
    set_zero(sums);
    Index packs = 0;
    for_each_line(pass_.inputs, c, [&](const auto& x) EVENKEEL_INLINE_LAMBDA {
      for (Index i = 0; i + W <= run_; i += W) {
        accumulate(sums, start, x, [i](const auto* p) EVENKEEL_INLINE_LAMBDA { return load<V>(p + i); });
        if (++packs == chain) flush(wide, sums), packs = 0;
      }
      if (rest) {
        Sums last;
        set_zero(last);
        accumulate(last, start, x, [&](const auto* p) { return load_lanes<V>(p + run_ - rest, 1, rest); });
        add_masked(sums, last, mask);
      }
    });
    flush(wide, sums);
    return wide;
  }
  static void flush(Total& wide, Sums& sums) {
    unroll<Math::sums>([&](auto k) EVENKEEL_INLINE_LAMBDA { wide[k] += static_cast<double>(lane_sum(sums[k])); });
    set_zero(sums);
  }

  void write_along(Index c) const {
    const Row<A> row = known_row<A>([&](const A* p) { return p[c]; });
    const auto parameters =
        std::apply([&](const auto&... p) { return std::tuple(load_at<A>(p, c)...); }, pass_.parameters);
    const int rest = static_cast<int>(run_ % W);
    for (Index i = 0; i < pass_.grid.extent[first_]; ++i)
      for (Index j = 0; j < pass_.grid.extent[second_]; ++j) {
        const auto x = std::apply([&](const auto&... r) { return std::tuple(line(r, c, i, j)...); }, pass_.inputs);
        const auto y = std::apply([&](const auto&... r) { return std::tuple(line(r, c, i, j)...); }, pass_.outputs);
        for (Index k = 0; k + W <= run_; k += W)
          put(
              row, x, parameters, y, [k](const auto* p) EVENKEEL_INLINE_LAMBDA { return load<V>(p + k); },
              [k](auto* p, const V& v) EVENKEEL_INLINE_LAMBDA { store<V>(p + k, v); });
        if (rest)
          put(
              row, x, parameters, y, [&](const auto* p) { return load_lanes<V>(p + run_ - rest, 1, rest); },
              [&](auto* p, const V& v) { store_lanes<V>(p + run_ - rest, 1, rest, v); });
      }
  }

  // Across: packs of up to W neighbouring channels.

  void sums_across(Index c, int count) const {
    const auto lanes = [&](const auto* p, Index stride) { return lanes_at(p, stride, count); };
    const auto first = [&](const auto* p, Index stride) { return lanes(p, stride); };
    Start<V> start = start_across(c, count, first);
    Total totals[W] = {};
    total_across(totals, start, c, count);
    Row<A> rows[W];
    bool again = false;
    Start<V> better = start;
    for (int j = 0; j < count; ++j) {
      const Start<A> lane = lane_of(start, j);
      rows[j] = pass_.math.finish(totals[j], lane);
      if constexpr (CanRestart<Math>) {
        const Start<A> restarted = pass_.math.restart(lane, rows[j]);
        if (!same_fields(restarted, lane)) again = true, set_lane(better, j, restarted);
      }
    }
    if (again) {
      std::fill_n(totals, W, Total{});
      total_across(totals, better, c, count);
      for (int j = 0; j < count; ++j) rows[j] = pass_.math.finish(totals[j], lane_of(better, j));
    }
    for (int j = 0; j < count; ++j) keep(rows[j], c + j);
  }

  void total_across(Total (&totals)[W], const Start<V>& start, Index c, int count) const {
    Sums sums;
    set_zero(sums);
    Index links = 0;
    const auto flush_lanes = [&] {
      unroll<Math::sums>([&](auto k) {
        for (int j = 0; j < count; ++j) totals[j][k] += static_cast<double>(sums[k][j]);
      });
      set_zero(sums);
      links = 0;
    };
    for_each_element(c, [&](const auto& x, const auto&) {
      accumulate(sums, start, x, [&](const auto& p) { return lanes_at(p.data, p.stride, count); });
      if (++links == chain) flush_lanes();
    });
    flush_lanes();
  }

  void write_across(Index c, int count) const {
    const Row<V> row = known_row<V>([&](const A* p) { return load_lanes<V>(p + c, 1, count); });
    const auto parameters = std::apply(
        [&](const auto&... p) {
          const auto lanes = [&]<class T>(const T& q) {
            if constexpr (is_none_v<T>)
              return none;
            else
              return load_lanes<V>(q + c, 1, count);
          };
          return std::tuple(lanes(p)...);
        },
        pass_.parameters);
    for_each_element(c, [&](const auto& x, const auto& y) {
      put(
          row, x, parameters, y, [&](const auto& p) { return lanes_at(p.data, p.stride, count); },
          [&](const auto& p, const V& v) {
            if (count == W && p.stride == 1)
              store<V>(p.data, v);
            else
              store_lanes<V>(p.data, p.stride, count, v);
          });
    });
  }

  /// A pack of channels of one tensor at one place.
  template <class T>
  struct Lane {
    T* data;
    Index stride;
  };
  template <class T>
  Lane<T> lane(const Rows<T>& rows, Index c, Index i, Index j, Index k) const {
    return {line(rows, c, i, j) + k * rows.stride[3 - first_ - second_], rows.length_stride};
  }
  None lane(None, Index, Index, Index, Index) const { return none; }
  template <class T>
  EVENKEEL_HOST static V lanes_at(const T* p, Index stride, int count) {
    return count == W && stride == 1 ? load<V>(p) : load_lanes<V>(p, stride, count);
  }
  template <class F>
  void for_each_element(Index c, const F& f) const {
    for (Index i = 0; i < pass_.grid.extent[first_]; ++i)
      for (Index j = 0; j < pass_.grid.extent[second_]; ++j)
        for (Index k = 0; k < run_; ++k)
          f(std::apply([&](const auto&... r) { return std::tuple(lane(r, c, i, j, k)...); }, pass_.inputs),
            std::apply([&](const auto&... r) { return std::tuple(lane(r, c, i, j, k)...); }, pass_.outputs));
  }

  // What both share.

  template <class S, class Load, class In>
  EVENKEEL_HOST void accumulate(Sums& sums, const Start<S>& start, const In& x, const Load& at) const {
    Values<V, 0> terms;
    [&]<std::size_t... I>(std::index_sequence<I...>) EVENKEEL_INLINE_LAMBDA {
      pass_.math.accumulate(sums, terms, start, at(std::get<I>(x))...);
    }
    (std::index_sequence_for<X...>{});
  }
  template <class S, class In, class Parameters, class Out, class Load, class Store>
  EVENKEEL_HOST void put(const Row<S>& row, const In& x, const Parameters& parameters, const Out& y, const Load& at,
                         const Store& to) const {
    Values<V, Math::outputs> out;
    [&]<std::size_t... I, std::size_t... J, std::size_t... K>(std::index_sequence<I...>, std::index_sequence<J...>,
                                                              std::index_sequence<K...>) EVENKEEL_INLINE_LAMBDA {
      pass_.math.write(out, row, at(std::get<I>(x))..., std::get<J>(parameters)...);
      (to(std::get<K>(y), out[K]), ...);
    }
    (std::index_sequence_for<X...>{}, std::index_sequence_for<P...>{}, std::index_sequence_for<Y...>{});
  }

  template <class S, class Read>
  Row<S> known_row(const Read& read) const {
    Row<S> row;
    for_each_field(row, [&](int k, S& value) { value = read(pass_.known + k * pass_.grid.length); });
    return row;
  }
  template <class S, class In, class Read>
  Start<S> start_of(const In& x, Index c, const Read& read) const {
    Known<S> known{};
    if constexpr (!is_none_v<KnownRows>)
      for_each_field(known, [&](int k, S& value) { value = pass_.known[k * pass_.grid.length + c]; });
    return pass_.math.start(known, read(x.data + c * x.length_stride));
  }
  template <class Read>
  Start<V> start_across(Index c, int count, const Read& read) const {
    Known<V> known{};
    if constexpr (!is_none_v<KnownRows>)
      for_each_field(
          known, [&](int k, V& value) { value = load_lanes<V>(pass_.known + k * pass_.grid.length + c, 1, count); });
    const auto& x = std::get<0>(pass_.inputs);
    return pass_.math.start(known, read(x.data + c * x.length_stride, x.length_stride));
  }
  static Start<A> lane_of(Start<V> start, int j) {
    Start<A> lane{};
    A values[6] = {};
    for_each_field(start, [&](int k, const V& value) { values[k] = value[j]; });
    for_each_field(lane, [&](int k, A& value) { value = values[k]; });
    return lane;
  }
  static void set_lane(Start<V>& start, int j, Start<A> lane) {
    A values[6] = {};
    for_each_field(lane, [&](int k, const A& value) { values[k] = value; });
    for_each_field(start, [&](int k, V& value) {
      const V mask = lane_mask<V>(j, j + 1);
      value = select_less(splat<V>(0), mask, splat<V>(values[k]), value);
    });
  }
  void keep(Row<A>& row, Index c) const {
    if constexpr (!is_none_v<KeptRows>)
      for_each_field(row, [&](int k, const A& value) { pass_.kept[k * pass_.grid.length + c] = value; });
  }

  const Pass& pass_;
  const int run_axis_;
  Index run_ = 0;
  std::size_t first_ = 0, second_ = 0;
};

/// The values of each channel, from its sums, to pass.kept.
template <class Device, class Pass>
void channel_sums(const Device& device, const Pass& pass, double bytes) {
  require_cpu_device<Device>();
  const Channels<Pass> channels(pass);
  for_each_block(device, channels.blocks(), bytes, [&](Index block) { channels.sums(block); });
}

/// The outputs, from the inputs and each channel's known values.
template <class Device, class Pass>
void channel_write(const Device& device, const Pass& pass, double bytes) {
  require_cpu_device<Device>();
  const Channels<Pass> channels(pass);
  for_each_block(device, channels.blocks(), bytes, [&](Index block) { channels.write(block); });
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
