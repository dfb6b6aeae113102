/// Fans: how many inputs feed one output, and how many outputs one input feeds.
#pragma once

#include "evenkeel/device.hpp"
#include "evenkeel/error.hpp"

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace evenkeel {

/// The two numbers that variance-scaling initializers read. Example for x W with W of 256 x 1024:
/// `ek::Fans{.in = 256, .out = 1024}`, or `ek::fans_of_linear(256, 1024)`.
struct Fans {
  Index in = 0;
  Index out = 0;
};

/// Which axis of a grouped weight counts the channels of all groups; the other one counts those of one group.
enum class GroupedAxis {
  output,  ///< convolution: (out, in / groups, kernel...)
  input    ///< transposed convolution: (in, out / groups, kernel...)
};

/// What the axes of a weight mean. Negative axes count from the end; axes named nowhere are the receptive field.
struct FanAxes {
  std::vector<Index> input = {};
  std::vector<Index> output = {};
  Index groups = 1;
  GroupedAxis grouped = GroupedAxis::output;
};

namespace detail {

inline std::string list_text(std::span<const Index> values, const char* separator) {
  std::string text;
  for (const Index value : values) text += (text.empty() ? "" : separator) + std::to_string(value);
  return text;
}

/// The product of the extents of the named axes; marks them in `taken`.
inline Index named_extent(std::span<const Index> shape, const std::string& shape_text, const char* argument,
                          const std::vector<Index>& axes, std::vector<bool>& taken) {
  const auto rank = static_cast<Index>(shape.size());
  const std::string prefix = std::string("axes.") + argument;
  if (axes.empty()) {
    throw_shape_error("fans_of", prefix, " names no axis, expected at least one (", shape_text, ")");
  }
  Index extent = 1;
  for (const Index named : axes) {
    const Index axis = named < 0 ? named + rank : named;
    if (axis < 0 || axis >= rank) {
      throw_shape_error("fans_of", prefix, " names axis ", named, ", expected one from ", -rank, " to ", rank - 1, " (",
                        shape_text, ")");
    }
    const auto place = static_cast<std::size_t>(axis);
    if (taken[place]) {
      throw_shape_error("fans_of", prefix, " names axis ", named,
                        ", which is named already, expected every axis at most once (", shape_text, ")");
    }
    taken[place] = true;
    extent *= shape[place];
  }
  return extent;
}

}  // namespace detail

/// The fans of a weight of `shape` whose axes are named:
///
///   in = inputs of one group * receptive field, out = outputs of one group * receptive field,
///
/// the receptive field being the product of the axes that are neither input nor output. Nothing is guessed from the
/// rank: the same shape is another layer in another layout. Strides of a convolution do not count. torch's own
/// initializers do not divide by groups for fan_out, and read a transposed convolution as a plain one; make a Fans by
/// hand for those numbers. A shape with an extent of 0 has fans of 0; the initializers leave its empty tensor alone.
///
/// Throws ShapeError: fewer than two axes, a negative extent, no input or output axis, an axis out of range or named
/// twice, groups that do not divide the grouped axis.
///
/// Example, a depthwise convolution with 32 channels, stored as torch stores it (out, in / groups, height, width); both
/// fans are 9:
///
///   const ek::Fans fans = ek::fans_of({32, 1, 3, 3}, {.input = {1}, .output = {0}, .groups = 32});
inline Fans fans_of(std::span<const Index> shape, const FanAxes& axes) {
  const std::string shape_text = "shape is " + (shape.empty() ? "()" : detail::list_text(shape, "x"));
  if (shape.size() < 2) {
    detail::throw_shape_error("fans_of", "shape has ", shape.size(), (shape.size() == 1 ? " axis" : " axes"),
                              ", a fan needs at least two axes (", shape_text, ")");
  }
  for (const Index extent : shape) {
    if (extent < 0) {
      detail::throw_shape_error("fans_of", "shape has extent ", extent, ", expected at least 0 (", shape_text, ")");
    }
  }
  std::vector<bool> taken(shape.size(), false);
  Fans fans{.in = detail::named_extent(shape, shape_text, "input", axes.input, taken),
            .out = detail::named_extent(shape, shape_text, "output", axes.output, taken)};

  const bool outputs_grouped = axes.grouped == GroupedAxis::output;
  Index& grouped = outputs_grouped ? fans.out : fans.in;
  if (axes.groups < 1 || grouped % axes.groups != 0) {
    detail::throw_shape_error("fans_of", "axes.groups is ", axes.groups, ", expected a divisor of the ", grouped,
                              (outputs_grouped ? " outputs" : " inputs"), " (", shape_text, ")");
  }
  grouped /= axes.groups;

  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (taken[i]) continue;
    fans.in *= shape[i];
    fans.out *= shape[i];
  }
  return fans;
}

inline Fans fans_of(std::initializer_list<Index> shape, const FanAxes& axes) {
  return fans_of(std::span<const Index>(shape.begin(), shape.size()), axes);
}

/// The fans of a dense layer, however its weight is stored. Throws ShapeError for a negative count.
inline Fans fans_of_linear(Index in, Index out) {
  if (in < 0 || out < 0) {
    detail::throw_shape_error("fans_of_linear", (in < 0 ? "in is " : "out is "), in < 0 ? in : out,
                              ", expected at least 0");
  }
  return {.in = in, .out = out};
}

}  // namespace evenkeel
