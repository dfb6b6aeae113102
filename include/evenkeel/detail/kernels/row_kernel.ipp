/// What the two CPU loops over rows share: loads, stores, and feature sums.

namespace evenkeel::detail::kernels::EVENKEEL_KERNELS {

/// f with the elements of a tuple.
template <class F, class T>
EVENKEEL_HOST decltype(auto) spread(const F& f, T& elements) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) EVENKEEL_INLINE_LAMBDA->decltype(auto) {
    return f(std::get<I>(elements)...);
  }
  (std::make_index_sequence<std::tuple_size_v<std::remove_const_t<T>>>{});
}

/// Elements that one lane adds up before its sum is put aside: longer chains lose digits.
inline constexpr Index chain = 128;

/// Whether outputs of `size` elements each, written in packs of A, go past the cache: where they are large, and neither
/// where a pack would straddle two lines nor where an output is an input, which is in the cache. `strides` gives an
/// output's strides between packs. Where only `together` of them touch, and not all are written one after another, the lines
/// of the cache at both ends are written in part, each for the price of several whole ones: there must be many between.
template <class A, class... X, class... Y, class Strides>
bool wants_stream(const std::tuple<X...>& inputs, const std::tuple<Y...>& outputs, Index size, Index together,
                  bool gradient, const Strides& strides) {
  const auto fits = [&]<class T>(const T& y) {
    const auto apart = [&]<class In>(const In& x) {
      if constexpr (is_none_v<In>)
        return true;
      else
        return static_cast<const void*>(x.data) != y.data;
    };
    constexpr Index width = sizeof(*y.data), in_one_line = 16, line = 64, least_together = 16 * line;
    const auto aligned = [&](Index bytes) {
      return reinterpret_cast<std::uintptr_t>(y.data) % static_cast<std::uintptr_t>(bytes) == 0 &&
             std::ranges::all_of(strides(y), [bytes](Index stride) { return stride * width % bytes == 0; });
    };
    const bool whole_lines = together == size || aligned(line);
    const Index least = gradient && whole_lines ? EVENKEEL_STREAM_BACKWARD_BYTES : EVENKEEL_STREAM_BYTES;
    return size * width >= least && aligned(in_one_line) && (whole_lines || together * width >= least_together) &&
           spread([&](const auto&... x) { return (apart(x) && ...); }, inputs);
  };
  return spread([&](const auto&... y) { return (fits(y) && ...); }, outputs);
}
template <class A, template <class> class Tensor, class... T>
constexpr bool all_stream(const std::tuple<Tensor<T>...>*) {
  return sizeof...(T) > 0 && (streams_past_cache<A, T> && ...);
}
template <class A>
constexpr bool all_stream(const void*) {
  return false;
}

/// Calls f with the constants 0 .. N-1: a loop over packs would send them to memory.
template <int N, class F>
EVENKEEL_HOST void unroll(const F& f) {
  [&]<int... K>(std::integer_sequence<int, K...>) EVENKEEL_INLINE_LAMBDA { (f(std::integral_constant<int, K>{}), ...); }
  (std::make_integer_sequence<int, N>{});
}

template <class V>
EVENKEEL_HOST None load_at(None, Index) {
  return none;
}
template <class V, class T>
EVENKEEL_HOST V load_at(const T* p, Index i) {
  return load<V>(p + i);
}

/// One row of MaskRows.
template <class T>
struct MaskRow {
  T* data;
  Index stride;  // 0 or 1
};
template <class V, class T>
EVENKEEL_HOST V load_at(const MaskRow<T>& row, Index i) {
  return row.stride == 0 ? splat<V>(load<typename Lanes<V>::Scalar>(row.data)) : load<V>(row.data + i);
}

template <class V, int N>
EVENKEEL_HOST void set_zero(Values<V, N>& values) {
  unroll<N>([&](auto k) EVENKEEL_INLINE_LAMBDA { values[k] = splat<V>(0); });
}

template <class V, int N>
EVENKEEL_HOST void add(Values<V, N>& a, const Values<V, N>& b) {
  unroll<N>([&](auto k) EVENKEEL_INLINE_LAMBDA { a[k] += b[k]; });
}

template <class V, int N>
EVENKEEL_HOST void add_masked(Values<V, N>& a, const Values<V, N>& b, const V& mask) {
  unroll<N>([&](auto k) EVENKEEL_INLINE_LAMBDA { a[k] += b[k] * mask; });
}

/// Sums of the lanes.
template <class V, int N>
EVENKEEL_HOST auto total(const Values<V, N>& a) {
  Values<typename Lanes<V>::Scalar, N> sums;
  unroll<N>([&](auto k) EVENKEEL_INLINE_LAMBDA { sums[k] = lane_sum(a[k]); });
  return sums;
}

/// Bit for bit, but for NaN: members of two structs of one kind.
template <template <class> class R, class V>
EVENKEEL_HOST bool same_fields(const R<V>& a, const R<V>& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// The two questions of a math that knows when not to trust itself, and their answers for one that does not ask: a row
/// is settled where restart has nothing better.
template <class Math, class Start>
EVENKEEL_HOST bool is_ready(const Math& math, const Start& start) {
  if constexpr (Checked<Math>)
    return math.ready(start);
  else
    return true;
}
template <class Math, class Start, class Row>
EVENKEEL_HOST bool is_settled(const Math& math, const Start& start, const Row& row) {
  if constexpr (Checked<Math>)
    return math.settled(start, row);
  else if constexpr (CanRestart<Math>)
    return same_fields(math.restart(start, row), start);
  else
    return true;
}

/// How many of a row's first values the math's shift is the mean of. A power of two, so that the mean of equal values is
/// exactly that value.
template <class Math>
constexpr Index shift_values(Index available) {
  Index values = 1;
  if constexpr (averages_shift<Math>)
    while (2 * values <= std::min<Index>(available, 8)) values *= 2;
  return values;
}

/// How many elements the shifts that a row starts from belong to: a scalar or a pack of 1 and 0 where the math has
/// counts, else 1.
template <class Math, class... V>
EVENKEEL_HOST auto counts_of(const Math& math, const V&... inputs) {
  using First = std::tuple_element_t<0, std::tuple<V...>>;
  if constexpr (requires { math.counts(inputs...); })
    return math.counts(inputs...);
  else
    return splat<First>(1);
}

/// One lane of a struct of packs, and the same for writing.
template <template <class> class R, class A>
R<A> lane_of(R<Pack<A>> values, int j) {
  A lane[6] = {};
  for_each_field(values, [&](int k, const Pack<A>& value) { lane[k] = value[j]; });
  R<A> result{};
  for_each_field(result, [&](int k, A& value) { value = lane[k]; });
  return result;
}
template <template <class> class R, class A>
void set_lane(R<Pack<A>>& values, int j, R<A> lane) {
  A value_of[6] = {};
  for_each_field(lane, [&](int k, const A& value) { value_of[k] = value; });
  for_each_field(values, [&](int k, Pack<A>& value) {
    value = select_less(Pack<A>(0), lane_mask<Pack<A>>(j, j + 1), Pack<A>(value_of[k]), value);
  });
}

/// Sums per feature over the rows of one block: rows are added to `recent`, and every `chain` rows `recent` is added to
/// `sums`. Of no more rows than that, `recent` is `sums`, which the first of them may write without being cleared, and
/// which may be the gradients themselves.
template <class A, int F>
struct FeatureSums {
  using Place = std::array<A*, F>;
  Place sums, recent;
  Index size_of_each;
  bool unwritten = false;  // there is nothing yet in `recent`, up to the last whole pack of features

  /// Of whole packs, the widest that there are: scratch is counted by who does not know the set of kernels.
  static Index pitch_of(Index length) {
    constexpr Index most = 64 / sizeof(A);
    return (length + most - 1) / most * most;
  }
  static Index size(Index length) { return 2 * F * pitch_of(length); }

  /// In size(length) values of memory.
  FeatureSums(A* memory, Index length) : size_of_each(pitch_of(length)) {
    unroll<F>([&](auto k) {
      sums[k] = memory + k * size_of_each;
      recent[k] = sums[k] + F * size_of_each;
    });
    if (F > 0) std::fill_n(memory, size(length), A(0));
  }
  /// Of one chain of rows, in F places of `length` values or, where these are null, in memory.
  FeatureSums(A* memory, const Place& place, Index length) : sums(place), size_of_each(length), unwritten(F > 0) {
    if (F > 0 && !*sums.begin()) {
      size_of_each = pitch_of(length);
      unroll<F>([&](auto k) { sums[k] = memory + k * size_of_each; });
    }
    recent = sums;
    clear_from(length / pack_size<A> * pack_size<A>);
  }

  void clear() {
    if (unwritten) clear_from(0);
    unwritten = false;
  }
  /// The k-th of `terms` belongs to `recent[k]`. First: perhaps of the first row.
  template <bool First, class V>
  EVENKEEL_HOST void add(Index i, const Values<V, F>& terms) {
    unroll<F>([&](auto k) EVENKEEL_INLINE_LAMBDA {
      A* const p = recent[k] + i;
      if (First && unwritten)
        store<V>(p, V(terms[k] + splat<V>(0)));
      else
        store<V>(p, V(load<V>(p) + terms[k]));
    });
  }
  void flush() {
    clear();
    if (sums == recent) return;
    using V = Pack<A>;
    unroll<F>([&](auto k) {
      for (Index i = 0; i < size_of_each; i += pack_size<A>) {
        store<V>(sums[k] + i, V(load<V>(sums[k] + i) + load<V>(recent[k] + i)));
        store<V>(recent[k] + i, splat<V>(0));
      }
    });
  }

 private:
  void clear_from(Index first) {
    for (A* const sum : recent)
      for (Index i = first; i < size_of_each; ++i) sum[i] = 0;
  }
};

}  // namespace evenkeel::detail::kernels::EVENKEEL_KERNELS
