/// TaperNorm: a norm that a gate takes to a fixed scaling, which the next linear layer can swallow. "Gated
/// Normalization Removal and Scale Anchoring in Pre-Norm Transformers", arXiv 2602.10408, section 3.3 and appendix B.
///
///     RMS variant        r = sqrt(mean(x^2) + eps)
///                        y = g * x/r * weight + (1 - g) * c * x * scale_weight (+ bias)
///     LayerNorm variant  sigma = sqrt(var(x) + eps)
///                        y = g * (x - mean)/sigma * weight + (1 - g) * c * (x - mean) * scale_weight + bias
///
///     dx = g * (the norm's) + (1 - g) * c * dy * scale_weight   [LayerNorm variant: minus its mean]
///     dweight = g * sum of dy * xhat,  dscale_weight = (1 - g) * c * sum of dy * x [or x - mean],  dbias = sum of dy
///
/// The gate g goes from 1 to 0 (taper.hpp), the factor c comes from a calibration at gate 1. At gate 1 the plain norm
/// runs, with its bits; at gate 0 nothing is computed of a row but, in the LayerNorm variant, its mean; in between it
/// is one pass over the data, as it is for the norm. Layers that know when to do what are in taper_layer.hpp.
#pragma once

#include "evenkeel/detail/row_averages.hpp"
#include "evenkeel/detail/taper_pass.hpp"

#include <array>

namespace evenkeel {

/// Options of taper_rms_norm.
struct TaperRmsNormOptions {
  double gate = 1;         ///< g, from 0 (a fixed scaling) to 1 (RMSNorm)
  double factor = 0;       ///< c, which TaperNorm has from its calibration; without effect at gate 1
  double eps = 1e-6;       ///< added to the mean square, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = {};          ///< the normalized axis or neighbouring axes
  bool calibrate = false;  ///< at gate 1: saved also receives what c is computed from
};

/// Options of taper_layer_norm.
struct TaperLayerNormOptions {
  double gate = 1;         ///< g, from 0 (a fixed affine map) to 1 (LayerNorm)
  double factor = 0;       ///< c, which TaperNorm has from its calibration; without effect at gate 1
  double eps = 1e-5;       ///< added to the variance, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = {};          ///< the normalized axis or neighbouring axes
  bool calibrate = false;  ///< at gate 1: saved also receives what c is computed from
};

namespace detail::inline EVENKEEL_ISA {

/// Rows of a TaperNorm; the last two fields are rstd and, where the forward calibrated, ||h * weight||.
template <class A, int Fields, class Storage>
class TaperSaved : public SavedRows<A, Fields, Storage> {
 public:
  TaperCall taper;

  /// Makes room for a forward and a backward over x, so that neither allocates.
  template <class Device, class X>
  void reserve(const Device& device, const X& x, const Axes& axis = {}) {
    SavedRows<A, Fields, Storage>::reserve(device, x, axis);
    RowArguments arguments("reserve");
    arguments.reference("x", x, axis);
    const RowGrid grid = arguments.grid();
    this->scratch.reserve(feature_scratch<A, 3>(device, grid.rows(), grid.length));
  }

  /// The gate and the factor of the forward; of a gate in a device's memory what the host took it for at the call.
  double gate() const { return taper.gate; }
  double factor() const { return taper.factor; }
  /// 1/r or 1/sigma of a row. A forward at gate 0 computes none and leaves the last one's.
  A rstd(Index row) const { return this->field(Fields - 2, row); }
  /// What a forward with the option calibrate has left of the rows, in the storage's memory.
  CalibrationTerms<A> calibration_terms() const {
    return {this->field_values(Fields - 2), this->field_values(Fields - 1)};
  }

  /// Mean over the rows of ||h * weight||^2 / r, of a forward with the option calibrate; h is x, or x - mean, and r the
  /// root that the norm divides by. 0 without rows. Throws StateError where the forward did not calibrate.
  double calibration_numerator() const { return batch_means("calibration_numerator")[0]; }
  /// Mean over the rows of ||h * weight||^2.
  double calibration_denominator() const { return batch_means("calibration_denominator")[1]; }

 private:
  std::array<double, 2> batch_means(const char* function) const {
    static_assert(
        Storage::on_host,
        "evenkeel: the calibration's rows lie in the device's memory: copy `statistics`, (fields, rows), whose "
        "last two fields are rstd and n = ||h * weight||; the numerator is the mean of n^2 * rstd, the "
        "denominator that of n^2");
    if (!taper.calibrated || this->call.rows < 0)
      throw_state_error(function, "saved holds no calibration, expected a forward with the option calibrate");
    return means_of(calibration_terms(), this->rows());
  }
};

}  // namespace detail::inline EVENKEEL_ISA

/// What taper_rms_norm leaves for its backward, and scratch. A is the accumulator type of the data.
template <class A, class Storage = HostStorage>
class TaperRmsNormSaved : public detail::TaperSaved<A, 2, Storage> {};

/// What taper_layer_norm leaves for its backward, and scratch. A is the accumulator type of the data.
template <class A, class Storage = HostStorage>
class TaperLayerNormSaved : public detail::TaperSaved<A, 4, Storage> {
 public:
  /// The mean, rounded to one number. The backward uses what that leaves, too.
  A mean(Index row) const { return this->field(0, row); }
};

/// The gradients of a loss with respect to the gate and to the factor.
struct TaperGateGradients {
  double gate, factor;
};

inline namespace EVENKEEL_ISA {

/// Where taper_gate_gradients leaves them in the storage's memory, and its scratch.
template <class Storage = HostStorage>
class TaperGateSaved {
 public:
  /// Makes room for calls over x, so that none allocates.
  template <class Device, class X>
  void reserve(const Device&, const X& x, const Axes& axis = {}) {
    detail::require_device<Device>();
    detail::RowArguments arguments("reserve");
    arguments.reference("x", x, axis);
    values_.reserve(2 + 2 * arguments.grid().rows());
  }
  /// Of the last call; zero without one. Waits for the device, where the storage is one's.
  TaperGateGradients gradients() const {
    std::array<double, 2> values{};
    if (values_.size() > 0) Storage::read(values_.data(), values.data(), 2);
    return {values[0], values[1]};
  }
  /// (gate | factor), for what follows in the stream.
  const double* values() const { return values_.data(); }

  /// For taper_gate_gradients: room for what it writes.
  double* begin(Index rows) {
    values_.ensure(2 + 2 * rows);
    return values_.data();
  }

 private:
  typename Storage::template Buffer<double> values_;  // (gate | factor), then (of_norm | of_scale, rows)
};

}  // namespace EVENKEEL_ISA

namespace detail::inline EVENKEEL_ISA {

/// The one sentence for gradients that the host cannot have without waiting.
template <class Device>
constexpr void require_host_gate() {
  require_device<Device>();
  static_assert(!StreamDevice<Device> || CpuDevice<Device>,
                "evenkeel: on CUDA devices taper_gate_gradients leaves what it finds in their memory: pass an "
                "ek::TaperGateSaved<ek::CudaStorage>");
}

template <bool Centres, class Device, class Dy, class X, class Weight, class ScaleWeight, class Saved, class To>
void put_gate_gradients(const Device& device, const Dy& dy, const X& x, const Weight& weight,
                        const ScaleWeight& scale_weight, const Saved& saved, To& to) {
  require_device<Device>();
  const auto arguments = gate_arguments("taper_gate_gradients", dy, x, weight, scale_weight, saved);
  double* const values = to.begin(arguments.grid.rows());
  if constexpr (StreamDevice<Device>) {
    put_gate_sums<Centres>(device, arguments, saved.taper, values);
  } else {
    const auto sums = taper_gate_sums<Centres>(arguments, saved.taper);
    values[0] = sums[0];
    values[1] = sums[1];
  }
}

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// y = g * x/r * weight + (1 - g) * c * x * scale_weight + bias, row by row.
///
/// x, y                        any shape, the same for both; y may be x itself, then no backward is possible; partial
///                             overlap is an error
/// weight, scale_weight, bias  length values of any scalar type, or ek::none
/// saved                       receives 1/r per row, the gate and the factor; or ek::none for inference
/// Writes y and saved. At gate 1 y has the bits of rms_norm, also with calibrate; at gate 0 nothing is computed but x *
/// c * scale_weight + bias, so that no row is too large for its squares. Throws ShapeError before any work, also for a
/// gate outside of 0 to 1. Allocates nothing but what saved lacks. Example: tests/taper/taper_norm_test.cpp.
template <class Device, class X, class Weight, class ScaleWeight, class Bias, class Y, class Saved>
  requires detail::SavedOrNone<Saved, TaperRmsNormSaved, X>
void taper_rms_norm(const Device& device, const X& x, const Weight& weight, const ScaleWeight& scale_weight,
                    const Bias& bias, Y&& y, Saved&& saved, const TaperRmsNormOptions& options = {}) {
  detail::taper_norm<detail::RmsTaper>("taper_rms_norm", device, x, none, weight, scale_weight, bias, none, y, saved,
                                       options);
}

/// The residual sum and its TaperNorm in one pass: sum = x + residual, y = taper_rms_norm(sum). sum may be x or residual,
/// y may not be sum. The norm sees the sum rounded to the data type, as it is stored. At gate 1 both have the bits of
/// add_rms_norm.
template <class Device, class X, class Residual, class Weight, class ScaleWeight, class Bias, class Sum, class Y,
          class Saved>
  requires detail::SavedOrNone<Saved, TaperRmsNormSaved, X>
void add_taper_rms_norm(const Device& device, const X& x, const Residual& residual, const Weight& weight,
                        const ScaleWeight& scale_weight, const Bias& bias, Sum&& sum, Y&& y, Saved&& saved,
                        const TaperRmsNormOptions& options = {}) {
  detail::taper_norm<detail::RmsTaper>("add_taper_rms_norm", device, x, residual, weight, scale_weight, bias, sum, y,
                                       saved, options);
}
/// The gradients of add_taper_rms_norm: dx = (gradient through the norm) + dsum, which is the gradient of both x and
/// residual. dsum is the gradient of sum from its later uses, or ek::none. sum is the forward's; the rest as in
/// taper_rms_norm_backward.
template <class Device, class Dy, class Dsum, class Sum, class Weight, class ScaleWeight, class A, class Storage,
          class Dx, class Dweight, class Dscale, class Dbias>
void add_taper_rms_norm_backward(const Device& device, const Dy& dy, const Dsum& dsum, const Sum& sum,
                                 const Weight& weight, const ScaleWeight& scale_weight,
                                 TaperRmsNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight,
                                 Dscale&& dscale_weight, Dbias&& dbias, GradientMode mode = GradientMode::accumulate) {
  detail::taper_norm_backward<detail::RmsTaper>("add_taper_rms_norm_backward", "sum", device, dy, dsum, sum, weight,
                                                scale_weight, saved, dx, dweight, dscale_weight, dbias, mode);
}

/// The gradients of taper_rms_norm. The gate and the factor are constants.
///
/// dy, x, dx                       the shape of the forward's x; dx may be dy itself
/// weight, scale_weight            the forward's, ek::none where it had none
/// saved                           filled by the forward, whose gate and factor it holds
/// dweight, dscale_weight, dbias   length values, or ek::none where they are not wanted; accumulated, or overwritten as
///                                 `mode` says, by 0 where the gate leaves nothing of them
/// Writes dx. Throws ShapeError before any work, also where saved does not belong to x.
template <class Device, class Dy, class X, class Weight, class ScaleWeight, class A, class Storage, class Dx,
          class Dweight, class Dscale, class Dbias>
void taper_rms_norm_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight,
                             const ScaleWeight& scale_weight, TaperRmsNormSaved<A, Storage>& saved, Dx&& dx,
                             Dweight&& dweight, Dscale&& dscale_weight, Dbias&& dbias,
                             GradientMode mode = GradientMode::accumulate) {
  detail::taper_norm_backward<detail::RmsTaper>("taper_rms_norm_backward", "x", device, dy, none, x, weight,
                                                scale_weight, saved, dx, dweight, dscale_weight, dbias, mode);
}

/// y = g * (x - mean)/sigma * weight + (1 - g) * c * (x - mean) * scale_weight + bias, row by row: as taper_rms_norm,
/// with the mean and sigma of each row. At gate 1 y has the bits of layer_norm; at gate 0 only the mean is computed.
template <class Device, class X, class Weight, class ScaleWeight, class Bias, class Y, class Saved>
  requires detail::SavedOrNone<Saved, TaperLayerNormSaved, X>
void taper_layer_norm(const Device& device, const X& x, const Weight& weight, const ScaleWeight& scale_weight,
                      const Bias& bias, Y&& y, Saved&& saved, const TaperLayerNormOptions& options = {}) {
  detail::taper_norm<detail::StandardizeTaper>("taper_layer_norm", device, x, none, weight, scale_weight, bias, none, y,
                                               saved, options);
}

/// sum = x + residual, y = taper_layer_norm(sum) in one pass: as add_taper_rms_norm.
template <class Device, class X, class Residual, class Weight, class ScaleWeight, class Bias, class Sum, class Y,
          class Saved>
  requires detail::SavedOrNone<Saved, TaperLayerNormSaved, X>
void add_taper_layer_norm(const Device& device, const X& x, const Residual& residual, const Weight& weight,
                          const ScaleWeight& scale_weight, const Bias& bias, Sum&& sum, Y&& y, Saved&& saved,
                          const TaperLayerNormOptions& options = {}) {
  detail::taper_norm<detail::StandardizeTaper>("add_taper_layer_norm", device, x, residual, weight, scale_weight, bias,
                                               sum, y, saved, options);
}
/// The gradients of add_taper_layer_norm: as those of add_taper_rms_norm.
template <class Device, class Dy, class Dsum, class Sum, class Weight, class ScaleWeight, class A, class Storage,
          class Dx, class Dweight, class Dscale, class Dbias>
void add_taper_layer_norm_backward(const Device& device, const Dy& dy, const Dsum& dsum, const Sum& sum,
                                   const Weight& weight, const ScaleWeight& scale_weight,
                                   TaperLayerNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight,
                                   Dscale&& dscale_weight, Dbias&& dbias,
                                   GradientMode mode = GradientMode::accumulate) {
  detail::taper_norm_backward<detail::StandardizeTaper>("add_taper_layer_norm_backward", "sum", device, dy, dsum, sum,
                                                        weight, scale_weight, saved, dx, dweight, dscale_weight, dbias,
                                                        mode);
}

/// The gradients of taper_layer_norm: as those of taper_rms_norm.
template <class Device, class Dy, class X, class Weight, class ScaleWeight, class A, class Storage, class Dx,
          class Dweight, class Dscale, class Dbias>
void taper_layer_norm_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight,
                               const ScaleWeight& scale_weight, TaperLayerNormSaved<A, Storage>& saved, Dx&& dx,
                               Dweight&& dweight, Dscale&& dscale_weight, Dbias&& dbias,
                               GradientMode mode = GradientMode::accumulate) {
  detail::taper_norm_backward<detail::StandardizeTaper>("taper_layer_norm_backward", "x", device, dy, none, x, weight,
                                                        scale_weight, saved, dx, dweight, dscale_weight, dbias, mode);
}

/// The gradients with respect to the gate and the factor, which the paper holds constant: for checks, and for whoever
/// learns them. Arguments as those of the backward; the gate, factor and eps are the ones of the forward that filled
/// saved. One thread, in double; on the CPU, since it returns what it finds. Throws ShapeError as the backward does.
///
///     dgate = sum of dy * (xhat * weight - c * h * scale_weight),  dfactor = (1 - g) * sum of dy * h * scale_weight
template <class Device, class Dy, class X, class Weight, class ScaleWeight, class A>
TaperGateGradients taper_gate_gradients(const Device&, const Dy& dy, const X& x, const Weight& weight,
                                        const ScaleWeight& scale_weight, const TaperRmsNormSaved<A>& saved) {
  detail::require_host_gate<Device>();
  const auto sums = detail::taper_gate_sums<false>(
      detail::gate_arguments("taper_gate_gradients", dy, x, weight, scale_weight, saved), saved.taper);
  return {sums[0], sums[1]};
}
/// The same of the LayerNorm variant.
template <class Device, class Dy, class X, class Weight, class ScaleWeight, class A>
TaperGateGradients taper_gate_gradients(const Device&, const Dy& dy, const X& x, const Weight& weight,
                                        const ScaleWeight& scale_weight, const TaperLayerNormSaved<A>& saved) {
  detail::require_host_gate<Device>();
  const auto sums = detail::taper_gate_sums<true>(
      detail::gate_arguments("taper_gate_gradients", dy, x, weight, scale_weight, saved), saved.taper);
  return {sums[0], sums[1]};
}

/// The same on any device: the gradients are in `to` afterwards, which has room for x by to.reserve(device, x). On a CUDA
/// device a call puts its work into the stream and allocates nothing; results are the same bits in every run. Of a gate in
/// the device's memory it takes what the host took it for at the forward. Throws CudaError without room. Example:
/// tests/cuda/row_taper_gate_test.cpp.
template <class Device, class Dy, class X, class Weight, class ScaleWeight, class A, class Storage>
void taper_gate_gradients(const Device& device, const Dy& dy, const X& x, const Weight& weight,
                          const ScaleWeight& scale_weight, const TaperRmsNormSaved<A, Storage>& saved,
                          TaperGateSaved<Storage>& to) {
  detail::put_gate_gradients<false>(device, dy, x, weight, scale_weight, saved, to);
}
/// The same of the LayerNorm variant.
template <class Device, class Dy, class X, class Weight, class ScaleWeight, class A, class Storage>
void taper_gate_gradients(const Device& device, const Dy& dy, const X& x, const Weight& weight,
                          const ScaleWeight& scale_weight, const TaperLayerNormSaved<A, Storage>& saved,
                          TaperGateSaved<Storage>& to) {
  detail::put_gate_gradients<true>(device, dy, x, weight, scale_weight, saved, to);
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
