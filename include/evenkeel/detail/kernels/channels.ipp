/// The CPU loops over channels: see channel_math.hpp.

namespace evenkeel::detail::kernels::EVENKEEL_KERNELS {

template <class Pass>
class Channels;

template <class Math, class... X, class... P, class... Y, class KnownCells, class KeptCells>
class Channels<ChannelPass<Math, std::tuple<X...>, std::tuple<P...>, std::tuple<Y...>, KnownCells, KeptCells>> {
  using Pass = ChannelPass<Math, std::tuple<X...>, std::tuple<P...>, std::tuple<Y...>, KnownCells, KeptCells>;
  using A = typename Math::Scalar;
  using V = Pack<A>;
  static constexpr int W = pack_size<A>;
  /// Packs of channels that are worked on together: two lines of a cache and more.
  static constexpr int block_packs = 4;
  /// Blocks that are gone through side by side, some elements of each at a time, where a cell has many elements: each is
  /// on another page of memory, and a pass over one block alone meets them all.
  static constexpr int most_together = 16;
  static constexpr Index many_elements = 1024;
  /// What a unit of several short cells may have: less than half of a first cache, in inputs and outputs of float.
  static constexpr Index values_of_unit = 1500;
  static constexpr bool can_stream = all_stream<A>(static_cast<const std::tuple<Y...>*>(nullptr));
  static constexpr bool is_gradient = [] {
    if constexpr (requires { Math::scaled_output; })
      return Math::scaled_output;
    else
      return false;
  }();

 public:
  /// `parts`: how many the channels should at least fall into.
  explicit Channels(const Pass& pass, Index parts = 1) : pass_(pass), grid_(pass.grid) {
    sort_axes();
    along_ = touches([this](const auto& t) { return t.stride[axis_[3]]; }, false) && run() > 1;
    packed_ = touches([](const auto& t) { return t.channel_stride; }, true);
    if (packed_ && grid_.count() >= many_elements)
      together_ = std::clamp<Index>(grid_.channels / (block_packs * W * parts), 1, most_together);
    const auto strides = [this](const auto& y) {
      const Index inner = along_ ? run() : y.stride[axis_[3]], channel = along_ ? y.channel_stride : 0;
      return std::array{y.stride[axis_[0]], y.stride[axis_[1]], y.stride[axis_[2]], y.sample_stride, inner, channel};
    };
    if constexpr (can_stream)
      streams_ = (along_ || packed_) && wants_stream<A>(pass.inputs, pass.outputs, grid_.cells() * grid_.count(),
                                                        along_ ? run() : block_packs * W, is_gradient, strides);
  }

  /// Channels that one unit of work covers, a multiple of `group`: where packs run over channels, several whole packs.
  Index unit(Index group) const {
    if (along_) {
      // Several short ones: what comes between sums and outputs of one hides behind that of the others.
      const Index groups = std::clamp<Index>(values_of_unit / std::max<Index>(grid_.count() * group, 1), 1, 16);
      return group * std::min(groups, (grid_.channels + group - 1) / group);
    }
    const Index block = together_ * block_packs * W, step = std::lcm(group, Index(W));
    return std::min(grid_.channels, (block + step - 1) / step * step);
  }

  /// The values of the cells of channels first..last-1 of one sample.
  void sums(Index sample, Index first, Index last) const {
    if (grid_.count() == 0) return sums_of_nothing(sample, first, last);
    if (along_)
      for (Index c = first; c < last; ++c) sums_along(sample, c);
    else
      in_blocks(first, last, [&](auto packs, const Block& block) { sums_across<packs>(sample, block); });
  }
  void write(Index sample, Index first, Index last) const {
    if (grid_.count() == 0) return;
    if (along_)
      for (Index c = first; c < last; ++c) write_along(sample, c);
    else
      in_blocks(first, last, [&](auto packs, const Block& block) { write_across<packs>(sample, block); });
  }
  /// Before writes: those of a cell fetch what lies `channels` further on and is summed next. Past the cache alone, where
  /// reading and writing would take turns.
  void fetch_ahead(Index channels) { ahead_ = channels; }
  /// Behind writes, on their thread.
  void finish() const {
    if (streams_) end_stream();
  }

 private:
  using Sums = Values<V, Math::sums>;
  using Total = Values<double, Math::sums>;
  /// The sums of a pack of cells.
  struct Totals {
    alignas(Pack<double>) double sum[Math::sums > 0 ? Math::sums : 1][W];

    EVENKEEL_HOST void add(const Sums& sums) {
      A lane[W];
      unroll<Math::sums>([&](auto k) EVENKEEL_INLINE_LAMBDA {
        store<V>(lane, sums[k]);
        for (int j = 0; j < W; j += pack_size<double>) {
          using D = Pack<double>;
          store<D>(sum[k] + j, D(load<D>(sum[k] + j) + load<D>(lane + j)));
        }
      });
    }
    Total of(int j) const {
      Total total;
      for (int k = 0; k < Math::sums; ++k) total[k] = sum[k][j];
      return total;
    }
    Values<Pack<double>, Math::sums> part(int p) const {
      Values<Pack<double>, Math::sums> total;
      unroll<Math::sums>([&](auto k) { total[k] = load<Pack<double>>(sum[k] + p * pack_size<double>); });
      return total;
    }
  };
  template <class S>
  using Known = typename Math::template Known<S>;
  template <class S>
  using Start = typename Math::template Start<S>;
  template <class S>
  using Row = typename Math::template Row<S>;

  /// The reduced axes, innermost last: the one whose elements lie closest in the first input.
  void sort_axes() {
    const auto& first = std::get<0>(pass_.inputs);
    std::sort(axis_.begin(), axis_.end(), [&](std::size_t a, std::size_t b) {
      if ((grid_.extent[a] > 1) != (grid_.extent[b] > 1)) return grid_.extent[a] == 1;
      return first.stride[a] > first.stride[b];
    });
  }
  Index run() const { return grid_.extent[axis_[3]]; }

  /// Whether a stride is 1 in every tensor; where `repeated` allows it, 0 in inputs.
  template <class F>
  bool touches(const F& stride, bool repeated) const {
    const auto one = [&]<class T>(const T& t, bool zero) {
      if constexpr (is_none_v<T>)
        return true;
      else
        return stride(t) == 1 || (zero && stride(t) == 0);
    };
    return spread([&](const auto&... t) { return (one(t, repeated) && ...); }, pass_.inputs) &&
           spread([&](const auto&... t) { return (one(t, false) && ...); }, pass_.outputs);
  }

  template <class T>
  static T* start_at(const Cells<T>& t, Index sample, Index channel) {
    return t.data + sample * t.sample_stride + channel * t.channel_stride;
  }

  /// The first value of a cell, or the mean of a few, as a scalar or as a pack of `count` channels.
  template <class S, class T>
  S first_values(const Cells<T>& t, Index sample, Index channel, int count) const {
    const auto at = [&](Index i) -> S {
      const T* const p = start_at(t, sample, channel) + i * t.stride[axis_[3]];
      if constexpr (std::is_same_v<S, A>)
        return static_cast<A>(*p);
      else
        return lanes_at(p, t.channel_stride, count);
    };
    const Index values = shift_values<Math>(run());
    S sum = at(0);
    for (Index i = 1; i < values; ++i) sum += at(i);
    return sum * splat<S>(A(1) / static_cast<A>(values));
  }

  /// One tensor along a line of elements, or at one element of it.
  template <class T>
  struct Line {
    T* data;
    Index stride;  // along the line
    Index channel_stride;
  };
  template <class T>
  Line<T> line(const Cells<T>& t, Index sample, Index channel, Index i, Index j, Index k) const {
    return {start_at(t, sample, channel) + i * t.stride[axis_[0]] + j * t.stride[axis_[1]] + k * t.stride[axis_[2]],
            t.stride[axis_[3]], t.channel_stride};
  }
  None line(None, Index, Index, Index, Index, Index) const { return none; }
  template <class T>
  auto lines(const T& tensors, Index sample, Index channel, Index i, Index j, Index k) const {
    return spread([&](const auto&... t) { return std::tuple(line(t, sample, channel, i, j, k)...); }, tensors);
  }
  template <class F>
  EVENKEEL_HOST void for_each_line(const F& f) const {
    for (Index i = 0; i < grid_.extent[axis_[0]]; ++i)
      for (Index j = 0; j < grid_.extent[axis_[1]]; ++j)
        for (Index k = 0; k < grid_.extent[axis_[2]]; ++k) f(i, j, k);
  }

  void sums_of_nothing(Index sample, Index first, Index last) const {
    for (Index c = first; c < last; ++c) {
      auto row = pass_.math.finish(Total{}, Start<A>{});
      keep(row, sample, c);
    }
  }

  // Along: one cell, packs of neighbouring elements.

  void sums_along(Index sample, Index channel) const {
    const auto first = [&](const auto& t) {
      if constexpr (is_none_v<decltype(t)>)
        return none;
      else
        return first_values<A>(t, sample, channel, 1);
    };
    Start<A> start = spread(
        [&](const auto&... t) { return pass_.math.start(known_of<A>(sample, channel, 1), first(t)...); }, pass_.inputs);
    if constexpr (CheckedSums)
      if (!Math::ready(start)) return careful_sums(sample, channel);
    auto row = pass_.math.finish(total_along(start, sample, channel), start);
    if constexpr (CheckedSums)
      if (!Math::settled(row)) return careful_sums(sample, channel);
    if constexpr (CanRestartCell) {
      const Start<A> better = pass_.math.restart(start, row);
      if (!same_fields(better, start)) row = pass_.math.finish(total_along(better, sample, channel), better);
    }
    keep(row, sample, channel);
  }

  /// Lines are read four packs at a time, since one pack's additions wait for each other. A line that is no whole
  /// number of packs ends with a pack that overlaps the one before it.
  EVENKEEL_NOINLINE EVENKEEL_FLATTEN Total total_along(const Start<A> start, Index sample, Index channel) const {
    const Index run = this->run(), whole = run / W * W;
    const bool overlaps = run >= W;
    const int rest = static_cast<int>(run - whole);
    const V mask = overlaps ? lane_mask<V>(W - rest, W) : lane_mask<V>(0, rest);
    const Math math = pass_.math;
    const auto parameters = parameters_at<A>(channel, 1);
    Total wide{};
    Sums a, b, c, d;
    set_zero(a), set_zero(b), set_zero(c), set_zero(d);
    Index links = 0;
    const auto flush = [&]() EVENKEEL_INLINE_LAMBDA {
      add(a, b), add(c, d), add(a, c);
      unroll<Math::sums>([&](auto k) EVENKEEL_INLINE_LAMBDA { wide[k] += static_cast<double>(lane_sum(a[k])); });
      set_zero(a), set_zero(b), set_zero(c), set_zero(d);
      links = 0;
    };
    for_each_line([&](Index i, Index j, Index k) EVENKEEL_INLINE_LAMBDA {
      const auto x = lines(pass_.inputs, sample, channel, i, j, k);
      const auto take = [&](Sums& sums, Index at) EVENKEEL_INLINE_LAMBDA {
        accumulate(math, sums, start, x, parameters,
                   [at](const auto& t) EVENKEEL_INLINE_LAMBDA { return load<V>(t.data + at); });
      };
      Index at = 0;
      while (whole - at >= 4 * W) {
        const Index end = std::min(whole, at + (chain - links) * 4 * W);
        links += (end - at) / (4 * W);
        for (; at + 4 * W <= end; at += 4 * W) take(a, at), take(b, at + W), take(c, at + 2 * W), take(d, at + 3 * W);
        if (links >= chain) flush();
        if (end == whole) break;
      }
      if (at < whole) take(a, at), at += W;
      if (at < whole) take(b, at), at += W;
      if (at < whole) take(c, at), at += W;
      if (rest > 0) {
        Sums last;
        set_zero(last);
        accumulate(math, last, start, x, parameters, [&](const auto& t) {
          return overlaps ? load<V>(t.data + run - W) : load_lanes<V>(t.data, 1, rest);
        });
        unroll<Math::sums>(
            [&](auto s) EVENKEEL_INLINE_LAMBDA { d[s] += select_less(splat<V>(0), mask, last[s], splat<V>(0)); });
      }
      if (++links >= chain) flush();
    });
    flush();
    return wide;
  }

  EVENKEEL_NOINLINE EVENKEEL_FLATTEN void write_along(Index sample, Index channel) const {
    const Index run = this->run(), whole = run / W * W;
    const int rest = static_cast<int>(run - whole);
    const Math math = pass_.math;
    const bool streams = streams_;
    const Index ahead = ahead_;
    const Row<A> row = row_of<A>(sample, channel, 1);
    if constexpr (CheckedWrite)
      if (!Math::ready(row)) return careful_write(sample, channel);
    const auto parameters = parameters_at<A>(channel, 1);
    for_each_line([&](Index i, Index j, Index k) EVENKEEL_INLINE_LAMBDA {
      const auto x = lines(pass_.inputs, sample, channel, i, j, k);
      const auto y = lines(pass_.outputs, sample, channel, i, j, k);
      const auto loaded = [&](Index at) EVENKEEL_INLINE_LAMBDA {
        return spread(
            [&](const auto&... t) EVENKEEL_INLINE_LAMBDA {
              return std::tuple(
                  load_or_none(t, [at](const auto& l) EVENKEEL_INLINE_LAMBDA { return load<V>(l.data + at); })...);
            },
            x);
      };
      const auto put = [&](const auto& packs, Index at) EVENKEEL_INLINE_LAMBDA {
        write_packs(math, row, packs, parameters, y, [at, streams](const auto& t, const V& v) EVENKEEL_INLINE_LAMBDA {
          if (can_stream && streams)
            stream<V>(t.data + at, v);
          else
            store<V>(t.data + at, v);
        });
      };
      if (whole == 0) {
        const auto packs = spread(
            [&](const auto&... t) {
              return std::tuple(load_or_none(t, [&](const auto& l) { return load_lanes<V>(l.data, 1, rest); })...);
            },
            x);
        write_packs(math, row, packs, parameters, y,
                    [&](const auto& t, const V& v) { store_lanes<V>(t.data, 1, rest, v); });
        return;
      }
      const auto tail = loaded(run - W);  // before an in-place line is overwritten
      for (Index at = 0; at < whole; at += W) {
        if (can_stream && streams && ahead > 0) fetch(x, at, ahead);
        put(loaded(at), at);
      }
      if (rest > 0) put(tail, run - W);
    });
  }

  /// To the second cache. Behind the last channel it is an address like any other.
  template <class... L>
  EVENKEEL_HOST static void fetch(const std::tuple<L...>& lines, Index at, Index channels) {
    const auto one = [&](const auto& l) EVENKEEL_INLINE_LAMBDA {
      if constexpr (!is_none_v<decltype(l)>) {
        const auto apart = static_cast<std::uintptr_t>(channels * l.channel_stride) * sizeof(*l.data);
        __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(l.data + at) + apart), 0, 2);
      }
    };
    spread([&](const auto&... l) EVENKEEL_INLINE_LAMBDA { (one(l), ...); }, lines);
  }

  // Across: packs of neighbouring channels, or of channels at any stride.

  /// Neighbouring blocks of channels that are gone through together, each of packs that have `count` channels each.
  struct Block {
    Index channel, step;
    int blocks, count;
  };
  template <class F>
  void in_blocks(Index first, Index last, const F& f) const {
    constexpr Index step = block_packs * W;
    Index c = first;
    if (packed_)
      for (Index blocks; (blocks = std::min<Index>((last - c) / step, together_)) > 0; c += blocks * step)
        f(std::integral_constant<int, block_packs>{}, Block{c, step, static_cast<int>(blocks), W});
    for (; c < last; c += W)
      f(std::integral_constant<int, 1>{}, Block{c, W, 1, static_cast<int>(std::min<Index>(W, last - c))});
  }
  /// Of a line: elements first..last-1, few enough to be added up without a break.
  struct Part {
    Index i, j, k, first, last;
  };
  template <class F>
  void for_each_part(const F& f) const {
    for_each_line([&](Index i, Index j, Index k) {
      for (Index first = 0; first < run(); first += chain) f(Part{i, j, k, first, std::min(run(), first + chain)});
    });
  }

  template <int Packs>
  EVENKEEL_FLATTEN void sums_across(Index sample, const Block& block) const {
    Start<V> start[most_together][Packs];
    Totals totals[most_together][Packs];
    const auto channel_of = [&block](int b) { return block.channel + b * block.step; };
    for (int b = 0; b < block.blocks; ++b) {
      start_across<Packs>(start[b], sample, channel_of(b), block.count);
      std::fill_n(totals[b], Packs, Totals{});
    }
    for_each_part([&](const Part& part) {
      for (int b = 0; b < block.blocks; ++b)
        total_across<Packs>(totals[b], start[b], sample, channel_of(b), block.count, part);
    });
    for (int b = 0; b < block.blocks; ++b)
      if (!finish_packs<Packs>(totals[b], start[b], sample, channel_of(b), block.count))
        finish_lanes<Packs>(totals[b], start[b], sample, channel_of(b), block.count);
  }
  template <int Packs>
  void start_across(Start<V> (&start)[Packs], Index sample, Index channel, int count) const {
    unroll<Packs>([&](auto b) {
      const Index here = channel + b * W;
      const auto first = [&](const auto& t) {
        if constexpr (is_none_v<decltype(t)>)
          return none;
        else
          return first_values<V>(t, sample, here, count);
      };
      start[b] =
          spread([&](const auto&... t) { return pass_.math.start(known_of<V>(sample, here, count), first(t)...); },
                 pass_.inputs);
    });
  }
  /// Cell by cell, with a second start where the first was a bad one.
  template <int Packs>
  void finish_lanes(Totals (&totals)[Packs], Start<V> (&start)[Packs], Index sample, Index channel, int count) const {
    using Finished = decltype(pass_.math.finish(Total{}, Start<A>{}));
    Finished rows[Packs][W];
    bool again = false;
    for (int b = 0; b < Packs; ++b)
      for (int j = 0; j < count; ++j) {
        const Start<A> lane = lane_of(start[b], j);
        rows[b][j] = pass_.math.finish(totals[b].of(j), lane);
        if constexpr (CanRestartCell) {
          const Start<A> better = pass_.math.restart(lane, rows[b][j]);
          if (!same_fields(better, lane)) again = true, set_lane(start[b], j, better);
        }
      }
    if (again) {
      std::fill_n(totals, Packs, Totals{});
      for_each_part([&](const Part& part) { total_across<Packs>(totals, start, sample, channel, count, part); });
      for (int b = 0; b < Packs; ++b)
        for (int j = 0; j < count; ++j) rows[b][j] = pass_.math.finish(totals[b].of(j), lane_of(start[b], j));
    }
    for (int b = 0; b < Packs; ++b)
      for (int j = 0; j < count; ++j) {
        const Index here = channel + b * W + j;
        if constexpr (CheckedSums)
          if (!Math::ready(lane_of(start[b], j)) || !Math::settled(rows[b][j])) {
            careful_sums(sample, here);
            continue;
          }
        keep(rows[b][j], sample, here);
      }
  }

  /// The values of whole packs of cells, where none of them needs more than that; else false, with nothing kept.
  template <int Packs>
  EVENKEEL_FLATTEN bool finish_packs(const Totals (&totals)[Packs], const Start<V> (&start)[Packs], Index sample,
                                     Index channel, int count) const {
    using D = Pack<double>;
    constexpr int parts = W / D::size;
    if constexpr (!is_none_v<KeptCells> && requires { pass_.math.finish(Values<D, Math::sums>{}, Start<D>{}); }) {
      if (count < W) return false;
      decltype(pass_.math.finish(Values<D, Math::sums>{}, Start<D>{})) rows[Packs][parts];
      for (int b = 0; b < Packs; ++b) {
        if constexpr (CheckedSums)
          if (!Math::ready(start[b])) return false;
        for (int p = 0; p < parts; ++p) {
          rows[b][p] = pass_.math.finish(totals[b].part(p), part_of(start[b], p));
          if (!Math::settled(rows[b][p])) return false;
        }
      }
      for (int b = 0; b < Packs; ++b)
        for (int p = 0; p < parts; ++p)
          for_each_field(rows[b][p], [&](int k, const D& value) {
            store<D>(at_cell(pass_.kept, k, sample, channel + b * W + p * D::size), value);
          });
      return true;
    } else {
      return false;
    }
  }
  static Start<Pack<double>> part_of(Start<V> start, int part) {
    Start<Pack<double>> wide{};
    A lane[6][W];
    for_each_field(start, [&](int k, const V& value) { store<V>(lane[k], value); });
    for_each_field(wide, [&](int k, auto& value) { value = load<Pack<double>>(lane[k] + part * pack_size<double>); });
    return wide;
  }

  template <int Packs>
  EVENKEEL_NOINLINE EVENKEEL_FLATTEN void total_across(Totals (&totals)[Packs], const Start<V> (&start)[Packs],
                                                       Index sample, Index channel, int count, const Part& part) const {
    const Math math = pass_.math;
    const auto parameters = parameter_packs<Packs>(channel, count);
    Start<V> starts[Packs];
    std::copy_n(start, Packs, starts);
    Sums sums[Packs];
    unroll<Packs>([&](auto b) EVENKEEL_INLINE_LAMBDA { set_zero(sums[b]); });
    auto x = at_element(lines(pass_.inputs, sample, channel, part.i, part.j, part.k), part.first);
    for (Index e = part.first; e < part.last; ++e) {
      unroll<Packs>([&](auto b) EVENKEEL_INLINE_LAMBDA {
        accumulate(math, sums[b], starts[b], x, parameters[b],
                   [&](const auto& t) EVENKEEL_INLINE_LAMBDA { return channels_at<Packs>(t, b * W, count); });
      });
      step(x);
    }
    unroll<Packs>([&](auto b) EVENKEEL_INLINE_LAMBDA { totals[b].add(sums[b]); });
  }

  template <int Packs>
  void write_across(Index sample, const Block& block) const {
    bool ready[most_together];
    const auto channel_of = [&block](int b) { return block.channel + b * block.step; };
    for (int b = 0; b < block.blocks; ++b) {
      ready[b] = true;
      if constexpr (CheckedWrite) {
        for (int p = 0; p < Packs; ++p)
          ready[b] = ready[b] && Math::ready(row_of<V>(sample, channel_of(b) + p * W, block.count));
        if (!ready[b]) write_lanes(sample, channel_of(b), Packs > 1 ? Packs * W : block.count);
      }
    }
    for_each_part([&](const Part& part) {
      for (int b = 0; b < block.blocks; ++b)
        if (ready[b]) write_part<Packs>(sample, channel_of(b), block.count, part);
    });
  }
  template <int Packs>
  EVENKEEL_NOINLINE EVENKEEL_FLATTEN void write_part(Index sample, Index channel, int count, const Part& part) const {
    const Math math = pass_.math;
    const bool streams = streams_;
    const auto parameters = parameter_packs<Packs>(channel, count);
    Row<V> rows[Packs];
    unroll<Packs>([&](auto b) { rows[b] = row_of<V>(sample, channel + b * W, count); });
    auto x = at_element(lines(pass_.inputs, sample, channel, part.i, part.j, part.k), part.first);
    auto y = at_element(lines(pass_.outputs, sample, channel, part.i, part.j, part.k), part.first);
    for (Index e = part.first; e < part.last; ++e) {
      unroll<Packs>([&](auto b) EVENKEEL_INLINE_LAMBDA {
        const auto packs = spread(
            [&](const auto&... t) EVENKEEL_INLINE_LAMBDA {
              return std::tuple(load_or_none(
                  t, [&](const auto& l) EVENKEEL_INLINE_LAMBDA { return channels_at<Packs>(l, b * W, count); })...);
            },
            x);
        write_packs(math, rows[b], packs, parameters[b], y, [&](const auto& t, const V& v) EVENKEEL_INLINE_LAMBDA {
          if (can_stream && Packs > 1 && streams)
            stream<V>(t.data + b * W, v);
          else if (Packs > 1 || (count == W && t.channel_stride == 1))
            store<V>(t.data + b * W, v);
          else
            store_lanes<V>(t.data, t.channel_stride, count, v);
        });
      });
      step(x);
      step(y);
    }
  }

  /// Channels of which one must be done with care. The others get what they would get beside any neighbours: packs of
  /// which one lane is stored.
  EVENKEEL_NOINLINE void write_lanes(Index sample, Index channel, int count) const {
    for (int lane = 0; lane < count; ++lane) {
      const Index here = channel + lane;
      if (!Math::ready(row_of<A>(sample, here, 1)))
        careful_write(sample, here);
      else
        write_across<1>(sample, Block{here, 1, 1, 1});
    }
  }
  EVENKEEL_NOINLINE void careful_sums(Index sample, Index channel) const {
    if constexpr (CheckedSums) {
      const CarefulCell<Pass> careful(pass_, sample, channel);
      auto row = careful.sums(careful_scale<A>(careful.largest(), 0));
      keep(row, sample, channel);
    }
  }
  EVENKEEL_NOINLINE void careful_write(Index sample, Index channel) const {
    if constexpr (CheckedWrite) {
      const CarefulCell<Pass> careful(pass_, sample, channel);
      careful.write(careful_scale<A>(careful.largest(), 0));
    }
  }

  template <class... T>
  static std::tuple<T...> at_element(std::tuple<T...> lines, Index e) {
    const auto move = [e]<class L>(L& line) {
      if constexpr (!is_none_v<L>) line.data += e * line.stride;
    };
    spread([&](auto&... l) { (move(l), ...); }, lines);
    return lines;
  }
  template <class... T>
  EVENKEEL_HOST static void step(std::tuple<T...>& lines) {
    const auto move = []<class L>(L& line) EVENKEEL_INLINE_LAMBDA {
      if constexpr (!is_none_v<L>) line.data += line.stride;
    };
    spread([&](auto&... l) EVENKEEL_INLINE_LAMBDA { (move(l), ...); }, lines);
  }
  template <class T>
  EVENKEEL_HOST static V lanes_at(const T* p, Index stride, int count) {
    return count == W && stride == 1 ? load<V>(p) : load_lanes<V>(p, stride, count);
  }
  /// Channels from `offset` on at one element. A block of several packs has channels that touch, or one value for all.
  template <int Packs, class T>
  EVENKEEL_HOST static V channels_at(const Line<T>& t, Index offset, int count) {
    if (t.channel_stride == 0) return splat<V>(static_cast<A>(*t.data));
    if constexpr (Packs > 1)
      return load<V>(t.data + offset);
    else
      return lanes_at(t.data, t.channel_stride, count);
  }

  // What both share.

  static constexpr bool CheckedSums = requires(const Start<A>& start) { Math::ready(start); }
  &&Math::sums > 0;
  static constexpr bool CheckedWrite = requires(const Row<A>& row) { Math::ready(row); }
  &&Math::outputs > 0;
  static constexpr bool CanRestartCell = requires(const Math& m, const Start<A>& start, const Total& total) {
    m.restart(start, m.finish(total, start));
  };

  template <class T, class F>
  EVENKEEL_HOST static auto load_or_none(const T& t, const F& f) {
    if constexpr (is_none_v<T>)
      return none;
    else
      return f(t);
  }
  template <class S, class In, class Parameters, class Load>
  EVENKEEL_HOST static void accumulate(const Math& math, Sums& sums, const Start<S>& start, const In& x,
                                       const Parameters& parameters, const Load& at) {
    Values<V, 0> terms;
    [&]<std::size_t... I, std::size_t... J>(std::index_sequence<I...>, std::index_sequence<J...>)
        EVENKEEL_INLINE_LAMBDA {
      math.accumulate(sums, terms, start, load_or_none(std::get<I>(x), at)..., std::get<J>(parameters)...);
    }
    (std::index_sequence_for<X...>{}, std::index_sequence_for<P...>{});
  }
  template <class S, class Packs, class Parameters, class Out, class Store>
  EVENKEEL_HOST static void write_packs(const Math& math, const Row<S>& row, const Packs& packs,
                                        const Parameters& parameters, const Out& y, const Store& to) {
    Values<V, Math::outputs> out;
    [&]<std::size_t... I, std::size_t... J, std::size_t... K>(std::index_sequence<I...>, std::index_sequence<J...>,
                                                              std::index_sequence<K...>) EVENKEEL_INLINE_LAMBDA {
      math.write(out, row, std::get<I>(packs)..., std::get<J>(parameters)...);
      (to(std::get<K>(y), out[K]), ...);
    }
    (std::index_sequence_for<X...>{}, std::index_sequence_for<P...>{}, std::index_sequence_for<Y...>{});
  }

  /// `count` values from p on, as a scalar or as a pack.
  template <class S, class T>
  static S values_at(const T* p, int count) {
    if constexpr (std::is_same_v<S, A>)
      return static_cast<A>(*p);
    else
      return lanes_at(p, 1, count);
  }
  template <class S>
  auto parameters_at(Index channel, int count) const {
    const auto value = [&]<class T>(const T& p) {
      if constexpr (is_none_v<T>)
        return none;
      else
        return values_at<S>(p + channel, count);
    };
    return spread([&](const auto&... p) { return std::tuple(value(p)...); }, pass_.parameters);
  }
  template <int Packs>
  auto parameter_packs(Index channel, int count) const {
    std::array<decltype(parameters_at<V>(channel, count)), Packs> packs;
    unroll<Packs>([&](auto b) { packs[b] = parameters_at<V>(channel + b * W, count); });
    return packs;
  }
  template <class S>
  Known<S> known_of(Index sample, Index channel, int count) const {
    Known<S> known{};
    if constexpr (!is_none_v<KnownCells>)
      for_each_field(known,
                     [&](int k, S& value) { value = values_at<S>(at_cell(pass_.known, k, sample, channel), count); });
    return known;
  }
  template <class S>
  Row<S> row_of(Index sample, Index channel, int count) const {
    const auto read = [&]<class R>(R row) {
      for_each_field(row,
                     [&](int k, S& value) { value = values_at<S>(at_cell(pass_.known, k, sample, channel), count); });
      return row;
    };
    if constexpr (requires { typename Math::template Stored<S>; })
      return pass_.math.prepared(read(typename Math::template Stored<S>{}));
    else
      return read(Row<S>{});
  }
  template <class R>
  void keep(R& row, Index sample, Index channel) const {
    if constexpr (!is_none_v<KeptCells>)
      for_each_field(row, [&](int k, const auto& value) {
        *at_cell(pass_.kept, k, sample, channel) = static_cast<std::remove_pointer_t<KeptCells>>(value);
      });
  }
  template <class Field>
  Field at_cell(Field fields, int k, Index sample, Index channel) const {
    return fields + k * grid_.cells() + sample * grid_.channels + channel;
  }

  const Pass& pass_;
  const ChannelGrid grid_;
  std::array<std::size_t, 4> axis_{0, 1, 2, 3};
  bool along_ = false, packed_ = false, streams_ = false;
  Index together_ = 1;  // blocks
  Index ahead_ = 0;     // channels
};

}  // namespace evenkeel::detail::kernels::EVENKEEL_KERNELS
