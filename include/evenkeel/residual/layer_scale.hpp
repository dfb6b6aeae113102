/// LayerScale: y = x + scale * f(x), one learned weight for each feature that starts small. H. Touvron et al., "Going
/// deeper with Image Transformers", 2021, section 2.
///
///     df = dy * scale,  dscale = sum over rows of dy * f,  dx = dy
#pragma once

#include "evenkeel/parameter.hpp"
#include "evenkeel/residual/layer_scale_start.hpp"
#include "evenkeel/residual/residual_block.hpp"
#include "evenkeel/saved.hpp"

#include <tuple>
#include <utility>

namespace evenkeel {

/// Options of layer_scale.
struct LayerScaleOptions {
  Axes axis = {};  ///< the axis or neighbouring axes that scale runs along: 1 for channels-first images
};

/// The shape that layer_scale leaves for layer_scale_backward, and the backward's scratch. A is the accumulator type of
/// the data.
template <class A, class Storage = HostStorage>
class LayerScaleSaved : public detail::SavedRows<A, 0, Storage> {};

inline namespace EVENKEEL_ISA {

/// y = x + scale * f, element by element.
///
/// x, f, y   any shape, the same for all; y may be x; it may be f, then no backward is possible
/// scale     a value for each feature, of any scalar type
/// saved     receives the shape for the backward, or ek::none for inference
/// Writes y and saved. Throws ShapeError before any work. Allocates nothing.
/// Example: tests/residual/layer_scale_test.cpp.
template <class Device, class X, class F, class Scale, class Y, class Saved>
void layer_scale(const Device& device, const X& x, const F& f, const Scale& scale, Y&& y, Saved&& saved,
                 const LayerScaleOptions& options = {}) {
  detail::require_device<Device>();
  using T = detail::scalar_t<const X>;
  using A = accumulator_t<T>;
  detail::RowArguments arguments("layer_scale");
  const auto x_rows = arguments.reference("x", x, options.axis);
  const auto f_rows = arguments.input("f", f);
  const auto weight = arguments.parameter("scale", scale);
  const auto out = arguments.output("y", y);
  const detail::RowGrid grid = arguments.grid();
  if constexpr (!is_none_v<Saved>)
    saved.begin({grid.rows(), grid.length, scalar_name<T>(), options.axis, false, true,
                 static_cast<const void*>(out.data) == f_rows.data});
  detail::row_pass(device, detail::RowPass{detail::ResidualSum<A, None>{}, grid, std::tuple(f_rows, x_rows, none, none),
                                           std::tuple(weight), std::tuple(out)});
}

/// The gradients of layer_scale, in one pass; that of x is dy.
///
/// dy, f, df   the shape of the forward's x; df may be dy or f
/// scale       the forward's
/// saved       filled by the forward
/// dscale      a value for each feature, or ek::none; accumulated, or overwritten as `mode` says
/// Writes df. Throws ShapeError before any work, also where saved does not belong to f.
template <class Device, class Dy, class F, class Scale, class A, class Storage, class Df, class Dscale>
void layer_scale_backward(const Device& device, const Dy& dy, const F& f, const Scale& scale,
                          LayerScaleSaved<A, Storage>& saved, Df&& df, Dscale&& dscale,
                          GradientMode mode = GradientMode::accumulate) {
  detail::require_device<Device>();
  using T = detail::scalar_t<const F>;
  static_assert(std::is_same_v<A, accumulator_t<T>>,
                "evenkeel: saved must be of the accumulator type of the data: double for double, float for the rest");
  using Math = detail::ResidualSumBackward<A, None, false, !is_none_v<Dscale>>;
  const char* const function = "layer_scale_backward";
  saved.check_filled(function);
  detail::RowArguments arguments(function);
  const auto f_rows = arguments.reference("f", f, saved.call.axis);
  const detail::RowGrid grid = arguments.grid();
  saved.check(function, "f", grid.rows(), grid.length, scalar_name<T>(), true);
  const auto dy_rows = arguments.input("dy", dy);
  const auto weight = arguments.parameter("scale", scale);
  const auto dweight = arguments.parameter("dscale", dscale);
  const auto out = arguments.output("df", df);
  saved.scratch.ensure(detail::feature_scratch<A, Math::feature_sums>(device, grid.rows(), grid.length));
  A* const scratch = saved.scratch.data();
  const detail::FeatureParts sums = detail::row_pass(
      device,
      detail::RowPass{Math{}, grid, std::tuple(dy_rows, f_rows, none, none), std::tuple(weight), std::tuple(out)},
      scratch);
  const A* const read_sums = scratch;
  detail::put_gradients(device, read_sums, sums, grid.length, mode, dweight);
}

/// y = x + scale * f with a learned weight for each feature, "scale", of type T, exempt from weight decay.
template <class T, class Storage = HostStorage>
class FeatureJoin : public Join<T> {
 public:
  /// Throws ShapeError if `features` is below 1.
  FeatureJoin(Index features, double start, const LayerScaleOptions& options = {})
      : scale("scale", checked(features), false), start_(start), options_(options) {
    reset();
  }

  /// Gives scale its start value again.
  void reset() { scale.fill(static_cast<T>(start_)); }

  template <class Device, class X, class F, class Y>
  void join(const Device& device, const X& x, const F& f, Y& y) {
    layer_scale(device, x, f, map(scale.value()), y, saved, options_);
  }
  template <class Device, class Dy, class F, class Df>
  void pull(const Device& device, const Dy& dy, const F& f, Df& df) {
    layer_scale_backward(device, dy, f, map(scale.value()), saved, df, map(scale.gradient()));
  }
  template <class F>
  void for_each_parameter(F&& f) {
    f(scale.ref());
  }
  template <class Device, class X>
  void reserve_join(const Device& device, const X& x) {
    saved.reserve(device, x, options_.axis);
  }

  Parameter<T, Storage> scale;  // (features)
  LayerScaleSaved<accumulator_t<T>, Storage> saved;

 private:
  static Index checked(Index features) {
    if (features < 1)
      detail::throw_shape_error("LayerScale", "the block has ", features, " features, expected 1 or more");
    return features;
  }
  auto map(T* data) const { return Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>(data, scale.size()); }

  double start_;
  LayerScaleOptions options_;
};

/// T is the scalar of the activations and of scale; see ResidualBlock for the sublayer f, and for one behind a norm:
/// ResidualBlock(norm, FeatureJoin<float>(width, start), f).
///
///     ek::LayerScale<float, Attention> block(Attention(width), width, ek::layer_scale_start(layers));
template <class T, class Sublayer, class Storage = HostStorage>
class LayerScale : public ResidualBlock<None, FeatureJoin<T, Storage>, Sublayer, T, Storage> {
 public:
  LayerScale(Sublayer block_sublayer, Index features, double start, const LayerScaleOptions& options = {})
      : ResidualBlock<None, FeatureJoin<T, Storage>, Sublayer, T, Storage>(
            none, FeatureJoin<T, Storage>(features, start, options), std::move(block_sublayer)) {}
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
