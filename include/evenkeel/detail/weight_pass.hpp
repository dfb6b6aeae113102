/// What the norms of weights have in common: checked arguments, and passes that add to a gradient.
///
/// A weight norm is a channel norm: each index of the kept axis is one output unit, all other axes are reduced. Sums are
/// taken in double, whatever the weights are stored in: there are few of them beside the activations, and the squares
/// of every float have room in double.
#pragma once

#include "evenkeel/detail/arguments.hpp"
#include "evenkeel/detail/channel_pass_cpu.hpp"
#include "evenkeel/detail/for_each_value.hpp"
#include "evenkeel/detail/row_pass_cpu.hpp"
#include "evenkeel/detail/weight_math.hpp"
#include "evenkeel/storage.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// Whether tensors of T... are written in float: on the CPU, where conversions to double and back take longer than all
/// else.
template <class Device, class... T>
inline constexpr bool in_float = !StreamDevice<Device> && ((sizeof(T) <= sizeof(float)) && ...);

/// Where a math's rows have no members.
inline constexpr const double* nothing_known = nullptr;

/// The arguments of one call on a weight. The weight, named first, has one unit for each index of its axis; with
/// `whole` all of it is one unit.
class WeightArguments {
 public:
  explicit WeightArguments(const char* function, bool whole = false)
      : function_(function), whole_(whole), arguments_(function) {}

  template <class X>
  auto reference(const char* name, const X& x, const Axes& axes) {
    name_ = name;
    const auto rows = arguments_.reference(name, x, whole_ && !is_axis_view<X> ? Axes(0) : axes);
    const RowGrid seen = arguments_.grid();
    if (seen.rows() == 0)
      throw_shape_error(function_, name, " has no values, expected at least one per unit (", arguments_.shape(), ")");
    if (whole_ && seen.extent[0] > 1)
      throw_shape_error(function_, name, " has two outer levels, expected at most one where the whole is one unit (",
                        arguments_.shape(), ")");
    grid_ = whole_ ? RowGrid{{seen.extent[1], seen.length, seen.extent[2]}, 1} : seen;
    return units_of(rows);
  }
  template <class X>
  auto input(const char* name, const X& x) {
    return units_of(arguments_.input(name, x));
  }
  template <class X>
  auto output(const char* name, X& x) {
    const auto rows = units_of(arguments_.output(name, x));
    const Index last = (grid_.extent[0] - 1) * rows.stride[0] + (grid_.extent[1] - 1) * rows.stride[1] +
                       (grid_.extent[2] - 1) * rows.stride[2] + (grid_.length - 1) * rows.length_stride;
    const Span out = span_of(name, rows.data, last + 1);
    for (int i = 0; i < count_; ++i) {
      const Span& other = spans_[static_cast<std::size_t>(i)];
      if (out.data < other.end && other.data < out.end)
        throw_shape_error(function_, name, " overlaps ", other.name, ", expected memory apart from it");
    }
    return rows;
  }
  /// A parameter, or its gradient, with one value for each unit; or none.
  template <class P>
  auto parameter(const char* name, P& p) {
    if constexpr (is_none_v<P>) {
      return none;
    } else {
      if (whole_) return values(name, p, 1, "unit, the whole of it");
      return arguments_.parameter(name, p, "units");
    }
  }
  /// `count` contiguous values that outputs must keep away from.
  template <class P>
  auto values(const char* name, P& p, Index count, const char* what) {
    const Layout layout = layout_of(p);
    if (layout.size() != count)
      throw_shape_error(function_, name, " has ", layout.size(), " values, ", name_, " has ", count, " ", what, " (",
                        shape(), ")");
    const MergedAxes merged = merge_axes(layout, 0, layout.rank);
    if (merged.count > 1 || (merged.count == 1 && merged.stride[0] != 1))
      throw_shape_error(function_, name, " (", text(layout), ") is strided, expected contiguous values");
    spans_[static_cast<std::size_t>(count_++)] = span_of(name, p.data(), count);
    return p.data();
  }

  const RowGrid& grid() const { return grid_; }
  std::string shape() const { return arguments_.shape(); }
  Index units() const { return grid_.length; }
  /// Values per unit.
  Index count() const { return grid_.rows(); }
  /// Bytes of one pass over one tensor of T.
  template <class T>
  double bytes(const Rows<T>&) const {
    return static_cast<double>(grid_.rows()) * static_cast<double>(grid_.length) * sizeof(T);
  }

 private:
  struct Span {
    const char* name;
    std::uintptr_t data, end;
  };
  template <class T>
  static Span span_of(const char* name, T* p, Index count) {
    const auto data = reinterpret_cast<std::uintptr_t>(p);
    return {name, data, data + static_cast<std::uintptr_t>(count) * sizeof(T)};
  }
  template <class T>
  Rows<T> units_of(const Rows<T>& r) const {
    return whole_ ? Rows<T>{r.data, {r.stride[1], r.length_stride, r.stride[2]}, 0} : r;
  }

  const char* function_;
  const char* name_ = nullptr;
  bool whole_;
  RowArguments arguments_;
  RowGrid grid_;
  std::array<Span, 6> spans_;  // the first count_ are set
  int count_ = 0;
};

template <class T>
Rows<const T> read_only(const Rows<T>& rows) {
  return {rows.data, rows.stride, rows.length_stride};
}

/// Calls f with the pass that writes the gradient of a weight, or that adds it to what is there.
template <class Math, class... Inputs, class... Parameters, class T, class F>
void with_gradient_pass(const Math& math, const RowGrid& grid, const std::tuple<Inputs...>& inputs,
                        const std::tuple<Parameters...>& parameters, const Rows<T>& out, const double* known,
                        GradientMode mode, const F& f) {
  if (mode == GradientMode::overwrite)
    f(RowPass{math, grid, inputs, parameters, std::tuple(out), known});
  else
    f(RowPass{Accumulated<Math>{math}, grid, std::tuple_cat(std::tuple(read_only(out)), inputs), parameters,
              std::tuple(out), known});
}
template <class Device, class Math, class Inputs, class Parameters, class T>
void write_gradient(const Device& device, const Math& math, const RowGrid& grid, const Inputs& inputs,
                    const Parameters& parameters, const Rows<T>& out, const double* known, double bytes,
                    GradientMode mode) {
  with_gradient_pass(math, grid, inputs, parameters, out, known, mode,
                     [&](const auto& pass) { channel_write(device, pass, bytes); });
}

/// Values of scratch for the sums of a pass over these cells.
template <class Device>
  requires(!StreamDevice<Device>)
Index unit_room(const Device&, const ChannelGrid&) { return 0; }
template <class Device>
Index unit_room(const Device& device, const RowGrid& grid) {
  return unit_room(device, channel_grid(grid, SampleLevel::none));
}

/// The values of each unit, from its sums, to pass.kept, and then between(unit). `scratch` holds unit_room() values.
template <class Device, class M, class I, class P, class O, class Known, class Kept, class Between = NothingBetween>
  requires(!StreamDevice<Device>)
void unit_sums(const Device& device, const ChannelPass<M, I, P, O, Known, Kept>& pass, double*, double bytes,
               const Between& between = {}) {
  channel_sums(device, pass, bytes);
  for_each_value(device, pass.grid.cells(), between);
}
template <class Device, class M, class I, class P, class O, class Known, class Kept, class Between = NothingBetween>
void unit_sums(const Device& device, const RowPass<M, I, P, O, Known, Kept>& pass, double* scratch, double bytes,
               const Between& between = {}) {
  unit_sums(device, over_channels(pass), scratch, bytes, between);
}

/// The values of each unit, between(unit), and its outputs while its weights are in the cache.
template <class Device, class SumPass, class Between, class WritePass>
void unit_passes(const Device& device, const SumPass& sums, double* scratch, const Between& between,
                 const WritePass& write, double bytes) {
  if constexpr (StreamDevice<Device>) {
    unit_sums(device, sums, scratch, bytes, between);
    channel_write(device, write, bytes);
  } else {
    channel_passes(
        device, over_channels(sums),
        [&](Index, Index first, Index last) {
          for (Index unit = first; unit < last; ++unit) between(unit);
        },
        over_channels(write), 1, bytes);
  }
}

/// Memory of the device for one call that is for setting up, and what it holds, for the host to read.
template <class Device>
  requires(!StreamDevice<Device>)
HostBuffer<double> scratch_of(const Device&, Index size) {
  HostBuffer<double> buffer;
  buffer.reserve(size);
  return buffer;
}
template <class Device>
  requires(!StreamDevice<Device>)
const double* host_values(const Device&, const double* values, Index, HostBuffer<double>&) { return values; }

/// A gradient that is added to must not be the gradient that it is computed from.
template <class T, class U>
void require_own_gradient(const char* function, const char* name, const Rows<T>& gradient, const char* from_name,
                          const Rows<U>& from, GradientMode mode) {
  if (mode == GradientMode::accumulate && static_cast<const void*>(gradient.data) == from.data)
    throw_shape_error(function, name, " is ", from_name,
                      ", expected memory apart from it where gradients are accumulated");
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
