/// A pass over rows as kernels see it: plain pointers, sizes and the math.
#pragma once

#include "evenkeel/detail/device_list.cuh"
#include "evenkeel/detail/divisor.cuh"
#include "evenkeel/detail/launch.cuh"
#include "evenkeel/detail/packed.cuh"
#include "evenkeel/detail/values.hpp"
#include "evenkeel/detail/vocabulary.hpp"

#include <cstdint>
#include <type_traits>
#include <utility>

namespace evenkeel::detail {

/// One tensor's rows: see Rows.
template <class T>
struct DeviceRows {
  using Scalar = T;
  T* data;
  std::int64_t stride[3];
  std::int64_t length_stride;
};

/// The rows of a mask, which may be one value for each: see MaskRows.
template <class T>
struct DeviceMaskRows : DeviceRows<T> {};
template <class T>
struct DeviceMaskRow {
  T* data;
  std::int64_t stride;  // 0: one value for all of the row
};

/// Where a row lies: its numbers on the levels outer[0], outer[1], inner.
struct RowPlace {
  std::int64_t level[3];
};

struct DeviceGrid {
  std::int64_t rows;
  std::int64_t extent[3];
  std::int64_t length;
  bool one_level;  // all rows are on outer[1]
  Divisor middle, inner;

  EVENKEEL_DEVICE RowPlace place(std::int64_t r) const {
    if (one_level) return {{0, r, 0}};
    RowPlace p;
    p.level[0] = middle.divide(inner.divide(r, p.level[2]), p.level[1]);
    return p;
  }
};

template <class T>
EVENKEEL_DEVICE T* row_at(const DeviceRows<T>& rows, const RowPlace& place) {
  return rows.data +
         (place.level[0] * rows.stride[0] + place.level[1] * rows.stride[1] + place.level[2] * rows.stride[2]);
}
template <class T>
EVENKEEL_DEVICE DeviceMaskRow<T> row_at(const DeviceMaskRows<T>& rows, const RowPlace& place) {
  return {row_at(static_cast<const DeviceRows<T>&>(rows), place), rows.length_stride};
}
EVENKEEL_DEVICE None row_at(None, const RowPlace&) { return {}; }
template <class T>
EVENKEEL_DEVICE OneValue<T> row_at(const OneValue<T>& value, const RowPlace&) {
  return value;
}

/// Inputs, Outputs: Lists of DeviceRows or None. Parameters: a List of pointers or None. Known and Kept: pointers to
/// values of A, (members, rows), or None.
template <class Math, class Inputs, class Parameters, class Outputs, class Known, class Kept>
struct DevicePass {
  Math math;
  DeviceGrid grid;
  Inputs inputs;
  Parameters parameters;
  Outputs outputs;
  Known known;
  Kept kept;
  typename Math::Scalar* sums;  // (parts, feature sums, pitch), or null
  std::int64_t pitch;
};

/// The values that accumulate and write take as None.
template <class A, int V>
struct Absent {
  EVENKEEL_DEVICE None value(int) const { return {}; }
};

/// V neighbouring elements of a tensor, as they are stored.
template <class A, class T, int V>
struct Chunk {
  Packed<T, V> stored;
  EVENKEEL_DEVICE A value(int i) const { return stored.template value<A>(i); }
};

template <class A, class T, int V>
struct OffsetChunk {
  Packed<T, V> stored;
  A offset;
  EVENKEEL_DEVICE A value(int i) const { return stored.template value<A>(i) + offset; }
};

template <class A>
struct OneChunk {
  A number;
  EVENKEEL_DEVICE A value(int) const { return number; }
};

/// The same of any scalar, bool among them.
template <class A, class T, int V>
struct PlainChunk {
  Elements<T, V> stored;
  EVENKEEL_DEVICE A value(int i) const { return to<A>(stored[i]); }
};
/// V elements that lie `stride` apart: neighbours, or where it is 0 one element V times.
template <class A, int V, class T>
EVENKEEL_DEVICE PlainChunk<A, std::remove_const_t<T>, V> load_plain_chunk(T* from, std::int64_t stride) {
  if constexpr (V > 1)
    if (stride != 1) {
      PlainChunk<A, std::remove_const_t<T>, V> chunk;
#pragma unroll
      for (int k = 0; k < V; ++k) chunk.stored[k] = from[k * stride];
      return chunk;
    }
  return {load_elements<V>(from)};
}

/// Elements i to i + V of an input's row, which an output may overwrite; `stride` elements lie between them, 1 where V is
/// not 1.
template <class A, int V>
EVENKEEL_DEVICE Absent<A, V> load_chunk(None, std::int64_t, std::int64_t) {
  return {};
}
template <class A, int V, class T>
EVENKEEL_DEVICE Chunk<A, std::remove_const_t<T>, V> load_chunk(T* row, std::int64_t i, std::int64_t stride) {
  return {Packed<std::remove_const_t<T>, V>::load(row + i * stride)};
}
template <class A, int V, class T>
EVENKEEL_DEVICE PlainChunk<A, std::remove_const_t<T>, V> load_chunk(const DeviceMaskRow<T>& row, std::int64_t i,
                                                                    std::int64_t) {
  return load_plain_chunk<A, V>(row.data + i * row.stride, row.stride);
}
template <class A, int V, class T>
EVENKEEL_DEVICE OneChunk<A> load_chunk(const OneValue<T>& one, std::int64_t, std::int64_t) {
  return {to<A>(*one.data)};
}

/// Elements i to i + V of a parameter, which nothing overwrites.
template <class A, int V>
EVENKEEL_DEVICE Absent<A, V> load_parameter(None, std::int64_t) {
  return {};
}
template <class A, int V, class T>
EVENKEEL_DEVICE Chunk<A, std::remove_const_t<T>, V> load_parameter(T* p, std::int64_t i) {
  return {Packed<std::remove_const_t<T>, V>::template load<true>(p + i)};
}
template <class A, int V, class T>
EVENKEEL_DEVICE OffsetChunk<A, std::remove_const_t<T>, V> load_parameter(const OffsetParameter<T, A>& p,
                                                                         std::int64_t i) {
  return {Packed<std::remove_const_t<T>, V>::template load<true>(p.data + i), p.offset};
}

/// Bytes of a parameter's element.
template <class P>
inline constexpr int element_bytes = 0;
template <class T>
inline constexpr int element_bytes<T*> = sizeof(T);
template <class T, class A>
inline constexpr int element_bytes<OffsetParameter<T, A>> = sizeof(T);

/// Whether the math looks in the device's memory for whether there is anything to do: see GateRangeMath.
template <class Math>
inline constexpr bool may_have_no_turn = requires(Math& math) {
  math.begin();
};
/// Each kernel asks first.
template <class Pass>
EVENKEEL_DEVICE bool has_turn([[maybe_unused]] Pass& pass) {
  if constexpr (may_have_no_turn<decltype(pass.math)>)
    return pass.math.begin();
  else
    return true;
}

/// What all kernels do with a pass, for one thread.
template <class Pass>
struct RowSteps;

template <class Math, class... X, class... P, class... Y, class KnownRows, class KeptRows>
struct RowSteps<DevicePass<Math, List<X...>, List<P...>, List<Y...>, KnownRows, KeptRows>> {
  using Pass = DevicePass<Math, List<X...>, List<P...>, List<Y...>, KnownRows, KeptRows>;
  using A = typename Math::Scalar;
  using Known = typename Math::template Known<A>;
  using Start = typename Math::template Start<A>;
  using Row = typename Math::template Row<A>;
  using Sums = Values<A, Math::sums>;
  using Terms = Values<A, Math::feature_sums>;
  using Inputs = std::index_sequence_for<X...>;
  static constexpr int inputs = sizeof...(X), parameters = sizeof...(P), outputs = sizeof...(Y);

  /// Bytes of one element of each parameter.
  static constexpr int parameter_bytes = (0 + ... + element_bytes<P>);

  /// A row of every input or output.
  using InputRow = List<decltype(row_at(std::declval<X>(), RowPlace{}))...>;
  using OutputRow = List<decltype(row_at(std::declval<Y>(), RowPlace{}))...>;
  /// Chunks of the inputs or parameters at element i.
  template <int V>
  using InputChunks = List<decltype(load_chunk<A, V>(row_at(std::declval<X>(), RowPlace{}), 0, 0))...>;
  template <int V>
  using ParameterChunks = List<decltype(load_parameter<A, V>(std::declval<P>(), 0))...>;

  static EVENKEEL_DEVICE InputRow input_row(const Pass& pass, const RowPlace& place) {
    InputRow row;
    each<inputs>([&](auto k) { at<k>(row) = row_at(at<k>(pass.inputs), place); });
    return row;
  }
  static EVENKEEL_DEVICE OutputRow output_row(const Pass& pass, const RowPlace& place) {
    OutputRow row;
    each<outputs>([&](auto k) { at<k>(row) = row_at(at<k>(pass.outputs), place); });
    return row;
  }
  /// Strided: elements of a row may lie apart, V is 1.
  template <int V, bool Strided = false>
  static EVENKEEL_DEVICE InputChunks<V> load_inputs(const Pass& pass, const InputRow& row, std::int64_t i) {
    InputChunks<V> chunks;
    each<inputs>(
        [&](auto k) { at<k>(chunks) = load_chunk<A, V>(at<k>(row), i, length_stride<Strided>(at<k>(pass.inputs))); });
    return chunks;
  }
  template <int V>
  static EVENKEEL_DEVICE ParameterChunks<V> load_parameters(const Pass& pass, std::int64_t i) {
    ParameterChunks<V> chunks;
    each<parameters>([&](auto k) { at<k>(chunks) = load_parameter<A, V>(at<k>(pass.parameters), i); });
    return chunks;
  }

  static EVENKEEL_DEVICE Known known_of(const Pass& pass, std::int64_t r) {
    Known known{};
    if constexpr (!is_none_v<KnownRows>)
      for_each_field(known, [&](int k, A& value) { value = pass.known[k * pass.grid.rows + r]; });
    return known;
  }
  static EVENKEEL_DEVICE void keep(const Pass& pass, const Row& row, std::int64_t r) {
    if constexpr (!is_none_v<KeptRows>) {
      Row copy = row;
      for_each_field(copy, [&](int k, const A& value) { pass.kept[k * pass.grid.rows + r] = value; });
    }
  }

  /// What the row starts with, from its first chunk.
  template <int V>
  static EVENKEEL_DEVICE Start start_of(const Pass& pass, const InputChunks<V>& first, std::int64_t r) {
    const Known known = known_of(pass, r);
    const auto of = [&](int i) {
      return [&]<std::size_t... I>(std::index_sequence<I...>) {
        return pass.math.start(known, at<static_cast<int>(I)>(first).value(i)...);
      }
      (Inputs{});
    };
    Start start = of(0);
    if constexpr (averages_shift<Math> && V > 1) {
      A count = counts_of(pass, first, 0);
      for (int i = 1; i < V; ++i) {
        start.shift += of(i).shift;
        count += counts_of(pass, first, i);
      }
      start.shift = count > A(0) ? start.shift / count : A(0);
    }
    return start;
  }
  /// The same where the first chunk belongs to another thread. A start without members reads nothing.
  template <int V>
  static EVENKEEL_DEVICE Start start_of_row(const Pass& pass, const InputRow& row, std::int64_t r) {
    if constexpr (std::is_empty_v<Start>)
      return {};
    else
      return start_of<V>(pass, load_inputs<V>(pass, row, 0), r);
  }

  template <class In, class Par>
  static EVENKEEL_DEVICE void accumulate(const Pass& pass, Sums& sums, Terms& terms, const Start& start, const In& x,
                                         const Par& p, int i) {
    [&]<std::size_t... I, std::size_t... J>(std::index_sequence<I...>, std::index_sequence<J...>) {
      pass.math.accumulate(sums, terms, start, at<static_cast<int>(I)>(x).value(i)...,
                           at<static_cast<int>(J)>(p).value(i)...);
    }
    (Inputs{}, std::index_sequence_for<P...>{});
  }

  /// Writes V outputs at element i.
  template <int V, bool Strided = false, class In, class Par>
  static EVENKEEL_DEVICE void write(const Pass& pass, const Row& row, const OutputRow& to, std::int64_t i, const In& x,
                                    const Par& p) {
    if constexpr (outputs > 0) {  // else statistics alone
      A out[outputs][V];
#pragma unroll
      for (int k = 0; k < V; ++k) {
        Values<A, Math::outputs> values;
        [&]<std::size_t... I, std::size_t... J>(std::index_sequence<I...>, std::index_sequence<J...>) {
          pass.math.write(values, row, at<static_cast<int>(I)>(x).value(k)..., at<static_cast<int>(J)>(p).value(k)...);
        }
        (Inputs{}, std::index_sequence_for<P...>{});
        each<outputs>([&](auto o) { out[o][k] = values[o]; });
      }
      each<outputs>([&](auto o) {
        const auto& rows = at<o>(pass.outputs);
        using T = typename std::remove_cvref_t<decltype(rows)>::Scalar;
        Packed<T, V>::of(out[o]).store(at<o>(to) + i * length_stride<Strided>(rows));
      });
    }
  }

  /// Whether a row may start over from a better start.
  static constexpr bool restarts = requires(const Math& math, const Start& start, const Row& row) {
    math.restart(start, row);
  };
  /// Replaces the start by a better one and says whether any row needs it: of the warp's where AcrossLanes, else the one
  /// row that all threads share.
  template <bool AcrossLanes>
  static EVENKEEL_DEVICE bool may_restart(const Pass& pass, Start& start, const Row& row) {
    A before[field_count<Math::template Start>];
    for_each_field(start, [&](int k, A& value) { before[k] = value; });
    start = pass.math.restart(start, row);
    bool changed = false;
    for_each_field(start, [&](int k, A& value) { changed = changed || !(value == before[k]); });
    if constexpr (AcrossLanes)
      return any_lane(changed);
    else
      return changed;
  }

 private:
  /// 1, or what a math with a mask says of an element.
  template <class M, class... V>
  static EVENKEEL_DEVICE A count_of(const M& math, const V&... values) {
    if constexpr (requires { math.counts(values...); })
      return math.counts(values...);
    else
      return A(1);
  }
  static EVENKEEL_DEVICE A counts_of(const Pass& pass, const auto& x, int i) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return count_of(pass.math, at<static_cast<int>(I)>(x).value(i)...);
    }
    (Inputs{});
  }
  template <bool Strided, class T>
  static EVENKEEL_DEVICE std::int64_t length_stride(const T& rows) {
    if constexpr (Strided && requires { rows.length_stride; })
      return rows.length_stride;
    else
      return 1;
  }
};

}  // namespace evenkeel::detail
