/// The CPU loop for rows whose elements are not neighbours in memory: channels before space, column-major matrices, any
/// strides; and for rows shorter than a pack. A pack holds the same element of neighbouring rows, so every lane keeps
/// its row's own order of summation.

namespace evenkeel::detail::kernels::EVENKEEL_KERNELS {

template <class Pass>
class RowsAcross;

template <class Math, class... X, class... P, class... Y, class KnownRows, class KeptRows>
class RowsAcross<RowPass<Math, std::tuple<X...>, std::tuple<P...>, std::tuple<Y...>, KnownRows, KeptRows>> {
  using Pass = RowPass<Math, std::tuple<X...>, std::tuple<P...>, std::tuple<Y...>, KnownRows, KeptRows>;
  using A = typename Math::Scalar;
  using V = Pack<A>;
  using Known = typename Math::template Known<V>;
  using Start = typename Math::template Start<V>;
  using Row = typename Math::template Row<V>;
  using Sums = Values<V, Math::sums>;
  using Features = FeatureSums<A, Math::feature_sums>;
  static constexpr int W = pack_size<A>;

 public:
  /// Groups of up to W rows that the pass falls into.
  static Index groups(const Pass& pass) {
    const auto& extent = pass.grid.extent;
    const auto d = static_cast<std::size_t>(lane_axis(pass));
    return extent[(d + 1) % 3] * extent[(d + 2) % 3] * ((extent[d] + W - 1) / W);
  }

  /// Groups first..last-1. `memory` holds the block's feature sums.
  static void run(const Pass& pass, Index first, Index last, A* memory) { RowsAcross(pass, memory).loop(first, last); }

 private:
  RowsAcross(const Pass& pass, A* memory)
      : pass_(pass),
        math_(pass.math),
        n_(pass.grid.length),
        axis_(lane_axis(pass)),
        features_(memory, pass.grid.length) {}

  /// Lanes run over the axis in which the first input's rows lie closest.
  static int lane_axis(const Pass& pass) {
    const auto& extent = pass.grid.extent;
    const auto& stride = std::get<0>(pass.inputs).stride;
    int best = 2;
    for (int a = 1; a >= 0; --a) {
      const auto i = static_cast<std::size_t>(a), b = static_cast<std::size_t>(best);
      if (extent[i] > 1 && (extent[b] == 1 || stride[i] < stride[b])) best = a;
    }
    return best;
  }

  /// Where a group of rows lies: its first row's coordinates, and how many rows it has.
  struct Group {
    std::array<Index, 3> at;
    int count;
  };
  Group group(Index g) const {
    const auto& extent = pass_.grid.extent;
    const auto d = static_cast<std::size_t>(axis_), e = (d + 1) % 3, f = (d + 2) % 3;
    const Index per_line = (extent[d] + W - 1) / W, line = g / per_line, lane = g % per_line * W;
    Group result{};
    result.at[d] = lane;
    result.at[e] = line / extent[f];
    result.at[f] = line % extent[f];
    result.count = static_cast<int>(std::min<Index>(W, extent[d] - lane));
    return result;
  }

  void loop(Index first, Index last) {
    for (Index g = first; g < last; ++g) {
      const Group at = group(g);
      if (at.count == W && lanes_touch())
        rows<true>(at);
      else
        rows<false>(at);
      if (Math::feature_sums > 0 && (g + 1 - first) % (chain / W + 1) == 0) features_.flush();
    }
    features_.flush();
  }

  template <bool Packed>
  EVENKEEL_FLATTEN void rows(const Group& at) {
    const auto x = cursors(pass_.inputs, at);
    const auto y = cursors(pass_.outputs, at);
    const V mask = lane_mask<V>(0, at.count);
    const Start start = start_of<Packed>(x, at);
    if constexpr (Checked<Math>)
      if (!math_.ready(start)) [[unlikely]]
        return unsettled_rows(at);
    Row row = math_.finish(sums_of<Packed>(start, x, at, mask), start);
    if constexpr (Checked<Math> || CanRestart<Math>)
      if (!is_settled(math_, start, row)) [[unlikely]]
        return unsettled_rows(at, Math::feature_sums > 0);
    keep(row, at);
    for (Index i = 0; i < n_; ++i) write<Packed>(row, x, y, at, i);
  }

  /// A group with a row that is not settled. Its other rows get what they would get beside any neighbours.
  EVENKEEL_COLD void unsettled_rows(const Group& at, bool counted = false) {
    const auto x = cursors(pass_.inputs, at);
    Start start = start_of<false>(x, at);
    bool ready[W], settled[W];
    V mask = splat<V>(0);
    for (int j = 0; j < at.count; ++j) {
      ready[j] = is_ready(math_, lane_of(start, j));
      if (ready[j] && !counted) mask += lane_mask<V>(j, j + 1);
    }
    Row row = math_.finish(sums_of<false>(start, x, at, mask), start);
    if constexpr (CanRestart<Math>) {
      for (int j = 0; j < at.count; ++j) set_lane(start, j, math_.restart(lane_of(start, j), lane_of(row, j)));
      row = math_.finish(sums_of<false>(start, x, at, mask), start);
    }
    for (int j = 0; j < at.count; ++j)
      settled[j] = !Checked<Math> || (ready[j] && is_settled(math_, lane_of(start, j), lane_of(row, j)));
    if constexpr (!is_none_v<KeptRows>)
      for_each_field(row, [&](int k, const V& value) {
        for (int j = 0; j < at.count; ++j)
          if (settled[j]) pass_.kept[k * pass_.grid.rows() + row_number(at) + j * row_stride()] = value[j];
      });
    const auto y = cursors(pass_.outputs, at);
    for (Index i = 0; i < n_; ++i) {
      const auto out = outputs_of<false>(row, x, at, i);
      const auto put = [&](const auto& c, const V& v) {
        for (int j = 0; j < at.count; ++j)
          if (settled[j]) store_lanes<V>(c.data + i * c.stride + j * c.lane_stride, 1, 1, splat<V>(v[j]));
      };
      [&]<std::size_t... K>(std::index_sequence<K...>) { (put(std::get<K>(y), out[K]), ...); }
      (std::index_sequence_for<Y...>{});
    }
    if constexpr (Checked<Math>)
      for (int j = 0; j < at.count; ++j)
        if (!settled[j])
          CarefulRow<Pass>::run(pass_, row_number(at) + j * row_stride(), counted || ready[j] ? nullptr : &features_);
  }
  template <bool Packed, class In>
  Sums sums_of(const Start& start, const In& x, const Group& at, const V& mask) {
    Sums sums;
    set_zero(sums);
    for (Index begin = 0; begin < n_; begin += chain) {
      const Index end = std::min(n_, begin + chain);
      Sums link;
      set_zero(link);
      for (Index i = begin; i < end; ++i) accumulate<Packed>(link, start, x, at, mask, i);
      add(sums, link);
    }
    return sums;
  }

  template <bool Packed, class In>
  EVENKEEL_HOST void accumulate(Sums& sums, const Start& start, const In& x, const Group& at, const V& mask, Index i) {
    Values<V, Math::feature_sums> terms;
    [&]<std::size_t... I, std::size_t... J>(std::index_sequence<I...>, std::index_sequence<J...>)
        EVENKEEL_INLINE_LAMBDA {
      math_.accumulate(sums, terms, start, load_lane<Packed>(std::get<I>(x), at, i)...,
                       load_at<A>(std::get<J>(pass_.parameters), i)...);
    }
    (std::index_sequence_for<X...>{}, std::index_sequence_for<P...>{});
    unroll<Math::feature_sums>([&](auto k) EVENKEEL_INLINE_LAMBDA {
      features_.recent[k][i] += lane_sum(select_less(splat<V>(0), mask, terms[k], splat<V>(0)));
    });
  }

  template <bool Packed, class In, class Out>
  EVENKEEL_HOST void write(const Row& row, const In& x, const Out& y, const Group& at, Index i) {
    const auto out = outputs_of<Packed>(row, x, at, i);
    [&]<std::size_t... K>(std::index_sequence<K...>) EVENKEEL_INLINE_LAMBDA {
      (store_lane<Packed>(std::get<K>(y), at, i, out[K]), ...);
    }
    (std::index_sequence_for<Y...>{});
  }
  template <bool Packed, class In>
  EVENKEEL_HOST Values<V, Math::outputs> outputs_of(const Row& row, const In& x, const Group& at, Index i) const {
    Values<V, Math::outputs> out;
    [&]<std::size_t... I, std::size_t... J>(std::index_sequence<I...>, std::index_sequence<J...>)
        EVENKEEL_INLINE_LAMBDA {
      math_.write(out, row, load_lane<Packed>(std::get<I>(x), at, i)...,
                  load_at<A>(std::get<J>(pass_.parameters), i)...);
    }
    (std::index_sequence_for<X...>{}, std::index_sequence_for<P...>{});
    return out;
  }

  /// One tensor from a group's first row on.
  template <class T>
  struct Cursor {
    T* data;
    Index stride, lane_stride;
  };
  template <class T>
  Cursor<T> cursor(const Rows<T>& rows, const Group& at) const {
    return {rows.data + at.at[0] * rows.stride[0] + at.at[1] * rows.stride[1] + at.at[2] * rows.stride[2],
            rows.length_stride, rows.stride[static_cast<std::size_t>(axis_)]};
  }
  None cursor(None, const Group&) const { return none; }
  template <class... T>
  auto cursors(const std::tuple<T...>& rows, const Group& at) const {
    return spread([&](const auto&... r) { return std::tuple(cursor(r, at)...); }, rows);
  }
  /// Whether neighbouring rows are neighbours in memory, in every tensor.
  bool lanes_touch() const {
    const auto touch = [&](const auto& rows) {
      if constexpr (is_none_v<decltype(rows)>)
        return true;
      else
        return rows.stride[static_cast<std::size_t>(axis_)] == 1;
    };
    return spread([&](const auto&... r) { return (touch(r) && ...); }, pass_.inputs) &&
           spread([&](const auto&... r) { return (touch(r) && ...); }, pass_.outputs);
  }
  template <bool Packed, class T>
  EVENKEEL_HOST static V load_lane(const Cursor<T>& c, const Group& at, Index i) {
    if constexpr (Packed)
      return load<V>(c.data + i * c.stride);
    else
      return load_lanes<V>(c.data + i * c.stride, c.lane_stride, at.count);
  }
  template <bool>
  EVENKEEL_HOST static None load_lane(None, const Group&, Index) {
    return none;
  }
  template <bool Packed, class T>
  EVENKEEL_HOST static void store_lane(const Cursor<T>& c, const Group& at, Index i, const V& v) {
    if constexpr (Packed)
      store<V>(c.data + i * c.stride, v);
    else
      store_lanes<V>(c.data + i * c.stride, c.lane_stride, at.count, v);
  }

  template <bool Packed, class In>
  Start start_of(const In& x, const Group& at) const {
    const Index r = row_number(at), lane_rows = row_stride();
    Known known;
    if constexpr (!is_none_v<KnownRows>)
      for_each_field(known, [&](int k, V& value) {
        value = load_lanes<V>(pass_.known + k * pass_.grid.rows() + r, lane_rows, at.count);
      });
    const auto with_inputs = [&](Index i, const auto& f) EVENKEEL_INLINE_LAMBDA {
      return [&]<std::size_t... I>(std::index_sequence<I...>) EVENKEEL_INLINE_LAMBDA {
        return f(load_lane<Packed>(std::get<I>(x), at, i)...);
      }
      (std::index_sequence_for<X...>{});
    };
    const auto start_at = [&](Index i) EVENKEEL_INLINE_LAMBDA {
      return with_inputs(i, [&](const auto&... v) EVENKEEL_INLINE_LAMBDA { return math_.start(known, v...); });
    };
    Start start = start_at(0);
    if constexpr (averages_shift<Math>) {
      const auto counts_at = [&](Index i) EVENKEEL_INLINE_LAMBDA {
        return with_inputs(i, [&](const auto&... v) EVENKEEL_INLINE_LAMBDA { return counts_of(math_, v...); });
      };
      const Index values = shift_values<Math>(n_);
      V count = counts_at(0);
      for (Index i = 1; i < values; ++i) {
        start.shift += start_at(i).shift;
        count += counts_at(i);
      }
      start.shift = start.shift / max(count, splat<V>(1));
    }
    return start;
  }
  void keep(Row& row, const Group& at) const {
    const Index r = row_number(at), lane_rows = row_stride();
    if constexpr (!is_none_v<KeptRows>)
      for_each_field(row, [&](int k, const V& value) {
        store_lanes<V>(pass_.kept + k * pass_.grid.rows() + r, lane_rows, at.count, value);
      });
  }
  Index row_number(const Group& at) const {
    return (at.at[0] * pass_.grid.extent[1] + at.at[1]) * pass_.grid.extent[2] + at.at[2];
  }
  Index row_stride() const {
    return axis_ == 2 ? 1 : axis_ == 1 ? pass_.grid.extent[2] : pass_.grid.extent[1] * pass_.grid.extent[2];
  }

  const Pass& pass_;
  const Math math_;
  const Index n_;
  const int axis_;
  Features features_;
};

}  // namespace evenkeel::detail::kernels::EVENKEEL_KERNELS
