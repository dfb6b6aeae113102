/// The CPU loop for rows whose elements are neighbours in memory.

namespace evenkeel::detail::kernels::EVENKEEL_KERNELS {

template <class Pass>
class RowsAlong;

/// Software-pipelined: the sums of row r+1 are taken in the loop that writes row r, so the latency of one row's
/// statistics hides behind the other row's memory traffic.
///
/// A row that is no whole number of packs ends with a pack that overlaps the one before it. Its lanes that were already
/// counted have weight 0 in the sums and are simply written again; it is loaded before an in-place row is overwritten.
/// There is no scalar loop: a compiler contracts those differently from one place to the next, and a row would change
/// bits with its place in the batch. Rows shorter than a pack are left to RowsAcross.
template <class Math, class... X, class... P, class... Y, class KnownRows, class KeptRows>
class RowsAlong<RowPass<Math, std::tuple<X...>, std::tuple<P...>, std::tuple<Y...>, KnownRows, KeptRows>> {
  using Pass = RowPass<Math, std::tuple<X...>, std::tuple<P...>, std::tuple<Y...>, KnownRows, KeptRows>;
  using A = typename Math::Scalar;
  using V = Pack<A>;
  using Known = typename Math::template Known<A>;
  using Start = typename Math::template Start<A>;
  using Row = typename Math::template Row<A>;
  using Sums = Values<V, Math::sums>;
  using Features = FeatureSums<A, Math::feature_sums>;
  static constexpr int W = pack_size<A>;
  /// Sums that are taken side by side, since one addition waits for the one before it: as many as there are registers
  /// for, and the same for every math, so that norms that do the same have the same bits.
  static constexpr int links = EVENKEEL_KERNEL_BYTES == 64 ? 4 : 2;
  /// Values of a row whose feature terms are added, 16 lines of the cache, before as many outputs are written: a store
  /// that waits for its line holds up those behind it, so the two kinds take turns seldom.
  static constexpr Index group = 1024 / sizeof(A);
  static constexpr Index full_link = links * W * chain;  // values of a row that are added without a break
  static_assert(full_link % group == 0);
  static constexpr bool can_stream = all_stream<A>(static_cast<const std::tuple<Y...>*>(nullptr));

 public:
  /// Whether every tensor's rows are contiguous, and no shorter than a pack.
  static bool fits(const Pass& pass) {
    return pass.grid.length >= W && spread([&](const auto&... r) { return (contiguous(r) && ...); }, pass.inputs) &&
           spread([&](const auto&... r) { return (contiguous(r) && ...); }, pass.outputs);
  }

  /// Rows first..last-1. `memory` holds the block's feature sums, or `place` those of one chain of rows.
  static void run(const Pass& pass, Index first, Index last, A* memory, const typename Features::Place& place) {
    const Index n = pass.grid.length;
    RowsAlong(pass, last - first <= chain ? Features(memory, place, n) : Features(memory, n)).loop(first, last);
  }

 private:
  template <class T>
  static bool contiguous(const Rows<T>& rows) {
    return rows.length_stride == 1;
  }
  template <class T>
  static bool contiguous(const MaskRows<T>& rows) {
    return rows.length_stride == 0 || rows.length_stride == 1;
  }
  static bool contiguous(None) { return true; }

  RowsAlong(const Pass& pass, const Features& features) : pass_(pass), n_(pass.grid.length), features_(features) {
    const auto strides = [&](const auto& y) { return std::array{n_, y.stride[0], y.stride[1], y.stride[2]}; };
    const auto touch = [&](const auto&... y) { return pass.grid.flat() && ((y.stride[1] == n_) && ...); };
    const Index size = pass.grid.rows() * n_, together = spread(touch, pass.outputs) ? size : n_;
    if constexpr (can_stream)
      streams_ = wants_stream<A>(pass.inputs, pass.outputs, size, together, !is_none_v<KnownRows>, strides);
  }

  /// What the inner loops read besides rows. A copy in locals: a store to an output could change anything that is
  /// reached through a pointer, so members would be loaded again for every pack.
  struct Local {
    Math math;
    std::tuple<P...> parameters;
    Features features;
    bool streams;
  };

  /// A row of length n: pairs of packs up to `body`, one more pack up to `full`, and the tail.
  struct Extent {
    Index body, full;
    V mask;  // of the tail's lanes, 1 for those that no pack before it has counted
  };
  Extent extent() const {
    const Index full = n_ / W * W;
    return {n_ / (2 * W) * (2 * W), full, lane_mask<V>(W - static_cast<int>(n_ - full), W)};
  }

  EVENKEEL_FLATTEN void loop(Index first, Index last) {
    Local local{pass_.math, pass_.parameters, features_, streams_};
    bool counted = false;
    for (Index r = first; r < last;) {
      const Alone alone = this->alone(local, r, counted);
      local.features.unwritten = false;
      r = alone.settled ? written(local, alone.row, r, last, counted) : r + 1;
    }
    local.features.flush();
    if (streams_) end_stream();
  }

  /// Writes row r, whose values are given, and the rows after it up to one that is not settled; returns that one, or
  /// `last`. `counted` tells whether its feature terms are counted already.
  EVENKEEL_HOST Index written(Local& local, Row row, Index r, Index last, bool& counted) const {
    const Extent extent = this->extent();
    const bool flat = pass_.grid.flat();
    const KeptRows kept = pass_.kept;
    const Index rows = pass_.grid.rows();
    auto x = inputs(r), next = x;
    auto y = outputs(r);
    keep(kept, rows, row, r);
    counted = false;
    Index since_flush = 0;
    for (++r; r < last; ++r) {
      next = flat ? after(next, pass_.inputs) : inputs(r);
      const Start start = start_of(next, r);
      if (!is_ready(local.math, start)) [[unlikely]]
        break;
      const auto last_packs = load_tail(x);
      Sums sums;
      set_zero(sums);
      body_loop<Task::both>(local, sums, start, next, row, x, y, extent.body);
      if (extent.body < n_) add_rest<false>(local, sums, start, next, extent);
      Row next_row = local.math.finish(total(sums), start);
      if (extent.body < n_) write_rest(local, row, x, last_packs, y, extent);
      if (Math::feature_sums > 0 && ++since_flush == chain) local.features.flush(), since_flush = 0;
      if (!is_settled(local.math, start, next_row)) [[unlikely]] {
        counted = true;
        return r;
      }
      keep(kept, rows, next_row, r);
      row = next_row;
      x = next;
      y = flat ? after(y, pass_.outputs) : outputs(r);
    }
    Sums none_yet;
    const auto last_packs = load_tail(x);
    body_loop<Task::outputs>(local, none_yet, Start{}, x, row, x, y, extent.body);
    write_rest(local, row, x, last_packs, y, extent);
    return r;
  }

  /// A row's values, or that it is not settled and was therefore done with care, from its values to its outputs.
  struct Alone {
    Row row;
    bool settled;
  };
  /// Row r without writing one: the first row of a block, and a row that was not settled. Takes a copy, since what a
  /// call can see has to stay in memory.
  EVENKEEL_NOINLINE EVENKEEL_FLATTEN Alone alone(Local local, Index r, bool counted) const {
    const auto x = inputs(r);
    if (!(counted && Math::feature_sums > 0)) {
      bool restarted = false;
      for (Start start = start_of(x, r); is_ready(local.math, start);) {
        const Row row = row_values(local, start, x, r);
        counted = true;
        local.features.unwritten = false;
        if (is_settled(local.math, start, row) || (restarted && !Checked<Math>)) return {row, true};
        if (!CanRestart<Math> || restarted) break;
        if constexpr (CanRestart<Math>) {
          static_assert(Math::feature_sums == 0, "evenkeel: a restart would count feature sums twice");
          start = local.math.restart(start, row);
          restarted = true;
        }
      }
    }
    if constexpr (Checked<Math>) {
      local.features.clear();
      CarefulRow<Pass>::run(pass_, r, counted ? nullptr : &local.features);
    }
    return {Row{}, false};
  }
  template <class In>
  EVENKEEL_HOST Row row_values(Local& local, const Start& start, const In& x, Index r) const {
    const Extent extent = this->extent();
    Sums sums;
    set_zero(sums);
    body_loop<Task::first_sums>(local, sums, start, x, Row{}, x, outputs(r), extent.body);
    if (extent.body < n_) add_rest<true>(local, sums, start, x, extent);
    return local.math.finish(total(sums), start);
  }

  /// What a loop over packs does: sums of the next row, outputs of this one.
  enum class Task { first_sums, sums, outputs, both };

  /// Whole pairs of packs.
  template <Task task, class Next, class In, class Out>
  EVENKEEL_HOST static void body_loop(Local& local, Sums& sums, const Start& start, const Next& next, const Row& row,
                                      const In& x, const Out& y, Index body) {
    constexpr bool in_groups = task == Task::both && Math::feature_sums > 0;
    const Index step = !in_groups ? full_link : local.streams ? 4 * W : group;
    Links link;
    Sums full;
    set_zero(full);
    for (Index i = 0; i < body; i += step) {
      const Index stop = std::min(body, i + step);
      if constexpr (in_groups) {
        turns<Task::sums>(local, link, start, next, row, x, y, i, stop);
        turns<Task::outputs>(local, link, start, next, row, x, y, i, stop);
      } else {
        turns<task>(local, link, start, next, row, x, y, i, stop);
      }
      if (task != Task::outputs && stop % full_link == 0) [[unlikely]] {
        add(full, link.total());
        link = Links();
      }
    }
    if constexpr (task != Task::outputs) {
      sums = link.total();
      if (body >= full_link) add(sums, full);
    }
  }

  /// Not an array, which g++ would keep in memory.
  struct Links {
    Sums even, odd, other_even, other_odd;
    EVENKEEL_HOST Links() { set_zero(even), set_zero(odd), set_zero(other_even), set_zero(other_odd); }
    EVENKEEL_HOST Sums total() {
      if constexpr (links == 4) add(even, other_even), add(odd, other_odd);
      add(even, odd);
      return even;
    }
  };

  /// Packs first..last-1, two pairs a turn.
  template <Task task, class Next, class In, class Out>
  EVENKEEL_HOST static void turns(Local& local, Links& link, const Start& start, const Next& next, const Row& row,
                                  const In& x, const Out& y, Index first, Index last) {
    Index i = first;
    for (; i + 4 * W <= last; i += 4 * W) {
      pair<task>(local, link.even, link.odd, start, next, row, x, y, i);
      if constexpr (links == 4)
        pair<task>(local, link.other_even, link.other_odd, start, next, row, x, y, i + 2 * W);
      else
        pair<task>(local, link.even, link.odd, start, next, row, x, y, i + 2 * W);
    }
    if (i < last) pair<task>(local, link.even, link.odd, start, next, row, x, y, i);
  }

  template <Task task, class Next, class In, class Out>
  EVENKEEL_HOST static void pair(Local& local, Sums& even, Sums& odd, const Start& start, const Next& next,
                                 const Row& row, const In& x, const Out& y, Index i) {
    if constexpr (task != Task::outputs) {
      accumulate<task == Task::first_sums>(local, even, start, next, i);
      accumulate<task == Task::first_sums>(local, odd, start, next, i + W);
    }
    if constexpr (task == Task::outputs || task == Task::both) {
      write(local, row, x, y, i);
      write(local, row, x, y, i + W);
    }
  }

  /// The odd pack and the tail.
  template <bool First, class Next>
  EVENKEEL_HOST void add_rest(Local& local, Sums& sums, const Start& start, const Next& next,
                              const Extent& extent) const {
    if (extent.body < extent.full) accumulate<First>(local, sums, start, next, extent.body);
    if (extent.full == n_) return;
    Sums last;
    set_zero(last);
    const auto packs = load_tail(next);
    const auto terms = accumulate_packs(local, last, start, packs);
    add_masked(sums, last, extent.mask);
    if constexpr (Math::feature_sums > 0) {
      Values<V, Math::feature_sums> masked;
      set_zero(masked);
      add_masked(masked, terms, extent.mask);
      local.features.template add<false>(n_ - W, masked);
    }
  }
  template <class In, class Packs, class Out>
  EVENKEEL_HOST void write_rest(const Local& local, const Row& row, const In& x, const Packs& last_packs, const Out& y,
                                const Extent& extent) const {
    if (extent.body < extent.full) write(local, row, x, y, extent.body);
    if (extent.full < n_) write_tail(local, row, last_packs, y);
  }

  template <bool First, class In>
  EVENKEEL_HOST static void accumulate(Local& local, Sums& sums, const Start& start, const In& x, Index i) {
    Values<V, Math::feature_sums> terms;
    [&]<std::size_t... I, std::size_t... J>(std::index_sequence<I...>, std::index_sequence<J...>)
        EVENKEEL_INLINE_LAMBDA {
      local.math.accumulate(sums, terms, start, load_at<V>(std::get<I>(x), i)...,
                            load_at<V>(std::get<J>(local.parameters), i)...);
    }
    (std::index_sequence_for<X...>{}, std::index_sequence_for<P...>{});
    local.features.template add<First>(i, terms);
  }

  template <class In, class Out>
  EVENKEEL_HOST static void write(const Local& local, const Row& row, const In& x, const Out& y, Index i) {
    Values<V, Math::outputs> out;
    [&]<std::size_t... I, std::size_t... J, std::size_t... K>(std::index_sequence<I...>, std::index_sequence<J...>,
                                                              std::index_sequence<K...>) EVENKEEL_INLINE_LAMBDA {
      local.math.write(out, row, load_at<V>(std::get<I>(x), i)..., load_at<V>(std::get<J>(local.parameters), i)...);
      if (can_stream && local.streams)
        (stream<V>(std::get<K>(y) + i, out[K]), ...);
      else
        (store<V>(std::get<K>(y) + i, out[K]), ...);
    }
    (std::index_sequence_for<X...>{}, std::index_sequence_for<P...>{}, std::index_sequence_for<Y...>{});
  }

  template <class... T>
  EVENKEEL_HOST auto load_tail(const std::tuple<T...>& x) const {
    return [&]<std::size_t... I>(std::index_sequence<I...>) EVENKEEL_INLINE_LAMBDA {
      return std::tuple(load_at<V>(std::get<I>(x), n_ - W)...);
    }
    (std::index_sequence_for<T...>{});
  }
  template <class Packs>
  EVENKEEL_HOST auto accumulate_packs(const Local& local, Sums& sums, const Start& start, const Packs& packs) const {
    Values<V, Math::feature_sums> terms;
    [&]<std::size_t... I, std::size_t... J>(std::index_sequence<I...>, std::index_sequence<J...>)
        EVENKEEL_INLINE_LAMBDA {
      local.math.accumulate(sums, terms, start, std::get<I>(packs)...,
                            load_at<V>(std::get<J>(local.parameters), n_ - W)...);
    }
    (std::index_sequence_for<X...>{}, std::index_sequence_for<P...>{});
    return terms;
  }
  template <class Packs, class Out>
  EVENKEEL_HOST void write_tail(const Local& local, const Row& row, const Packs& packs, const Out& y) const {
    Values<V, Math::outputs> out;
    [&]<std::size_t... I, std::size_t... J, std::size_t... K>(std::index_sequence<I...>, std::index_sequence<J...>,
                                                              std::index_sequence<K...>) EVENKEEL_INLINE_LAMBDA {
      local.math.write(out, row, std::get<I>(packs)..., load_at<V>(std::get<J>(local.parameters), n_ - W)...);
      if (can_stream && local.streams)  // as the pack that it overlaps, whose line would have to be fetched again
        (stream<V>(std::get<K>(y) + n_ - W, out[K]), ...);
      else
        (store<V>(std::get<K>(y) + n_ - W, out[K]), ...);
    }
    (std::index_sequence_for<X...>{}, std::index_sequence_for<P...>{}, std::index_sequence_for<Y...>{});
  }

  template <class In>
  EVENKEEL_HOST Start start_of(const In& x, Index r) const {
    Known known{};
    if constexpr (!is_none_v<KnownRows>)
      for_each_field(known, [&](int k, A& value) { value = pass_.known[k * pass_.grid.rows() + r]; });
    return [&]<std::size_t... I>(std::index_sequence<I...>) EVENKEEL_INLINE_LAMBDA {
      if constexpr (averages_shift<Math>) {
        const auto starts = pass_.math.start(typename Math::template Known<V>{}, load_at<V>(std::get<I>(x), 0)...);
        const A count = lane_sum(counts_of(pass_.math, load_at<V>(std::get<I>(x), 0)...));
        return Start{lane_sum(starts.shift) / max(count, A(1))};
      } else {
        return pass_.math.start(known, load_at<A>(std::get<I>(x), 0)...);
      }
    }
    (std::index_sequence_for<X...>{});
  }

  EVENKEEL_HOST static void keep(const KeptRows& kept, Index rows, Row& row, Index r) {
    if constexpr (!is_none_v<KeptRows>) for_each_field(row, [&](int k, const A& value) { kept[k * rows + r] = value; });
  }

  template <class T>
  EVENKEEL_HOST T* row_of(const Rows<T>& rows, Index r) const {
    return element_at(rows, pass_.grid, r, 0);
  }
  template <class T>
  EVENKEEL_HOST MaskRow<T> row_of(const MaskRows<T>& rows, Index r) const {
    return {element_at(rows, pass_.grid, r, 0), rows.length_stride};
  }
  EVENKEEL_HOST None row_of(None, Index) const { return none; }
  template <class T>
  EVENKEEL_HOST static T* row_after(T* row, const Rows<T>& rows) {
    return row + rows.stride[1];
  }
  template <class T>
  EVENKEEL_HOST static MaskRow<T> row_after(const MaskRow<T>& row, const MaskRows<T>& rows) {
    return {row.data + rows.stride[1], row.stride};
  }
  EVENKEEL_HOST static None row_after(None, None) { return none; }
  template <class Pointers, class... T>
  EVENKEEL_HOST static Pointers after(const Pointers& row, const std::tuple<T...>& rows) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) EVENKEEL_INLINE_LAMBDA {
      return Pointers(row_after(std::get<I>(row), std::get<I>(rows))...);
    }
    (std::index_sequence_for<T...>{});
  }
  EVENKEEL_HOST auto inputs(Index r) const {
    return [&]<std::size_t... I>(std::index_sequence<I...>) EVENKEEL_INLINE_LAMBDA {
      return std::tuple(row_of(std::get<I>(pass_.inputs), r)...);
    }
    (std::index_sequence_for<X...>{});
  }
  EVENKEEL_HOST auto outputs(Index r) const {
    return [&]<std::size_t... I>(std::index_sequence<I...>) EVENKEEL_INLINE_LAMBDA {
      return std::tuple(row_of(std::get<I>(pass_.outputs), r)...);
    }
    (std::index_sequence_for<Y...>{});
  }

  const Pass& pass_;
  const Index n_;
  const Features features_;
  bool streams_ = false;
};

}  // namespace evenkeel::detail::kernels::EVENKEEL_KERNELS
