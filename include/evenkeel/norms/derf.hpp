/// Derf, dynamic erf: a curve in place of a norm, without statistics; DyT with the error function and a shift. M. Chen,
/// T. Lu, J. Zhu, M. Sun, Z. Liu, "Stronger Normalization-Free Transformers", 2025.
///
///     y = weight * erf(u) + bias,  u = alpha * x + shift, learned scalars that start at 0.5 and 0
///     e = 2/sqrt(pi) * exp(-u^2),  h = dy * weight,  dx = h * alpha * e,  dalpha = sum of h * x * e
///     dshift = sum of h * e,  dweight = sum over rows of dy * erf(u),  dbias = sum over rows of dy
#pragma once

#include "evenkeel/norms/pointwise_norm.hpp"

namespace evenkeel {

/// Options of derf.
struct DerfOptions {
  Axes axis = {};  ///< the axis or neighbouring axes that weight and bias run along
};

/// The shape that derf leaves for derf_backward, and the backward's scratch. A is the accumulator type of the data.
template <class A, class Storage = HostStorage>
class DerfSaved : public detail::SavedRows<A, 2, Storage> {};

namespace detail {

/// Derf as the layer class knows it.
struct DerfLayer {
  using Options = DerfOptions;
  template <class A, class Storage>
  using Saved = DerfSaved<A, Storage>;
  static constexpr const char *forward = "Derf::forward", *backward = "Derf::backward";
  static constexpr bool shifted = true;
  template <class A>
  EVENKEEL_HD static ShiftedCurve<A, ErfCurve> curve(A alpha, A shift) {
    return {alpha, shift};
  }
};

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// y = weight * erf(alpha * x + shift) + bias, element by element.
///
/// x, y           any shape, the same for both; y may be x itself, then no backward is possible; partial overlap is an
///                error
/// alpha, shift   each a pointer to one value, or an Eigen vector or tensor of one value
/// weight, bias   a value for each feature, of any scalar type, or ek::none
/// saved          receives the shape for the backward, or ek::none for inference
/// Writes y and saved. Throws ShapeError before any work. Allocates nothing but what saved lacks.
/// Example: tests/norms/derf_test.cpp.
template <class Device, class X, class Alpha, class Shift, class Weight, class Bias, class Y, class Saved>
  requires detail::SavedOrNone<Saved, DerfSaved, X>
void derf(const Device& device, const X& x, const Alpha& alpha, const Shift& shift, const Weight& weight,
          const Bias& bias, Y&& y, Saved&& saved, const DerfOptions& options = {}) {
  const auto a = detail::scalar_parameter("derf", "alpha", alpha);
  const auto s = detail::scalar_parameter("derf", "shift", shift);
  detail::pointwise_norm<detail::DerfLayer>("derf", device, a, s, x, weight, bias, y, saved, options);
}

/// The gradients of derf.
///
/// dy, x, dx              the shape of the forward's x; dx may be dy itself
/// alpha, shift, weight   the forward's
/// saved                  filled by the forward
/// dalpha, dshift         one value each, added up in double over the rows, or ek::none where it is not wanted
/// dweight, dbias         a value for each feature, or ek::none; accumulated like dalpha, or overwritten as `mode` says
/// Writes dx. Throws ShapeError before any work, also where saved does not belong to x.
template <class Device, class Dy, class X, class Alpha, class Shift, class Weight, class A, class Storage, class Dx,
          class Dalpha, class Dshift, class Dweight, class Dbias>
void derf_backward(const Device& device, const Dy& dy, const X& x, const Alpha& alpha, const Shift& shift,
                   const Weight& weight, DerfSaved<A, Storage>& saved, Dx&& dx, Dalpha&& dalpha, Dshift&& dshift,
                   Dweight&& dweight, Dbias&& dbias, GradientMode mode = GradientMode::accumulate) {
  const auto a = detail::scalar_parameter("derf_backward", "alpha", alpha);
  const auto s = detail::scalar_parameter("derf_backward", "shift", shift);
  const auto da = detail::scalar_parameter("derf_backward", "dalpha", dalpha);
  const auto ds = detail::scalar_parameter("derf_backward", "dshift", dshift);
  detail::pointwise_norm_backward<detail::DerfLayer>("derf_backward", device, a, s, dy, x, weight, saved, dx, da, ds,
                                                     dweight, dbias, mode);
}

/// Derf with alpha (0.5 at first, or as given), shift (0), weight (ones), bias (zeros) and their gradients.
///
///     ek::Derf<float> norm(width);
///     norm.forward(device, x, y);
///     norm.backward(device, dy, x, dx);
template <class T, class Storage = HostStorage>
using Derf = PointwiseLayer<T, detail::DerfLayer, Storage>;

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
