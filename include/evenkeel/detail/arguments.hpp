/// Checks that the public functions of norms make once, before any work, and the views that come out of them.
#pragma once

#include "evenkeel/detail/channel_math.hpp"
#include "evenkeel/detail/kernels_cpu.hpp"
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

/// The arguments of one call, checked against its reference, which is named first. Inputs and parameters come before
/// outputs: an output may be exactly the memory of an input, or apart from it, and apart from all else.
/// Inlined, all but what is rare, so that shapes stay in registers: half of a small call's time is these checks.
class RowArguments {
 public:
  explicit RowArguments(const char* function) : function_(function) {}

  /// Keeps the sample axis apart from the other reduced axes. Before the reference.
  void keep_samples(int axis) { sample_axis_ = axis, keeps_samples_ = true; }

  /// The tensor that the others are checked against.
  template <class X>
  EVENKEEL_HOST auto reference(const char* name, const X& x, const Axes& axes) {
    name_ = name;
    if constexpr (is_axis_view<X>) {
      is_view_ = true;
      set_reference(view_as<const void>(x, x.data));
    } else {
      layout_ = layout_of(x);
      range_ = resolve_axes(function_, name, layout_, axes);
      resolve_sample_axis();
      set_reference(geometry_along(function_, name, layout_, range_, sample_axis_));
    }
    const auto view = view_as<const scalar_t<X>>(view_, data_of(x));
    remember(name, view, true);
    return rows_of(view);
  }

  const Geometry& view() const { return view_; }
  SampleLevel sample_level() const {
    if (!keeps_samples_) return SampleLevel::none;
    return is_view_ || sample_axis_ == 0 ? SampleLevel::outer : SampleLevel::inner;
  }

  RowGrid grid() const { return grid_of(view_); }

  /// "x is 32x128, axis 1".
  std::string shape() const {
    std::string s = name_;
    if (is_view_) {
      s += " is a view of ";
      append(s, view_.rows());
      s += " rows of ";
      append(s, view_.length);
      return s;
    }
    s += " is ";
    s += text(layout_);
    s += range_.first == range_.last ? ", axis " : ", axes ";
    append(s, range_.first);
    if (range_.first == range_.last) return s;
    s += " to ";
    append(s, range_.last);
    return s;
  }

  /// An input of the same shape, or none.
  template <class T>
  EVENKEEL_HOST auto input(const char* name, const T& t) {
    if constexpr (is_none_v<T>) {
      return none;
    } else {
      const AxisView<const scalar_t<T>> view = view_as<const scalar_t<T>>(same_shape(name, t), data_of(t));
      remember(name, view, true);
      return rows_of(view);
    }
  }

  /// One value for each position, the same for all channels: the reference's shape without the channel axis, or with
  /// extent 1 there. Or none.
  template <class T>
  auto mask(const char* name, const T& t) {
    if constexpr (is_none_v<T>) {
      return none;
    } else {
      static_assert(!is_axis_view<T>, "evenkeel: a mask must be an Eigen tensor, matrix, array, map or vector");
      const auto view =
          view_as<const scalar_t<T>>(mask_geometry(name, layout_of(t), "one value for each position of "), t.data());
      remember(name, view, false);
      return rows_of(view);
    }
  }

  /// One value for each element, or one for each row: the reference's shape, or that without the reduced axes, or with
  /// extent 1 there. Or none.
  template <class T>
  auto row_mask(const char* name, const T& t) {
    if constexpr (is_none_v<T>) {
      return none;
    } else {
      const auto view = view_as<const scalar_t<T>>(row_mask_geometry(name, t), data_of(t));
      remember(name, view, false);
      return MaskRows<const scalar_t<T>>{rows_of(view)};
    }
  }

  /// An output of the same shape.
  template <class T>
  EVENKEEL_HOST auto output(const char* name, T& t) {
    static_assert(!std::is_const_v<element_t<T>>, "evenkeel: an output argument must have memory that can be written");
    const auto view = view_as(same_shape(name, t), data_of(t));
    check_overlap(span_of(name, view, false), count_, true);
    remember(name, view, false);
    return rows_of(view);
  }

  /// A parameter, or its gradient, with one contiguous value for each of the reference's features.
  template <class T>
  EVENKEEL_HOST auto parameter(const char* name, T& p, const char* what = "features") {
    if constexpr (is_none_v<T>) {
      return none;
    } else {
      check_parameter(name, layout_of(p), what);
      remember(name, AxisView<element_t<T>>{.data = p.data(), .length = view_.length}, false);
      return p.data();
    }
  }

  /// A parameter's gradient that is written before all inputs are read: apart from all that was named before it.
  template <class T>
  EVENKEEL_HOST auto gradient(const char* name, T& p) {
    const int before = count_;
    const auto data = parameter(name, p);
    if constexpr (!is_none_v<T>) check_overlap(spans_[static_cast<std::size_t>(before)], before, false);
    return data;
  }

 private:
  struct Span {
    const char* name;
    std::uintptr_t data, end;
    Index bytes;
    std::array<Index, 3> extent, stride;
    Index length, length_stride;
    bool shared;  // an input, which an output may stand in for exactly
  };

  EVENKEEL_HOST void set_reference(const Geometry& view) {
    view_ = view;
    if (view_.length == 0) throw_shape_error(function_, name_, " has 0 features (", shape(), ")");
  }

  void resolve_sample_axis() {
    if (!keeps_samples_) return;
    const int named = sample_axis_;
    if (named < 0) sample_axis_ += layout_.rank;
    if (sample_axis_ != 0 && sample_axis_ != layout_.rank - 1)
      throw_shape_error(function_, "the sample axis is ", named, ", expected the first or the last axis (", shape(),
                        ")");
    if (sample_axis_ >= range_.first && sample_axis_ <= range_.last)
      throw_shape_error(function_, "the sample axis ", named, " is the channel axis (", shape(), ")");
  }
  /// The reference's shape without its channel axis, or without the axes of its rows, or with extent 1 there.
  Geometry mask_geometry(const char* name, const Layout& mask, const char* expected) const {
    Layout layout = layout_;  // of the reference, with one channel
    const bool full = mask.rank == layout_.rank;
    const bool fits = !is_view_ && (full || mask.rank == layout_.rank - (range_.last - range_.first + 1));
    bool same = fits;
    for (int a = 0, m = 0; fits && a < layout_.rank; ++a) {
      const auto to = static_cast<std::size_t>(a), from = static_cast<std::size_t>(m);
      if (a >= range_.first && a <= range_.last) {
        layout.extent[to] = 1;
        layout.stride[to] = 0;
        if (full) same = same && mask.extent[from] == 1, ++m;
      } else {
        layout.extent[to] = mask.extent[from];
        layout.stride[to] = mask.stride[from];
        same = same && mask.extent[from] == layout_.extent[to];
        ++m;
      }
    }
    if (!same)
      throw_shape_error(function_, name, " is ", text(mask), ", expected ", expected, name_, " (", shape(), ")");
    Geometry view = geometry_along(function_, name, layout, range_, sample_axis_);
    if (view.outer != view_.outer || view.inner != view_.inner)
      throw_shape_error(function_, name, " (", text(mask), ") has gaps or another storage order than ", name_, " (",
                        shape(), "), expected memory in which its axes can be counted as one");
    view.stride = 0;
    return view;
  }
  template <class T>
  Geometry row_mask_geometry(const char* name, const T& t) const {
    if constexpr (is_axis_view<T>) {
      Geometry view = view_as<const void>(t, t.data);
      if (!is_view_ || view.length != 1 || view.outer != view_.outer || view.inner != view_.inner)
        return same_shape(name, t);
      view.stride = 0;
      return view;
    } else {
      const Layout mask = layout_of(t);
      if (!is_view_ && same_extents(mask, layout_)) return same_layout(name, mask);
      return mask_geometry(name, mask, "one value for each element or each row of ");
    }
  }

  template <class T>
  EVENKEEL_HOST Geometry same_shape(const char* name, const T& t) const {
    if constexpr (is_axis_view<T>) {
      const Geometry view = view_as<const void>(t, t.data);
      if (!is_view_ || view.outer != view_.outer || view.length != view_.length || view.inner != view_.inner)
        throw_shape_error(function_, name, " is a view of ", view.rows(), " rows of ", view.length, ", ", shape());
      return view;
    } else {
      return same_layout(name, layout_of(t));
    }
  }
  EVENKEEL_HOST Geometry same_layout(const char* name, const Layout& layout) const {
    if (is_view_ || !same_extents(layout, layout_))
      throw_shape_error(function_, name, " is ", text(layout), ", ", shape());
    const Geometry view = geometry_along(function_, name, layout, range_, sample_axis_);
    if (view.merged && view_.merged && view.merged != view_.merged)
      throw_shape_error(function_, name, " and ", name_,
                        " have different storage orders, expected the same for more than two dimensions");
    return view;
  }
  EVENKEEL_HOST void check_parameter(const char* name, const Layout& layout, const char* what) const {
    if (layout.size() != view_.length)
      throw_shape_error(function_, name, " has ", layout.size(), " values, ", name_, " has ", view_.length, " ", what,
                        " (", shape(), ")");
    if (layout.rank == 1 && layout.stride[0] == 1) return;
    const MergedAxes merged = merge_axes(layout, 0, layout.rank);
    if (merged.count > 1 || (merged.count == 1 && merged.stride[0] != 1))
      throw_shape_error(function_, name, " (", text(layout), ") is strided, expected contiguous values");
  }

  template <class T>
  EVENKEEL_HOST static Span span_of(const char* name, const AxisView<T>& v, bool shared) {
    const auto data = reinterpret_cast<std::uintptr_t>(v.data);
    const Index last = (v.outer[0] - 1) * v.outer_stride[0] + (v.outer[1] - 1) * v.outer_stride[1] +
                       (v.length - 1) * v.stride + (v.inner - 1) * v.inner_stride;
    const auto bytes = static_cast<Index>(sizeof(T));
    return {name,
            data,
            data + static_cast<std::uintptr_t>((last + 1) * bytes),
            bytes,
            {v.outer[0], v.outer[1], v.inner},
            {v.outer_stride[0], v.outer_stride[1], v.inner_stride},
            v.length,
            v.stride,
            shared};
  }
  template <class T>
  EVENKEEL_HOST void remember(const char* name, const AxisView<T>& view, bool shared) {
    spans_[static_cast<std::size_t>(count_++)] = span_of(name, view, shared);
  }

  /// Rows that interleave without touching, as the slices of a fused QKV matrix do: one level of rows, one pitch.
  static bool interleaved(const Span& a, const Span& b) {
    const Index pitch = a.stride[1] * a.bytes, row = a.length * a.bytes;
    if (a.bytes != b.bytes || a.stride[1] != b.stride[1] || a.length_stride != 1 || b.length_stride != 1 ||
        a.extent[0] != 1 || a.extent[2] != 1 || pitch <= 0)
      return false;
    const Index apart = static_cast<Index>(a.data > b.data ? a.data - b.data : b.data - a.data) % pitch;
    return apart >= row && pitch - apart >= row;
  }
  /// With the first `count` arguments, of which it may be one that an output may stand in for.
  void check_overlap(const Span& out, int count, bool may_stand_in) const {
    if (view_.rows() == 0) return;
    for (int i = 0; i < count; ++i) {
      const Span& other = spans_[static_cast<std::size_t>(i)];
      if (out.end <= other.data || other.end <= out.data) continue;
      const bool shared = may_stand_in && other.shared;
      if (shared && out.data == other.data && out.bytes == other.bytes && out.stride == other.stride &&
          out.length_stride == other.length_stride)
        continue;
      if (!interleaved(out, other))
        throw_shape_error(function_, out.name, " overlaps ", other.name,
                          (shared ? " in part, expected the same memory or memory apart from it"
                                  : ", expected memory apart from it"));
    }
  }

  const char* function_;
  const char* name_ = nullptr;
  bool is_view_ = false, keeps_samples_ = false;
  int sample_axis_ = -1;
  Layout layout_;
  AxisRange range_;
  Geometry view_;
  std::array<Span, 12> spans_;  // the first count_ are set
  int count_ = 0;
};

/// Adds sums to a parameter's gradient, or writes them there.
template <class T, class A>
void put_gradient(T* gradient, const A* sums, Index count, GradientMode mode) {
  const auto put = [&]<class V>(const V&, Index i) {
    const V sum = load<V>(sums + i);
    store<V>(gradient + i, mode == GradientMode::overwrite ? sum : V(load<V>(gradient + i) + sum));
  };
  Index i = 0;
  for (; i + pack_size<A> <= count; i += pack_size<A>) put(Pack<A>(), i);
  for (; i < count; ++i) put(A(), i);
}
template <class A>
void put_gradient(None, const A*, Index, GradientMode) {}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
