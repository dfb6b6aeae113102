/// LayerNorm: subtracts each row's mean and divides by its standard deviation. J. L. Ba, J. R. Kiros, G. E. Hinton,
/// "Layer Normalization", 2016, equations 3 and 4, with the biased variance and eps inside the root.
///
///     xhat = (x - mean) * rstd,  rstd = 1/sqrt(var + eps),  y = xhat * weight + bias
///     h = dy * weight,  dx = rstd * (h - mean(h) - xhat * mean(h * xhat))
///     dweight = sum over rows of dy * xhat,  dbias = sum over rows of dy
///
/// The mean is computed and saved as a pair of numbers: see detail/standardize_math.hpp, which has the math.
#pragma once

#include "evenkeel/detail/standardize_math.hpp"
#include "evenkeel/norms/output_backward.hpp"
#include "evenkeel/norms/row_norm.hpp"

#include <utility>

namespace evenkeel {

/// Options of layer_norm.
struct LayerNormOptions {
  double eps = 1e-5;         ///< added to the variance, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = {};            ///< the normalized axis or neighbouring axes
  bool unit_offset = false;  ///< y = xhat * (1 + weight) + bias, the sum formed in the accumulator type
  Rounding rounding = Rounding::round_once;
  bool backward_from_output = false;  ///< saved keeps what layer_norm_backward_from_output needs beside y
};

/// Statistics that layer_norm leaves for layer_norm_backward, and scratch. A is the accumulator type of the data.
template <class A, class Storage = HostStorage>
class LayerNormSaved : public detail::SavedRows<A, 3, Storage> {
 public:
  /// The mean, rounded to one number. The backward uses what that leaves, too.
  A mean(Index row) const { return this->field(0, row); }
  A rstd(Index row) const { return this->field(2, row); }

  /// What forwards keep of x becomes xhat, when the statistics are known.
  void standardize_kept() {
    for (Index k = 0; k < this->kept_features; ++k)
      for (Index r = 0; r < this->rows(); ++r) {
        A& x = this->kept_xhat.data()[k * this->rows() + r];
        x = detail::StandardizeRow<A>{this->field(0, r), this->field(1, r), this->field(2, r)}.xhat(x);
      }
  }
};

namespace detail {

/// The names by which the drivers of row norms and the layer class know LayerNorm.
struct Standardize {
  template <class A, class Affine>
  using Forward = StandardizeForward<A, Affine>;
  template <class A, class Affine, class Terms>
  using Backward = StandardizeBackward<A, Affine, Terms>;
};
struct LayerNormLayer {
  using Options = LayerNormOptions;
  template <class A, class Storage>
  using Saved = LayerNormSaved<A, Storage>;
  using Math = Standardize;
  static constexpr const char *forward = "LayerNorm::forward", *backward = "LayerNorm::backward",
                              *add_forward = "LayerNorm::add_forward", *add_backward = "LayerNorm::add_backward",
                              *forward_add = "LayerNorm::forward_add";
  static constexpr Affine affine = Affine::weight_and_bias;
};

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// y = (x - mean) * rstd * weight + bias, row by row.
///
/// x, y          any shape, the same for both; partial overlap is an error; y may be x itself, then the only backward is
///               the one from y
/// weight, bias  length values of any scalar type, or ek::none
/// saved         receives mean and rstd per row, or ek::none for inference
/// Writes y and saved. Throws ShapeError before any work. The eps stands inside the root. With eps = 0 a constant row
/// gives y = bias. Allocates nothing but what saved lacks. Example: examples/quickstart.cpp.
template <class Device, class X, class Weight, class Bias, class Y, class Saved>
  requires detail::SavedOrNone<Saved, LayerNormSaved, X>
void layer_norm(const Device& device, const X& x, const Weight& weight, const Bias& bias, Y&& y, Saved&& saved,
                const LayerNormOptions& options = {}) {
  detail::row_norm<detail::Standardize>("layer_norm", device, x, none, none, weight, bias, none, y, saved, options);
}

/// The residual sum and its norm in one pass: sum = x + residual, y = layer_norm(sum). sum may be x or residual, y may
/// not be sum. The norm sees the sum rounded to the data type, as it is stored.
template <class Device, class X, class Residual, class Weight, class Bias, class Sum, class Y, class Saved>
  requires detail::SavedOrNone<Saved, LayerNormSaved, X>
void add_layer_norm(const Device& device, const X& x, const Residual& residual, const Weight& weight, const Bias& bias,
                    Sum&& sum, Y&& y, Saved&& saved, const LayerNormOptions& options = {}) {
  detail::row_norm<detail::Standardize>("add_layer_norm", device, x, residual, none, weight, bias, sum, y, saved,
                                        options);
}

/// The same with sum = x + residual_scale * residual: DeepNorm, where residual is the stream and x the branch.
template <class Device, class X, class Residual, class Weight, class Bias, class Sum, class Y, class Saved>
  requires detail::SavedOrNone<Saved, LayerNormSaved, X>
void add_layer_norm(const Device& device, const X& x, const Residual& residual, double residual_scale,
                    const Weight& weight, const Bias& bias, Sum&& sum, Y&& y, Saved&& saved,
                    const LayerNormOptions& options = {}) {
  detail::row_norm<detail::Standardize>("add_layer_norm", device, x, detail::Scaled<Residual>{residual, residual_scale},
                                        none, weight, bias, sum, y, saved, options);
}

/// The norm and its residual sum in one pass: y = residual + layer_norm(x), rounded once. y may be residual; it may be x,
/// then no backward is possible. The gradients are layer_norm_backward's, and that of residual is dy.
template <class Device, class X, class Residual, class Weight, class Bias, class Y, class Saved>
  requires detail::SavedOrNone<Saved, LayerNormSaved, X>
void layer_norm_add(const Device& device, const X& x, const Residual& residual, const Weight& weight, const Bias& bias,
                    Y&& y, Saved&& saved, const LayerNormOptions& options = {}) {
  detail::row_norm<detail::Standardize>("layer_norm_add", device, x, residual, none, weight, bias, none, y, saved,
                                        options);
}

/// The gradients of layer_norm.
///
/// dy, x, dx        the shape of the forward's x; dx may be dy itself
/// weight           the forward's, ek::none where it had none
/// saved            filled by the forward
/// dweight, dbias   length values, or ek::none where they are not wanted; accumulated, or overwritten as `mode` says; apart
///                  from all other arguments
/// Writes dx. Throws ShapeError before any work, also where saved does not belong to x.
template <class Device, class Dy, class X, class Weight, class A, class Storage, class Dx, class Dweight, class Dbias>
void layer_norm_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight,
                         LayerNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight, Dbias&& dbias,
                         GradientMode mode = GradientMode::accumulate) {
  detail::row_norm_backward<detail::Standardize>("layer_norm_backward", "x", device, dy, none, x, none, weight, saved,
                                                 dx, dweight, dbias, mode);
}

/// The gradients of add_layer_norm: dx = (gradient through the norm) + dsum, which is the gradient of both x and
/// residual, where it has no scale. dsum is the gradient of sum from its later uses, or ek::none. sum is the forward's.
template <class Device, class Dy, class Dsum, class Sum, class Weight, class A, class Storage, class Dx, class Dweight,
          class Dbias>
void add_layer_norm_backward(const Device& device, const Dy& dy, const Dsum& dsum, const Sum& sum, const Weight& weight,
                             LayerNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight, Dbias&& dbias,
                             GradientMode mode = GradientMode::accumulate) {
  detail::row_norm_backward<detail::Standardize>("add_layer_norm_backward", "sum", device, dy, dsum, sum, none, weight,
                                                 saved, dx, dweight, dbias, mode);
}

/// The gradients of layer_norm from its output y, for which the forward had the option backward_from_output: x need not
/// be kept, and y may have been written over it. Right also for weights at or near 0. bias is the forward's. Sums over
/// the features whose weight is small beside their bias run on the calling thread; on CUDA devices
/// saved.reserve_from_output makes room for a number of them, and with more dx and dweight become NaN.
template <class Device, class Dy, class Y, class Weight, class Bias, class A, class Storage, class Dx, class Dweight,
          class Dbias>
void layer_norm_backward_from_output(const Device& device, const Dy& dy, const Y& y, const Weight& weight,
                                     const Bias& bias, LayerNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight,
                                     Dbias&& dbias, GradientMode mode = GradientMode::accumulate) {
  detail::row_norm_backward_from_output<true>("layer_norm_backward_from_output", device, dy, y, weight, bias, saved, dx,
                                              dweight, dbias, mode);
}

/// LayerNorm with its weight (ones at first; zeros with unit_offset), bias, their gradients and saved statistics.
///
///     ek::LayerNorm<float> norm(width);
///     norm.forward(device, x, y);
///     norm.backward(device, dy, x, dx);
template <class T, class Storage = HostStorage>
using LayerNorm = RowNormLayer<T, detail::LayerNormLayer, Storage>;

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
