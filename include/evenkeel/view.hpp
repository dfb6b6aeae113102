/// How a tensor looks to a norm: outer levels, the reduced axis, an inner extent. The only file that knows Eigen's
/// layouts.
///
/// Accepted as tensors: Eigen::Tensor, TensorMap, TensorFixedSize; Matrix, Array, Map (also with strides), Ref, Block;
/// an AxisView that the caller made. Eigen's Tensor module is recognised by its members and not included here.
#pragma once

#include "evenkeel/device.hpp"
#include "evenkeel/error.hpp"
#include "evenkeel/scalar.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>

namespace evenkeel {

/// The axis, or the neighbouring axes, that a norm works on: `.axis = 1`, `.axis = -1`, `.axis = {1, 2}`.
/// Left out, it is the last axis of row-major tensors and vectors. Column-major matrices and tensors must name it,
/// since their last axis is not the contiguous one.
struct Axes {
  static constexpr int max_count = 8;
  std::array<int, max_count> axis{};
  int count = 0;

  constexpr Axes() = default;
  constexpr Axes(int single)  // NOLINT(google-explicit-constructor): `.axis = 1`
      : axis{single}, count(1) {}
  constexpr Axes(std::initializer_list<int> list) : count(static_cast<int>(list.size())) {
    int i = 0;
    for (const int a : list)
      if (i < max_count) axis[static_cast<std::size_t>(i++)] = a;
  }
};

/// A tensor as seen from one axis. Element (o0, o1, i, k) lies at
///     data[o0 * outer_stride[0] + o1 * outer_stride[1] + i * stride + k * inner_stride].
/// Row (o0, o1, k) has number (o0 * outer[1] + o1) * inner + k; saved statistics are kept in that order. Callers make
/// one by hand for what Eigen cannot name, such as the heads of a fused QKV buffer: rows x heads x features with any
/// strides.
template <class T>
struct AxisView {
  T* data = nullptr;
  std::array<Index, 2> outer{1, 1};
  std::array<Index, 2> outer_stride{0, 0};
  Index length = 0;
  Index stride = 1;
  Index inner = 1;
  Index inner_stride = 0;

  /// How merged neighbouring axes were counted: 0 none were, 1 the last one fastest, 2 the first one fastest.
  int merged = 0;

  Index rows() const { return outer[0] * outer[1] * inner; }
};

namespace detail::inline EVENKEEL_ISA {

template <class X>
concept EigenTensor = requires(const X& x) {
  x.dimensions();
  x.data();
  X::NumDimensions;
  X::Layout;
};

template <class X>
concept EigenDense = requires(const X& x) {
  x.rows();
  x.cols();
  x.data();
  x.innerStride();
  x.outerStride();
  X::IsRowMajor;
};

template <class X>
inline constexpr bool is_axis_view = false;
template <class T>
inline constexpr bool is_axis_view<AxisView<T>> = true;

/// Extents and strides in elements, axis by axis.
struct Layout {
  static constexpr int max_rank = Axes::max_count;
  int rank = 0;
  bool row_major = true;
  std::array<Index, max_rank>
      extent;  // the first `rank` are set: a call should not spend its time on clearing the rest
  std::array<Index, max_rank> stride;

  Index size() const {
    Index product = 1;
    for (int a = 0; a < rank; ++a) product *= extent[static_cast<std::size_t>(a)];
    return product;
  }
};

inline bool same_extents(const Layout& a, const Layout& b) {
  return a.rank == b.rank && std::equal(a.extent.begin(), a.extent.begin() + a.rank, b.extent.begin());
}

inline std::string text(const Layout& layout) {
  if (layout.rank == 0) return "a scalar";
  std::string s;
  for (int a = 0; a < layout.rank; ++a) {
    if (a > 0) s += 'x';
    s += std::to_string(layout.extent[static_cast<std::size_t>(a)]);
  }
  return s;
}

template <class X>
inline constexpr bool is_tensor_argument = EigenTensor<X> || EigenDense<X> || is_axis_view<X>;

template <class X>
auto* data_of(X& x) {
  if constexpr (is_axis_view<std::remove_const_t<X>>)
    return x.data;
  else
    return x.data();
}

/// The scalar of a tensor argument, const where it may not be written.
template <class X>
using element_t = std::remove_pointer_t<decltype(data_of(std::declval<X&>()))>;

template <class X>
using scalar_t = std::remove_const_t<element_t<std::remove_reference_t<X>>>;

template <class X>
Layout layout_of(const X& x) {
  static_assert(
      EigenTensor<X> || EigenDense<X>,
      "evenkeel: a tensor argument must be an Eigen tensor, matrix, array, map, ref or block with memory of its "
      "own; evaluate an expression before passing it");
  Layout layout;
  if constexpr (EigenTensor<X>) {
    constexpr int rank = X::NumDimensions;
    static_assert(rank <= Layout::max_rank, "evenkeel: tensors have at most 8 dimensions");
    layout.rank = rank;
    layout.row_major = static_cast<int>(X::Layout) == static_cast<int>(Eigen::RowMajor);
    Index stride = 1;
    for (int k = 0; k < rank; ++k) {
      const auto a = static_cast<std::size_t>(layout.row_major ? rank - 1 - k : k);
      layout.extent[a] = static_cast<Index>(x.dimensions()[a]);
      layout.stride[a] = stride;
      stride *= layout.extent[a];
    }
  } else if constexpr (X::IsVectorAtCompileTime) {
    layout.rank = 1;
    layout.extent[0] = x.size();
    layout.stride[0] = x.innerStride();
  } else {
    layout.rank = 2;
    layout.row_major = X::IsRowMajor;
    layout.extent[0] = x.rows();
    layout.extent[1] = x.cols();
    layout.stride[0] = layout.row_major ? x.outerStride() : x.innerStride();
    layout.stride[1] = layout.row_major ? x.innerStride() : x.outerStride();
  }
  return layout;
}

/// The first and last axis that `axes` names in a tensor of this layout.
struct AxisRange {
  int first = 0, last = 0;
};

inline AxisRange resolve_axes(const char* function, const char* name, const Layout& x, const Axes& axes) {
  if (x.rank == 0) throw_shape_error(function, name, " has no dimension, expected at least one");
  if (axes.count == 0) {
    if (x.rank > 1 && !x.row_major)
      throw_shape_error(function, name, " is column-major ", text(x), ": its last axis (", x.rank - 1,
                        ") is not its contiguous one (0); name the axis to choose between them");
    return {x.rank - 1, x.rank - 1};
  }
  if (axes.count > x.rank)
    throw_shape_error(function, axes.count, " axes are named, ", name, " has ", x.rank, " (", name, " is ", text(x),
                      ")");
  AxisRange range;
  for (int i = 0; i < axes.count; ++i) {
    const int named = axes.axis[static_cast<std::size_t>(i)], axis = named < 0 ? named + x.rank : named;
    if (axis < 0 || axis >= x.rank)
      throw_shape_error(function, "axis ", named, " is out of range, ", name, " has ", x.rank, " axes (", name, " is ",
                        text(x), ")");
    if (i > 0 && axis != range.last + 1)
      throw_shape_error(function, "axis ", named, " does not follow axis ", range.last,
                        ", expected neighbouring axes in ascending order");
    if (i == 0) range.first = axis;
    range.last = axis;
  }
  return range;
}

/// Neighbouring axes counted as one where their strides allow it.
struct MergedAxes {
  int count = 0;
  std::array<Index, Layout::max_rank> extent;  // the first `count` are set
  std::array<Index, Layout::max_rank> stride;
  int order = 0;  // see AxisView::merged
};

inline MergedAxes merge_axes(const Layout& x, int begin, int end) {
  MergedAxes m;
  for (auto a = static_cast<std::size_t>(begin); a < static_cast<std::size_t>(end); ++a) {
    if (x.extent[a] == 1) continue;
    const auto top = static_cast<std::size_t>(m.count - 1);
    if (m.count > 0 && x.row_major && m.stride[top] == x.stride[a] * x.extent[a]) {
      m.extent[top] *= x.extent[a];
      m.stride[top] = x.stride[a];
      m.order = 1;
    } else if (m.count > 0 && !x.row_major && x.stride[a] == m.stride[top] * m.extent[top]) {
      m.extent[top] *= x.extent[a];
      m.order = 2;
    } else {
      m.extent[static_cast<std::size_t>(m.count)] = x.extent[a];
      m.stride[static_cast<std::size_t>(m.count)] = x.stride[a];
      ++m.count;
    }
  }
  return m;
}

/// A view whose scalar does not matter: checks are compiled once, not for each type of tensor.
using Geometry = AxisView<const void>;

template <class T, class S>
AxisView<T> view_as(const AxisView<S>& v, T* data) {
  return {data, v.outer, v.outer_stride, v.length, v.stride, v.inner, v.inner_stride, v.merged};
}

/// geometry_along for any layout.
inline Geometry merged_geometry(const char* function, const char* name, const Layout& layout, const AxisRange& axes,
                                int sample_axis) {
  const bool first_apart = sample_axis == 0, last_apart = sample_axis > 0;
  const MergedAxes outer = merge_axes(layout, first_apart ? 1 : 0, axes.first),
                   reduced = merge_axes(layout, axes.first, axes.last + 1),
                   inner = merge_axes(layout, axes.last + 1, last_apart ? sample_axis : layout.rank);
  if (last_apart && inner.count > 0)
    throw_shape_error(function, name, " (", text(layout),
                      ") has axes between the channels and the samples, expected none");
  if (outer.count > (first_apart ? 1 : 2) || reduced.count > 1 || inner.count > 1)
    throw_shape_error(function, name, " (", text(layout), ") has gaps between the axes ", axes.first, " to ", axes.last,
                      "; expected memory in which they can be counted as one");
  Geometry view;
  for (int level = 0; level < outer.count; ++level) {
    const auto to = static_cast<std::size_t>(2 - outer.count + level), from = static_cast<std::size_t>(level);
    view.outer[to] = outer.extent[from];
    view.outer_stride[to] = outer.stride[from];
  }
  view.length = reduced.count ? reduced.extent[0] : 1;
  view.stride = reduced.count ? reduced.stride[0] : 1;
  view.inner = inner.count ? inner.extent[0] : 1;
  view.inner_stride = inner.count ? inner.stride[0] : 0;
  if (sample_axis >= 0) {
    const auto a = static_cast<std::size_t>(sample_axis);
    (first_apart ? view.outer[0] : view.inner) = layout.extent[a];
    (first_apart ? view.outer_stride[0] : view.inner_stride) = layout.stride[a];
  }
  view.merged = std::max({outer.order, reduced.order, inner.order});
  for (int a = 0; a < layout.rank; ++a)
    if (layout.extent[static_cast<std::size_t>(a)] == 0) view.outer = {0, 1};
  return view;
}

/// A layout seen along the axes first..last. Where these axes, or those inside them, cannot be counted as one (a
/// strided map seen as a whole, say), that is a ShapeError. A sample axis, the first or the last one, is kept apart: it
/// becomes outer[0] or inner.
/// The rows of a matrix, the usual case, are seen here, in registers: a struct that a call returns is written in words and
/// read in wide registers, for which the processor waits.
EVENKEEL_HOST Geometry geometry_along(const char* function, const char* name, const Layout& layout,
                                      const AxisRange& axes, int sample_axis = -1) {
  const bool matrix_rows = layout.rank == 2 && axes.first == 1 && sample_axis < 0;
  if (!matrix_rows || layout.extent[0] < 1 || layout.extent[1] <= 1)
    return merged_geometry(function, name, layout, axes, sample_axis);
  Geometry view;
  view.outer[1] = layout.extent[0];
  view.outer_stride[1] = layout.extent[0] > 1 ? layout.stride[0] : 0;
  view.length = layout.extent[1];
  view.stride = layout.stride[1];
  return view;
}

/// The view of `x` along the axes first..last.
template <class X>
AxisView<element_t<X>> view_along(const char* function, const char* name, X& x, const AxisRange& axes) {
  return view_as(geometry_along(function, name, layout_of(x), axes), data_of(x));
}

}  // namespace detail::inline EVENKEEL_ISA
}  // namespace evenkeel
