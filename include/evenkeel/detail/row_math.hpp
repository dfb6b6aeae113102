/// What a row norm's math must offer, and what a pass over rows is made of. No CUDA header.
///
/// A pass goes over rows of `length` elements. For each row it sums terms over the elements, turns the sums into the
/// values of the row, and writes outputs, element by element. Forward and backward of every row norm are such passes;
/// what differs is the math, a trivially copyable struct M whose members are templates over the value type: V is a
/// scalar on the device, a pack of neighbouring elements where rows are contiguous, a pack of neighbouring rows where
/// they are not. S is the type of a row's values: a scalar in the first two cases, a pack in the third.
///
///     using Scalar = A;                          accumulator type
///     static constexpr int sums;                 sums over a row
///     static constexpr int feature_sums;         sums over the rows, one per feature (dweight, dbias)
///     static constexpr int outputs;              tensors written
///     template <class V> struct Known { ... };   values of a row from an earlier pass (at most 6, all V); may be empty
///     template <class V> struct Start { ... };   what accumulate needs of a row (the shift, the statistics)
///     template <class V> struct Row { ... };     what write needs of a row; kept when the caller asks for it
///
///     Start<S> start(Known<S>, S... first)                                first element of each input, which count for
///                                       nothing where there are Known values. With averages_shift = true in the math,
///                                       Start is one shift, and the mean of those of the first elements; where it has
///                                       counts(inputs...), 1 or 0, of those that count
///     void accumulate(Values<V, sums>&, Values<V, feature_sums>&, Start<S>, V... inputs, parameters...)
///                                       adds to the sums, sets the terms of the feature sums
///     Row<S> finish(Values<S, sums>, Start<S>)
///     bits void write(Values<V, outputs>&, Row<S>, V... inputs, parameters...)
///
/// A math may also know when not to trust itself. Then it offers, all together:
///
///     bool ready(Start<S>)                    before the sums: whether they can be taken in A at all
///     bool settled(Start<S>, Row<S>)          after them: whether the row's values are right, in every lane
///     magnitude(inputs..., parameters...)     what must not overflow, element by element
///     careful(largest, length)                the math in double, for a row of that largest magnitude
///     Start<S> restart(Start<S>, Row<S>)      optional: a better start where the first was a bad one, else the same
///
/// A row that is not settled starts over from a better start; if that does not settle it, it is done in double.
///
/// Inputs and parameters that a call leaves out arrive as None, so absent weights cost nothing. A parameter arrives as
/// a pack or, where the pack runs over rows, as a scalar.
#pragma once

#include "evenkeel/detail/values.hpp"
#include "evenkeel/view.hpp"

#include <array>
#include <tuple>

namespace evenkeel::detail {

/// The shape of a pass: rows numbered as in AxisView, and their length.
struct RowGrid {
  std::array<Index, 3> extent{1, 1, 1};  // outer[0], outer[1], inner
  Index length = 0;
  Index rows() const { return extent[0] * extent[1] * extent[2]; }
  bool flat() const { return extent[0] == 1 && extent[2] == 1; }  // rows follow each other with one stride
};

/// Where one tensor's rows lie.
template <class T>
struct Rows {
  T* data;
  std::array<Index, 3> stride;  // of outer[0], outer[1], inner
  Index length_stride;
};

template <class T>
RowGrid grid_of(const AxisView<T>& x) {
  return {{x.outer[0], x.outer[1], x.inner}, x.length};
}

template <class T>
Rows<T> rows_of(const AxisView<T>& x) {
  return {x.data, {x.outer_stride[0], x.outer_stride[1], x.inner_stride}, x.stride};
}
inline None rows_of(None) { return none; }

/// An input that may have one value per row, the same for all its elements: length_stride is 0 then. One type for both,
/// since a loop of its own for either would double what a call compiles.
template <class T>
struct MaskRows : Rows<T> {};

/// Element i of row r.
template <class T>
EVENKEEL_HOST T* element_at(const Rows<T>& rows, const RowGrid& grid, Index r, Index i) {
  if (grid.flat()) return rows.data + r * rows.stride[1] + i * rows.length_stride;  // no division
  const Index k = r % grid.extent[2], o = r / grid.extent[2];
  return rows.data + o / grid.extent[1] * rows.stride[0] + o % grid.extent[1] * rows.stride[1] + k * rows.stride[2] +
         i * rows.length_stride;
}

/// One pass. Inputs and Outputs are tuples of Rows<T> or None, Parameters of const T* or None; a parameter has `length`
/// contiguous values. `known` holds Known's members as (members, rows), or None; `kept` receives Row's in the same way.
template <class Math, class Inputs, class Parameters, class Outputs, class Known = None, class Kept = None>
struct RowPass {
  Math math;
  RowGrid grid;
  Inputs inputs;
  Parameters parameters;
  Outputs outputs;
  Known known{};
  Kept kept{};
};
template <class M, class I, class P, class O, class Known = None,
          class Kept = None>  // clang 14 does not deduce aggregates
RowPass(M, RowGrid, I, P, O, Known = {}, Kept = {})->RowPass<M, I, P, O, Known, Kept>;

/// The sums over rows that a pass leaves in its scratch: sum k of feature i is the sum over the parts p of
/// scratch[(p * terms + k) * pitch + i].
struct FeatureParts {
  Index count;  // parts
  Index pitch;
  int terms;
  bool in_place = false;  // in the gradients' own memory, not in the scratch
};

/// Whether the math knows when not to trust itself.
template <class M, class A = typename M::Scalar>
concept Checked = requires(const M& m, const typename M::template Start<A>& start,
                           const typename M::template Row<A>& row) {
  m.ready(start);
  m.settled(start, row);
};

/// Whether the math offers restart.
template <class M, class A = typename M::Scalar>
concept CanRestart = requires(const M& m, const typename M::template Start<A>& start,
                              const typename M::template Row<A>& row) {
  m.restart(start, row);
};

}  // namespace evenkeel::detail
