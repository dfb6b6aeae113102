/// Where the elements of a weight with named axes lie, whatever its storage order and strides.
#pragma once

#include "evenkeel/detail/places.hpp"
#include "evenkeel/view.hpp"

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// A weight's layout, its named axes, and the offsets of its elements along groups of axes.
class WeightPlaces {
 public:
  /// Throws ShapeError where the weight has fewer than two axes.
  template <class X>
  WeightPlaces(const char* function, const X& weight) : function_(function), layout_(layout_of(weight)) {
    if (layout_.rank < 2)
      throw_shape_error(function, "weight has ", layout_.rank, (layout_.rank == 1 ? " axis" : " axes"),
                        ", expected at least two (weight is ", text(layout_), ")");
  }

  /// The axis that `named` is. Throws ShapeError where there is none, or where it is `other`.
  int axis(const char* option, int named, int other = -1) const {
    const int axis = resolve_axes(function_, "weight", layout_, Axes(named)).first;
    if (axis == other)
      throw_shape_error(function_, option, " names axis ", named, ", which is named already (weight is ", text(layout_),
                        ")");
    return axis;
  }

  Index extent(int axis) const { return layout_.extent[static_cast<std::size_t>(axis)]; }
  Index stride(int axis) const { return layout_.stride[static_cast<std::size_t>(axis)]; }
  Index size() const { return layout_.size(); }
  int rank() const { return layout_.rank; }
  std::string shape() const { return "weight is " + text(layout_); }

  /// Offsets of all indices of the axes but `axis` and `other`, the last axis fastest.
  std::vector<Index> offsets_without(int axis, int other = -1) const {
    std::vector<int> rest;
    for (int a = 0; a < layout_.rank; ++a)
      if (a != axis && a != other) rest.push_back(a);
    return offsets_along(layout_, rest);
  }

  /// The offset of the middle of all axes but two: index extent / 2 of each.
  Index center_without(int axis, int other) const {
    Index offset = 0;
    for (int a = 0; a < layout_.rank; ++a)
      if (a != axis && a != other) offset += extent(a) / 2 * stride(a);
    return offset;
  }

 private:
  const char* function_;
  Layout layout_;
};

/// Rounded to half and bfloat16 by way of float, as all initializers do.
template <class T>
T rounded(double value) {
  if constexpr (std::is_same_v<T, double>)
    return value;
  else
    return static_cast<T>(static_cast<float>(value));
}

/// Every element of the weight = 0, gaps between them left alone.
template <class T>
void clear_weight(const WeightPlaces& places, T* data) {
  for (const Index begin : places.offsets_without(0))
    for (Index i = 0; i < places.extent(0); ++i) data[begin + i * places.stride(0)] = rounded<T>(0);
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
