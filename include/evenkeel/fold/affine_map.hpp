/// What of a norm is an affine map per feature, and can therefore be moved into the linear or convolution layer beside
/// it:
///
///     y = x * scale + offset,  or  y = (x - mean(x)) * scale + offset  with the mean over the features of one row
///
/// Of LayerNorm, RMSNorm and their like that is the weight and the bias, behind the division that stays. Of BatchNorm
/// with running statistics, and of TaperNorm with its gate closed, it is the whole norm.
#pragma once

#include "evenkeel/detail/arguments.hpp"
#include "evenkeel/detail/places.hpp"
#include "evenkeel/none.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace evenkeel {

/// An affine map per feature, in double whatever the norm's scalar is.
struct AffineMap {
  std::vector<double> scale;   ///< (features)
  std::vector<double> offset;  ///< (features), or empty: no offset
  bool centred = false;        ///< the mean of a row's features is subtracted first

  Index features() const { return static_cast<Index>(scale.size()); }
  bool has_offset() const {
    return std::any_of(offset.begin(), offset.end(), [](double value) { return !(value == 0); });
  }
};

namespace detail::inline EVENKEEL_ISA {

/// The values of a vector, or nothing of none. Axis by axis, the last one fastest.
template <class P>
std::vector<double> doubles_of(const P& p) {
  std::vector<double> values;
  if constexpr (!is_none_v<P>) {
    const auto& vector = evaluated(p);
    for (const Index at : all_offsets(places_of(vector))) values.push_back(static_cast<double>(data_of(vector)[at]));
  }
  return values;
}

template <class T>
std::vector<double> doubles_of(const T* data, Index count) {
  std::vector<double> values;
  for (Index i = 0; i < count; ++i) values.push_back(static_cast<double>(data[i]));
  return values;
}

inline void require_count(const char* function, const char* name, const std::vector<double>& values,
                          const char* of_name, Index count) {
  if (static_cast<Index>(values.size()) != count)
    throw_shape_error(function, name, " has ", values.size(), " values, ", of_name, " has ", count);
}

inline AffineMap batch_norm_map_of(std::vector<double> weight, std::vector<double> bias,
                                   const std::vector<double>& mean, const std::vector<double>& var, double eps) {
  const char* const function = "batch_norm_map";
  const auto channels = static_cast<Index>(mean.size());
  require_count(function, "running_var", var, "running_mean", channels);
  if (weight.empty()) weight.assign(mean.size(), 1.0);
  if (bias.empty()) bias.assign(mean.size(), 0.0);
  require_count(function, "weight", weight, "running_mean", channels);
  require_count(function, "bias", bias, "running_mean", channels);
  for (std::size_t c = 0; c < mean.size(); ++c) {
    weight[c] /= std::sqrt(var[c] + eps);
    bias[c] -= mean[c] * weight[c];
  }
  return {std::move(weight), std::move(bias), false};
}

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// The weight and the bias of a norm: scale = weight, or 1 + weight with unit_offset; offset = bias. What is folded is
/// these two only; the norm stays, and runs with ek::none in their places from then on.
///
/// weight   one value per feature
/// bias     the same, or ek::none
/// Throws ShapeError where their sizes differ.
///
///     ek::fold_into_next(ek::affine_map(norm_weight), wq, wk, wv);        // three FoldTargets
template <class Weight, class Bias = None>
  requires(!is_none_v<Weight> && !requires(const Weight& layer) { layer.options(); })
AffineMap affine_map(const Weight& weight, const Bias& bias = none, bool unit_offset = false) {
  AffineMap map{detail::doubles_of(weight), detail::doubles_of(bias), false};
  if constexpr (!is_none_v<Bias>) detail::require_count("affine_map", "bias", map.offset, "weight", map.features());
  if (unit_offset)
    for (double& scale : map.scale) scale += 1;
  return map;
}

/// The same of a layer: ek::RmsNorm, ek::LayerNorm.
template <class Layer>
  requires requires(const Layer& layer) {
    layer.options().unit_offset;
    layer.weight.value();
    layer.bias.value();
  }
AffineMap affine_map(const Layer& layer) {
  AffineMap map{detail::doubles_of(layer.weight.value(), layer.weight.size()),
                detail::doubles_of(layer.bias.value(), layer.bias.size()), false};
  if (layer.options().unit_offset)
    for (double& scale : map.scale) scale += 1;
  return map;
}

/// BatchNorm, or InstanceNorm, at inference: scale = weight / sqrt(running_var + eps),
/// offset = bias - running_mean * scale.
///
/// weight, bias               one value per channel, or ek::none
/// running_mean, running_var  one value per channel
/// eps                        inside the root; at least 0
/// Throws ShapeError where sizes differ or eps is not such a number.
template <class Weight, class Bias, class Mean, class Var>
AffineMap batch_norm_map(const Weight& weight, const Bias& bias, const Mean& running_mean, const Var& running_var,
                         double eps = 1e-5) {
  return detail::batch_norm_map_of(detail::doubles_of(weight), detail::doubles_of(bias),
                                   detail::doubles_of(running_mean), detail::doubles_of(running_var),
                                   detail::resolved_eps<double>("batch_norm_map", eps));
}

/// The same of a layer with running statistics: ek::BatchNorm, ek::InstanceNorm. An activation of the layer is no part
/// of the map: behind the fold it remains to be done.
template <class Layer>
  requires requires(const Layer& layer) {
    layer.options().eps;
    layer.running.var();
  }
AffineMap batch_norm_map(const Layer& layer) {
  const Index channels = layer.running.channels();
  using A = std::remove_cvref_t<decltype(*layer.running.var())>;
  return detail::batch_norm_map_of(detail::doubles_of(layer.weight.value(), layer.weight.size()),
                                   detail::doubles_of(layer.bias.value(), layer.bias.size()),
                                   detail::doubles_of(layer.running.mean(), channels),
                                   detail::doubles_of(layer.running.var(), channels),
                                   static_cast<double>(detail::resolved_eps<A>("batch_norm_map", layer.options().eps)));
}

/// TaperNorm with its gate at 0: scale = c * scale_weight, offset = bias. centred: its LayerNorm variant, which
/// subtracts the mean of the row. arXiv 2602.10408.
///
/// scale_weight   one value per feature
/// bias           the same, or ek::none
template <class ScaleWeight, class Bias = None>
AffineMap taper_norm_map(double c, const ScaleWeight& scale_weight, const Bias& bias = none, bool centred = false) {
  AffineMap map{detail::doubles_of(scale_weight), detail::doubles_of(bias), centred};
  if constexpr (!is_none_v<Bias>)
    detail::require_count("taper_norm_map", "bias", map.offset, "scale_weight", map.features());
  for (double& scale : map.scale) scale *= c;
  return map;
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
