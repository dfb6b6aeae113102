/// DyT, dynamic tanh: a curve in place of a norm, without statistics. J. Zhu, X. Chen, K. He, Y. LeCun, Z. Liu,
/// "Transformers without Normalization", 2025, equation 1.
///
///     y = weight * tanh(alpha * x) + bias, one learned scalar alpha that starts at 0.5
///     h = dy * weight,  dx = h * alpha / cosh^2(alpha * x),  dalpha = sum of h * x / cosh^2(alpha * x)
///     dweight = sum over rows of dy * tanh(alpha * x),  dbias = sum over rows of dy
#pragma once

#include "evenkeel/norms/pointwise_norm.hpp"

namespace evenkeel {

/// Options of dyt.
struct DytOptions {
  Axes axis = {};  ///< the axis or neighbouring axes that weight and bias run along
};

/// The shape that dyt leaves for dyt_backward, and the backward's scratch. A is the accumulator type of the data.
template <class A, class Storage = HostStorage>
class DytSaved : public detail::SavedRows<A, 1, Storage> {};

namespace detail {

/// DyT as the layer class knows it.
struct DytLayer {
  using Options = DytOptions;
  template <class A, class Storage>
  using Saved = DytSaved<A, Storage>;
  static constexpr const char *forward = "Dyt::forward", *backward = "Dyt::backward";
  static constexpr bool shifted = false;
  template <class A>
  EVENKEEL_HD static ScaledCurve<A, TanhCurve> curve(A alpha, A) {
    return {alpha};
  }
};

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// y = weight * tanh(alpha * x) + bias, element by element.
///
/// x, y           any shape, the same for both; y may be x itself, then no backward is possible; partial overlap is an
///                error
/// alpha          a pointer to one value, or an Eigen vector or tensor of one value
/// weight, bias   a value for each feature, of any scalar type, or ek::none
/// saved          receives the shape for the backward, or ek::none for inference
/// Writes y and saved. Throws ShapeError before any work. Allocates nothing but what saved lacks.
/// Example: tests/norms/dyt_test.cpp.
template <class Device, class X, class Alpha, class Weight, class Bias, class Y, class Saved>
  requires detail::SavedOrNone<Saved, DytSaved, X>
void dyt(const Device& device, const X& x, const Alpha& alpha, const Weight& weight, const Bias& bias, Y&& y,
         Saved&& saved, const DytOptions& options = {}) {
  const auto a = detail::scalar_parameter("dyt", "alpha", alpha);
  detail::pointwise_norm<detail::DytLayer>("dyt", device, a, none, x, weight, bias, y, saved, options);
}

/// The gradients of dyt.
///
/// dy, x, dx        the shape of the forward's x; dx may be dy itself
/// alpha, weight    the forward's
/// saved            filled by the forward
/// dalpha           one value, added up in double over the rows, or ek::none where it is not wanted
/// dweight, dbias   a value for each feature, or ek::none; accumulated like dalpha, or overwritten as `mode` says
/// Writes dx. Throws ShapeError before any work, also where saved does not belong to x.
template <class Device, class Dy, class X, class Alpha, class Weight, class A, class Storage, class Dx, class Dalpha,
          class Dweight, class Dbias>
void dyt_backward(const Device& device, const Dy& dy, const X& x, const Alpha& alpha, const Weight& weight,
                  DytSaved<A, Storage>& saved, Dx&& dx, Dalpha&& dalpha, Dweight&& dweight, Dbias&& dbias,
                  GradientMode mode = GradientMode::accumulate) {
  const auto a = detail::scalar_parameter("dyt_backward", "alpha", alpha);
  const auto da = detail::scalar_parameter("dyt_backward", "dalpha", dalpha);
  detail::pointwise_norm_backward<detail::DytLayer>("dyt_backward", device, a, none, dy, x, weight, saved, dx, da, none,
                                                    dweight, dbias, mode);
}

/// DyT with alpha (0.5 at first, or as given), weight (ones), bias (zeros) and their gradients.
///
///     ek::Dyt<float> norm(width);
///     norm.forward(device, x, y);
///     norm.backward(device, dy, x, dx);
template <class T, class Storage = HostStorage>
using Dyt = PointwiseLayer<T, detail::DytLayer, Storage>;

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
