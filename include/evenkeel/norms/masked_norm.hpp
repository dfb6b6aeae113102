/// LayerNorm and RMSNorm of rows that are padded: ragged rows of one batch, and rows that are padding as a whole. What
/// the mask leaves of a row is normalized as if it were all there is: each count n is that of the row.
///
///     n = number of set places,  mean, var, mean(x^2) and the means of the backward over these n
///     y and dx as in layer_norm and rms_norm where the mask is set, 0 elsewhere
///     dweight = sum over set places of dy * xhat,  dbias = sum over set places of dy
///
/// A row without a set place has y = 0 and dx = 0. One with a single set place has xhat = 0 there in LayerNorm, and
/// dx = 0, as any row of one element.
#pragma once

#include "evenkeel/norms/layer_norm.hpp"
#include "evenkeel/norms/rms_norm.hpp"

namespace evenkeel {

/// Options of masked_layer_norm: those of layer_norm, but for the backward from the output.
struct MaskedLayerNormOptions {
  double eps = 1e-5;         ///< added to the variance, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = {};            ///< the normalized axis or neighbouring axes
  bool unit_offset = false;  ///< y = xhat * (1 + weight) + bias, the sum formed in the accumulator type
  Rounding rounding = Rounding::round_once;
};

/// Options of masked_rms_norm: those of rms_norm, but for the backward from the output.
struct MaskedRmsNormOptions {
  double eps = 1e-6;         ///< added to the mean square, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = {};            ///< the normalized axis or neighbouring axes
  bool unit_offset = false;  ///< y = xhat * (1 + weight), the sum formed in the accumulator type
  Rounding rounding = Rounding::round_once;
};

/// Statistics that masked_layer_norm leaves for its backward, and scratch. A is the accumulator type of the data.
template <class A, class Storage = HostStorage>
class MaskedLayerNormSaved : public detail::SavedRows<A, 3, Storage> {
 public:
  A mean(Index row) const { return this->field(0, row); }
  A rstd(Index row) const { return this->field(2, row); }
};

/// Statistics that masked_rms_norm leaves for its backward, and scratch. A is the accumulator type of the data.
template <class A, class Storage = HostStorage>
class MaskedRmsNormSaved : public detail::SavedRows<A, 1, Storage> {
 public:
  A rstd(Index row) const { return this->field(0, row); }
};

inline namespace EVENKEEL_ISA {

/// y = (x - mean) * rstd * weight + bias where the mask is set, 0 elsewhere, row by row.
///
/// x, y          any shape, the same for both; y may be x itself, then no backward is possible; partial overlap is an
///               error
/// mask          of any scalar type, bool among them; set where it is above 0. Either the shape of x, or one value for
///               each row: the shape of x without the normalized axes, or with extent 1 there. An AxisView for an
///               AxisView. What x holds where the mask is not set does not matter, NaN and infinity included
/// weight, bias  length values of any scalar type, or ek::none
/// saved         receives mean and rstd per row, finite also where nothing is set; or ek::none for inference
/// Writes y and saved. Throws ShapeError before any work. The eps stands inside the root. A mask that is set everywhere
/// gives what layer_norm gives. Allocates nothing but what saved lacks. Example: tests/norms/masked_norm_test.cpp.
template <class Device, class X, class Mask, class Weight, class Bias, class Y, class Saved>
  requires detail::SavedOrNone<Saved, MaskedLayerNormSaved, X>
void masked_layer_norm(const Device& device, const X& x, const Mask& mask, const Weight& weight, const Bias& bias,
                       Y&& y, Saved&& saved, const MaskedLayerNormOptions& options = {}) {
  detail::row_norm<detail::Standardize>("masked_layer_norm", device, x, none, mask, weight, bias, none, y, saved,
                                        options);
}

/// The gradients of masked_layer_norm.
///
/// dy, x, dx        the shape of the forward's x; dx may be dy itself. dy, too, may hold anything where the mask is not
///                  set
/// mask, weight     the forward's, weight ek::none where it had none
/// saved            filled by the forward
/// dweight, dbias   length values, or ek::none where they are not wanted; accumulated, or overwritten as `mode` says
/// Writes dx. Throws ShapeError before any work, also where saved does not belong to x.
template <class Device, class Dy, class X, class Mask, class Weight, class A, class Storage, class Dx, class Dweight,
          class Dbias>
void masked_layer_norm_backward(const Device& device, const Dy& dy, const X& x, const Mask& mask, const Weight& weight,
                                MaskedLayerNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight, Dbias&& dbias,
                                GradientMode mode = GradientMode::accumulate) {
  detail::row_norm_backward<detail::Standardize>("masked_layer_norm_backward", "x", device, dy, none, x, mask, weight,
                                                 saved, dx, dweight, dbias, mode);
}

/// y = x * rstd * weight where the mask is set, 0 elsewhere, row by row; arguments as those of masked_layer_norm.
template <class Device, class X, class Mask, class Weight, class Y, class Saved>
  requires detail::SavedOrNone<Saved, MaskedRmsNormSaved, X>
void masked_rms_norm(const Device& device, const X& x, const Mask& mask, const Weight& weight, Y&& y, Saved&& saved,
                     const MaskedRmsNormOptions& options = {}) {
  detail::row_norm<detail::Rms>("masked_rms_norm", device, x, none, mask, weight, none, none, y, saved, options);
}

/// The gradients of masked_rms_norm; arguments as those of masked_layer_norm_backward.
template <class Device, class Dy, class X, class Mask, class Weight, class A, class Storage, class Dx, class Dweight>
void masked_rms_norm_backward(const Device& device, const Dy& dy, const X& x, const Mask& mask, const Weight& weight,
                              MaskedRmsNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight,
                              GradientMode mode = GradientMode::accumulate) {
  detail::row_norm_backward<detail::Rms>("masked_rms_norm_backward", "x", device, dy, none, x, mask, weight, saved, dx,
                                         dweight, none, mode);
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
