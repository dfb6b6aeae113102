/// A norm folded into the layer behind it or before it: the norm's affine map, see AffineMap, goes into the weight and
/// the bias of a linear or convolution layer, and costs nothing from then on.
///
///     next       norm(x) W + b:  W' = diag(scale) W,  b' = b + offset W
///                centred         W' = (I - 11^T/d) diag(scale) W
///     previous   norm(x W + b):  W' = W diag(scale),  b' = b * scale + offset
///                centred         W' = W (I - 11^T/d) diag(scale),  b' = (b - mean(b)) * scale + offset
///
/// All in double, rounded once to the weight's scalar. A fold is made once, before a model is used: it runs on the
/// calling thread, in the host's memory, and allocates.
#pragma once

#include "evenkeel/detail/fold_weight.hpp"
#include "evenkeel/fold/affine_map.hpp"

namespace evenkeel {

/// What a convolution reads beyond the border of its input.
enum class Padding {
  unknown,   ///< not said: where it matters, the fold is refused
  no_zeros,  ///< nothing, or values of the input (reflected, repeated, wrapped around)
  zeros
};

/// Options of a fold.
struct FoldOptions {
  /// What the axes of the weight mean, as fans_of takes it: for torch's linear and convolution layers
  /// `{.input = {1}, .output = {0}}`, for a matrix that maps in to out `{.input = {0}, .output = {1}}`. Features are
  /// counted in the order in which axes are named, the last one fastest.
  FanAxes axes = {};
  /// Matters to a norm with an offset before a convolution: zeros are no norm's output, so that near the border a part
  /// of the offset is missing, which no bias can be.
  Padding padding = Padding::unknown;
};

namespace detail::inline EVENKEEL_ISA {

/// FoldTarget, whose folds are overloads of their own.
template <class X>
concept Remembers = requires(const X& x) {
  x.holds_norm_before();
};

inline void require_features(const char* function, const AffineMap& map, std::size_t features, const char* what,
                             const LayerPlaces& places, const Layout& weight) {
  if (map.features() != static_cast<Index>(features))
    throw_shape_error(function, "the norm has ", map.features(), " features, weight has ", features, " ", what,
                      weight_text(weight));
  if (!map.offset.empty() && map.offset.size() != map.scale.size())
    throw_shape_error(function, "the norm has ", map.scale.size(), " scales and ", map.offset.size(),
                      " offsets, expected as many");
  if (map.centred && places.groups > 1)
    throw_shape_error(function, "the norm subtracts the mean of all ", features, " features, and each of the ",
                      places.groups, " groups has its own, expected one group", weight_text(weight));
}

template <class FoldedB>
void require_bias(const char* function, bool has_offset, std::size_t outputs, const Layout& weight) {
  if (is_none_v<FoldedB> && has_offset)
    throw_shape_error(function, "the norm has an offset and folded_bias is none, expected ", outputs, " values",
                      weight_text(weight));
}

inline void require_whole_kernel(const char* function, const LayerPlaces& places, Padding padding,
                                 const Layout& weight) {
  if (places.kernel.size() == 1 && padding != Padding::zeros) return;
  if (places.inputs_grouped && places.kernel.size() > 1)
    throw_shape_error(function,
                      "the norm has an offset, and a transposed convolution does not add a whole kernel of it to each "
                      "output, expected an offset of 0",
                      weight_text(weight));
  if (padding == Padding::zeros)
    throw_shape_error(
        function,
        "the norm has an offset, which is not in the zeros of the padding, expected Padding::no_zeros or an "
        "offset of 0",
        weight_text(weight));
  if (padding == Padding::unknown)
    throw_shape_error(function,
                      "the norm has an offset, which zero padding would not have, expected a padding option that says "
                      "there is none",
                      weight_text(weight));
}

template <class W, class B, class FoldedW, class FoldedB>
auto fold_of_next(const char* function, const AffineMap& map, const W& weight, const B& bias, FoldedW& folded_weight,
                  FoldedB& folded_bias, const FoldOptions& options) {
  auto fold = weight_fold(function, weight, bias, folded_weight, folded_bias, options.axes);
  const Layout layout = layout_of(weight);
  require_features(function, map, fold.from_places.inputs(), "inputs", fold.from_places, layout);
  require_bias<FoldedB>(function, map.has_offset(), fold.from_places.outputs(), layout);
  if (map.has_offset()) require_whole_kernel(function, fold.from_places, options.padding, layout);
  return fold;
}

template <class W, class B, class FoldedW, class FoldedB>
auto fold_of_previous(const char* function, const AffineMap& map, const W& weight, const B& bias,
                      FoldedW& folded_weight, FoldedB& folded_bias, const FoldOptions& options) {
  auto fold = weight_fold(function, weight, bias, folded_weight, folded_bias, options.axes);
  const Layout layout = layout_of(weight);
  require_features(function, map, fold.from_places.outputs(), "outputs", fold.from_places, layout);
  require_bias<FoldedB>(function, map.has_offset(), fold.from_places.outputs(), layout);
  return fold;
}

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// The norm's map goes into the layer behind it: layer(map(x)) = folded layer(x).
///
/// map             with one feature for each input of the layer
/// weight          any tensor of at least two axes, in any storage order
/// bias            one value per output in any shape (its axes counted as those of the output are), or ek::none
/// folded_weight   the shape of weight; may be weight itself
/// folded_bias     the same for bias; may be bias itself. A layer without a bias gets one here where the map has an
///                 offset; ek::none is for layers and maps that have neither
/// Writes folded_weight and folded_bias. Throws ShapeError before any work, also where the fold would not be exact: see
/// FoldOptions::padding. All layers that read the norm's output need the fold: q, k and v, gate and up. Whoever keeps
/// layers for longer than a function call has FoldTarget to remember what was folded.
///
///     const auto norm = ek::taper_norm_map(c, scale_weight, bias);
///     ek::fold_into_next(norm, w, ek::none, w, b, {.axes = {.input = {1}, .output = {0}}});
template <class W, class B, class FoldedW, class FoldedB>
  requires(!detail::Remembers<W>)
void fold_into_next(const AffineMap& map, const W& weight, const B& bias, FoldedW&& folded_weight,
                    FoldedB&& folded_bias, const FoldOptions& options) {
  detail::fold_of_next("fold_into_next", map, weight, bias, folded_weight, folded_bias, options).apply_to_next(map);
}

/// The norm's map goes into the layer before it: map(layer(x)) = folded layer(x). Arguments as in fold_into_next, with
/// one feature of the map for each output of the layer; padding does not matter.
///
/// A map with scale 1, no offset, and centred, gives a layer whose outputs have the row mean 0: LayerNorm behind it can
/// be RMSNorm then.
///
///     const auto norm = ek::batch_norm_map(gamma, beta, running_mean, running_var, 1e-3);
///     ek::fold_into_previous(norm, w, ek::none, w, b, {.axes = {.input = {1}, .output = {0}}});    // b is created
template <class W, class B, class FoldedW, class FoldedB>
  requires(!detail::Remembers<W>)
void fold_into_previous(const AffineMap& map, const W& weight, const B& bias, FoldedW&& folded_weight,
                        FoldedB&& folded_bias, const FoldOptions& options) {
  detail::fold_of_previous("fold_into_previous", map, weight, bias, folded_weight, folded_bias, options)
      .apply_to_previous(map);
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
