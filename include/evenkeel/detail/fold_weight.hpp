/// The weight of a linear or convolution layer as a fold sees it: which input and which output an element connects.
#pragma once

#include "evenkeel/detail/places.hpp"
#include "evenkeel/fold/affine_map.hpp"
#include "evenkeel/init/fans.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// Element (i, o, k) of a weight lies at input[i] + output[o] + kernel[k]. One of input and output counts the channels
/// of all groups, the other one those of one group.
struct LayerPlaces {
  std::vector<Index> input, output, kernel;
  std::size_t groups = 1;
  bool inputs_grouped = false;  // transposed convolution: the inputs are those of all groups

  std::size_t inputs() const { return inputs_grouped ? input.size() : input.size() * groups; }
  std::size_t outputs() const { return inputs_grouped ? output.size() * groups : output.size(); }
  /// The input of all groups that element (i, o) reads.
  std::size_t input_of(std::size_t i, std::size_t o) const {
    return inputs_grouped ? i : o / (output.size() / groups) * input.size() + i;
  }
  std::size_t output_of(std::size_t i, std::size_t o) const {
    return inputs_grouped ? i / (input.size() / groups) * output.size() + o : o;
  }
};

inline std::string weight_text(const Layout& weight) { return " (weight is " + text(weight) + ")"; }

/// The axes that `named` names, none of them taken before.
inline std::vector<int> weight_axes(const char* function, const char* argument, const Layout& weight,
                                    const std::vector<Index>& named, std::vector<bool>& taken) {
  if (named.empty())
    throw_shape_error(function, argument, " names no axis, expected at least one", weight_text(weight));
  std::vector<int> axes;
  for (const Index name : named) {
    const Index axis = name < 0 ? name + weight.rank : name;
    if (axis < 0 || axis >= weight.rank)
      throw_shape_error(function, argument, " names axis ", name, ", expected one from ", -weight.rank, " to ",
                        weight.rank - 1, weight_text(weight));
    if (taken[static_cast<std::size_t>(axis)])
      throw_shape_error(function, argument, " names axis ", name,
                        ", which is named already, expected every axis at most once", weight_text(weight));
    taken[static_cast<std::size_t>(axis)] = true;
    axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

inline LayerPlaces layer_places(const char* function, const Layout& weight, const FanAxes& axes) {
  std::vector<bool> taken(static_cast<std::size_t>(weight.rank), false);
  const std::vector<int> input = weight_axes(function, "axes.input", weight, axes.input, taken);
  const std::vector<int> output = weight_axes(function, "axes.output", weight, axes.output, taken);
  std::vector<int> kernel;
  for (int a = 0; a < weight.rank; ++a)
    if (!taken[static_cast<std::size_t>(a)]) kernel.push_back(a);
  LayerPlaces places{offsets_along(weight, input), offsets_along(weight, output), offsets_along(weight, kernel),
                     static_cast<std::size_t>(axes.groups), axes.grouped == GroupedAxis::input};
  const std::size_t grouped = places.inputs_grouped ? places.input.size() : places.output.size();
  if (axes.groups < 1 || grouped % places.groups != 0)
    throw_shape_error(function, "axes.groups is ", axes.groups, ", expected a divisor of the ", grouped,
                      places.inputs_grouped ? " inputs" : " outputs", weight_text(weight));
  return places;
}

/// One layer's weight and bias before and after a fold, checked. Bias types are None where there is none.
template <class From, class To, class BiasFrom, class BiasTo>
struct WeightFold {
  const From* from;
  To* to;
  LayerPlaces from_places, to_places;
  const BiasFrom* bias_from;  // null: there is none yet
  BiasTo* bias_to;
  std::vector<Index> bias_from_places, bias_to_places;

  /// W' = diag(scale) W, of which a centred map takes the mean over the inputs; b' = b + offset W.
  void apply_to_next(const AffineMap& map) const {
    const LayerPlaces &in = from_places, &out = to_places;
    std::vector<double> bias = old_bias(), column(in.input.size());
    for (std::size_t o = 0; o < in.output.size(); ++o)
      for (std::size_t k = 0; k < in.kernel.size(); ++k) {
        double sum = 0;
        for (std::size_t i = 0; i < column.size(); ++i) {
          const auto value = static_cast<double>(from[in.input[i] + in.output[o] + in.kernel[k]]);
          const std::size_t feature = in.input_of(i, o);
          if (!map.offset.empty()) bias[in.output_of(i, o)] += map.offset[feature] * value;
          column[i] = map.scale[feature] * value;
          sum += column[i];
        }
        const double mean = map.centred ? sum / static_cast<double>(column.size()) : 0;
        for (std::size_t i = 0; i < column.size(); ++i)
          to[out.input[i] + out.output[o] + out.kernel[k]] = round_from_double<To>(column[i] - mean);
      }
    write_bias(bias);
  }

  /// W' = W diag(scale), b' = b * scale + offset; a centred map first takes the mean over the outputs from W and b.
  void apply_to_previous(const AffineMap& map) const {
    const LayerPlaces &in = from_places, &out = to_places;
    std::vector<double> bias = old_bias(), column(in.output.size());
    const auto centre = [&](std::vector<double>& values) {
      if (!map.centred) return;
      double sum = 0;
      for (const double value : values) sum += value;
      for (double& value : values) value -= sum / static_cast<double>(values.size());
    };
    for (std::size_t i = 0; i < in.input.size(); ++i)
      for (std::size_t k = 0; k < in.kernel.size(); ++k) {
        for (std::size_t o = 0; o < column.size(); ++o)
          column[o] = static_cast<double>(from[in.input[i] + in.output[o] + in.kernel[k]]);
        centre(column);
        for (std::size_t o = 0; o < column.size(); ++o)
          to[out.input[i] + out.output[o] + out.kernel[k]] =
              round_from_double<To>(column[o] * map.scale[in.output_of(i, o)]);
      }
    centre(bias);
    for (std::size_t o = 0; o < bias.size(); ++o)
      bias[o] = bias[o] * map.scale[o] + (map.offset.empty() ? 0 : map.offset[o]);
    write_bias(bias);
  }

 private:
  std::vector<double> old_bias() const {
    std::vector<double> bias(from_places.outputs(), 0.0);
    if constexpr (!is_none_v<BiasFrom>)
      for (std::size_t o = 0; bias_from != nullptr && o < bias.size(); ++o)
        bias[o] = static_cast<double>(bias_from[bias_from_places[o]]);
    return bias;
  }
  void write_bias([[maybe_unused]] const std::vector<double>& bias) const {
    if constexpr (!is_none_v<BiasTo>)
      for (std::size_t o = 0; o < bias.size(); ++o) bias_to[bias_to_places[o]] = round_from_double<BiasTo>(bias[o]);
  }
};

/// Whether `to` is exactly the memory of `from`, which is read before it is written.
template <class T, class U>
bool same_places(const T* from, const Layout& from_layout, const U* to, const Layout& to_layout) {
  return std::is_same_v<T, U> && static_cast<const void*>(from) == static_cast<const void*>(to) &&
         std::equal(from_layout.stride.begin(), from_layout.stride.begin() + from_layout.rank,
                    to_layout.stride.begin());
}

template <class P>
auto bias_pointer(P& bias) {
  if constexpr (is_none_v<P>) {
    return static_cast<None*>(nullptr);
  } else {
    return data_of(bias);
  }
}
template <class P>
Layout bias_layout(const char* function, const char* name, const P& bias, std::size_t outputs, const Layout& weight) {
  Layout layout;
  if constexpr (!is_none_v<P>) {
    layout = layout_of(bias);
    if (layout.size() != static_cast<Index>(outputs))
      throw_shape_error(function, name, " has ", layout.size(), " values, weight has ", outputs, " outputs",
                        weight_text(weight));
  }
  return layout;
}

/// Everything of a fold but the map is checked here, and nothing written.
template <class W, class B, class FoldedW, class FoldedB>
auto weight_fold(const char* function, const W& weight, const B& bias, FoldedW& folded_weight, FoldedB& folded_bias,
                 const FanAxes& axes) {
  static_assert((EigenTensor<W> || EigenDense<W>)&&(is_none_v<B> || EigenTensor<B> || EigenDense<B>),
                "evenkeel: a weight and its bias must be Eigen tensors, matrices, arrays, maps, refs or blocks with "
                "memory of their own; evaluate an expression before passing it");
  static_assert(!std::is_const_v<element_t<FoldedW>>, "evenkeel: folded_weight must have memory that can be written");
  static_assert(is_none_v<B> || !is_none_v<FoldedB>, "evenkeel: a layer with a bias needs a folded_bias");
  const Layout from = layout_of(weight), to = layout_of(folded_weight);
  if (!same_extents(from, to)) throw_shape_error(function, "folded_weight is ", text(to), ", weight is ", text(from));
  using BiasFrom = std::remove_cvref_t<decltype(*bias_pointer(bias))>;
  using BiasTo = std::remove_cvref_t<decltype(*bias_pointer(folded_bias))>;
  WeightFold<scalar_t<const W>, scalar_t<FoldedW>, BiasFrom, BiasTo> fold{data_of(weight),
                                                                          data_of(folded_weight),
                                                                          layer_places(function, from, axes),
                                                                          layer_places(function, to, axes),
                                                                          bias_pointer(bias),
                                                                          bias_pointer(folded_bias),
                                                                          {},
                                                                          {}};
  const std::size_t outputs = fold.from_places.outputs();
  const Layout bias_from = bias_layout(function, "bias", bias, outputs, from),
               bias_to = bias_layout(function, "folded_bias", folded_bias, outputs, from);
  const auto require_apart = [&](const char* name, bool apart, const char* other) {
    if (!apart) throw_shape_error(function, name, " overlaps ", other, ", expected memory apart from it");
  };
  require_apart("folded_weight",
                same_places(fold.from, from, fold.to, to) || !share_memory(fold.from, from, fold.to, to), "weight");
  if constexpr (!is_none_v<FoldedB>) {
    fold.bias_to_places = all_offsets(bias_to);
    require_apart("folded_bias", !share_memory(fold.to, to, fold.bias_to, bias_to), "folded_weight");
    require_apart("folded_bias", !share_memory(fold.from, from, fold.bias_to, bias_to), "weight");
  }
  if constexpr (!is_none_v<B>) {
    fold.bias_from_places = all_offsets(bias_from);
    require_apart("folded_weight", !share_memory(fold.bias_from, bias_from, fold.to, to), "bias");
    require_apart("folded_bias",
                  same_places(fold.bias_from, bias_from, fold.bias_to, bias_to) ||
                      !share_memory(fold.bias_from, bias_from, fold.bias_to, bias_to),
                  "bias");
  }
  return fold;
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
