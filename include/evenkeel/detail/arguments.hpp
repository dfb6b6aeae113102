/// Checks that the public functions of norms make once, before any work, and the views that come out of them.
#pragma once

#include "evenkeel/detail/row_math.hpp"
#include "evenkeel/view.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <string>

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// The option eps as the accumulator type sees it.
template <class A>
A resolved_eps(const char* function, double eps) {
  if (eps == machine_epsilon) return std::numeric_limits<A>::epsilon();
  if (!(eps >= 0) || std::isinf(eps))
    throw_shape_error(function, "eps is ", eps, ", expected a finite number of at least 0");
  return static_cast<A>(eps);
}

/// The arguments of one call, checked against the first one. Outputs must be registered after inputs: an output may be
/// exactly the memory of an input, or apart from it, and of the other outputs.
template <class X>
class RowArguments {
 public:
  using View = AxisView<const scalar_t<X>>;

  RowArguments(const char* function, const char* name, const X& x, const Axes& axes)
      : function_(function), name_(name) {
    if constexpr (is_axis_view<X>) {
      view_ = read_only(x);
    } else {
      layout_ = layout_of(x);
      range_ = resolve_axes(function, name, layout_, axes);
      view_ = read_only(view_along(function, name, x, range_));
    }
    if (view_.length == 0) throw_shape_error(function, name, " has 0 features (", shape(), ")");
    remember(name, view_);
  }

  const View& view() const { return view_; }
  RowGrid grid() const { return grid_of(view_); }
  auto first() const { return rows_of(view_); }

  /// "x is 32x128, axis 1".
  std::string shape() const {
    if constexpr (is_axis_view<X>) {
      return std::string(name_) + " is a view of " + std::to_string(view_.rows()) + " rows of " +
             std::to_string(view_.length);
    } else {
      std::string s = std::string(name_) + " is " + text(layout_) + ", ax";
      if (range_.first == range_.last) return s + "is " + std::to_string(range_.first);
      return s + "es " + std::to_string(range_.first) + " to " + std::to_string(range_.last);
    }
  }

  /// An input of the same shape, or none.
  template <class T>
  auto input(const char* name, const T& t) {
    if constexpr (is_none_v<T>) {
      return none;
    } else {
      const auto view = read_only(same_shape(name, t));
      remember(name, view);
      return rows_of(view);
    }
  }

  /// An output of the same shape.
  template <class T>
  auto output(const char* name, T& t) {
    static_assert(!std::is_const_v<element_t<T>>, "evenkeel: an output argument must have memory that can be written");
    const auto view = same_shape(name, t);
    check_overlap(name, view);
    remember(name, view, true);
    return rows_of(view);
  }

  /// A parameter, or its gradient, with one contiguous value for each of `count` features.
  template <class T>
  auto parameter(const char* name, T& p, Index count, const char* what = "features") const {
    if constexpr (is_none_v<T>) {
      return none;
    } else {
      const Layout layout = layout_of(p);
      if (layout.size() != count)
        throw_shape_error(function_, name, " has ", layout.size(), " values, ", name_, " has ", count, " ", what, " (",
                          shape(), ")");
      const MergedAxes merged = merge_axes(layout, 0, layout.rank);
      if (merged.count > 1 || (merged.count == 1 && merged.stride[0] != 1))
        throw_shape_error(function_, name, " (", text(layout), ") is strided, expected contiguous values");
      return p.data();
    }
  }
  template <class T>
  auto parameter(const char* name, T& p) const {
    return parameter(name, p, view_.length);
  }

 private:
  struct Span {
    const char* name;
    std::uintptr_t data, end;
    Index bytes;
    RowGrid grid;
    std::array<Index, 3> stride;
    Index length_stride;
    bool written = false;
  };

  template <class T>
  static AxisView<const T> read_only(const AxisView<T>& v) {
    return {v.data, v.outer, v.outer_stride, v.length, v.stride, v.inner, v.inner_stride, v.merged};
  }

  template <class T>
  auto same_shape(const char* name, T& t) const {
    if constexpr (is_axis_view<X> || is_axis_view<std::remove_const_t<T>>) {
      static_assert(is_axis_view<X> && is_axis_view<std::remove_const_t<T>>,
                    "evenkeel: pass either AxisViews or Eigen tensors, not both in one call");
      if (t.outer != view_.outer || t.length != view_.length || t.inner != view_.inner)
        throw_shape_error(function_, name, " is a view of ", t.rows(), " rows of ", t.length, ", ", shape());
      return t;
    } else {
      const Layout layout = layout_of(t);
      if (layout.rank != layout_.rank || layout.extent != layout_.extent)
        throw_shape_error(function_, name, " is ", text(layout), ", ", shape());
      const auto view = view_along(function_, name, t, range_);
      if (view.merged && view_.merged && view.merged != view_.merged)
        throw_shape_error(function_, name, " and ", name_,
                          " have different storage orders, expected the same for more than two dimensions");
      return view;
    }
  }

  template <class T>
  static Span span_of(const char* name, const AxisView<T>& v) {
    const auto data = reinterpret_cast<std::uintptr_t>(v.data);
    const Index last = (v.outer[0] - 1) * v.outer_stride[0] + (v.outer[1] - 1) * v.outer_stride[1] +
                       (v.length - 1) * v.stride + (v.inner - 1) * v.inner_stride;
    const auto bytes = static_cast<Index>(sizeof(T));
    return {name,    data,       data + static_cast<std::uintptr_t>((last + 1) * bytes),
            bytes,   grid_of(v), {v.outer_stride[0], v.outer_stride[1], v.inner_stride},
            v.stride};
  }
  template <class T>
  void remember(const char* name, const AxisView<T>& view, bool written = false) {
    Span& span = spans_[static_cast<std::size_t>(count_++)];
    span = span_of(name, view);
    span.written = written;
  }

  /// Rows that interleave without touching, as the slices of a fused QKV matrix do: one level of rows, one pitch.
  static bool interleaved(const Span& a, const Span& b) {
    const Index pitch = a.stride[1] * a.bytes, row = a.grid.length * a.bytes;
    if (a.bytes != b.bytes || a.stride[1] != b.stride[1] || a.length_stride != 1 || b.length_stride != 1 ||
        a.grid.extent[0] != 1 || a.grid.extent[2] != 1 || pitch <= 0)
      return false;
    const Index apart = static_cast<Index>(a.data > b.data ? a.data - b.data : b.data - a.data) % pitch;
    return apart >= row && pitch - apart >= row;
  }

  template <class T>
  void check_overlap(const char* name, const AxisView<T>& view) const {
    if (view.rows() == 0) return;
    const Span out = span_of(name, view);
    for (int i = 0; i < count_; ++i) {
      const Span& other = spans_[static_cast<std::size_t>(i)];
      if (out.end <= other.data || other.end <= out.data) continue;
      if (!other.written && out.data == other.data && out.bytes == other.bytes && out.stride == other.stride &&
          out.length_stride == other.length_stride)
        continue;
      if (!interleaved(out, other))
        throw_shape_error(function_, name, " overlaps ", other.name,
                          (other.written ? ", expected memory apart from it"
                                         : " in part, expected the same memory or memory apart from it"));
    }
  }

  const char* function_;
  const char* name_;
  Layout layout_;
  AxisRange range_;
  View view_;
  std::array<Span, 12> spans_{};
  int count_ = 0;
};

/// Adds sums to a parameter's gradient, or writes them there.
template <class T, class A>
void put_gradient(T* gradient, const A* sums, Index count, GradientMode mode) {
  if (mode == GradientMode::overwrite)
    for (Index i = 0; i < count; ++i) gradient[i] = static_cast<T>(sums[i]);
  else
    for (Index i = 0; i < count; ++i) gradient[i] = static_cast<T>(static_cast<A>(gradient[i]) + sums[i]);
}
template <class A>
void put_gradient(None, const A*, Index, GradientMode) {}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
