/// Weight standardization: each output unit of a weight has mean 0 and a fixed spread.
///
///     plain    w_hat = (w - mean)/sqrt(var + eps)
///              S. Qiao et al., "Micro-Batch Training with Batch-Channel Normalization and Weight Standardization",
///              2019, equations 4 and 5
///     scaled   w_hat = gain * (w - mean)/sqrt(max(var * fan_in, eps)),  or  sqrt(fan_in * (var + eps))
///              A. Brock, S. De, S. L. Smith, "Characterizing Signal Propagation to Close the Performance Gap in
///              Unnormalized ResNets", 2021, equation 6; the first form is NFNet's, the second timm's
///
/// var is biased; fan_in is the number of values of a unit. With xhat = (w - mean) * rstd and h = gain * dw_hat:
///
///     dw = rstd * (h - mean(h) - slope * xhat * mean(h * xhat)),  dgain = sum(dw_hat * xhat)
///
/// slope = d(1/rstd^2)/dvar: 1 for the plain form, fan_in for the scaled ones, 0 where eps is the larger one in the
/// maximum, since the variance has no part in the result there.
#pragma once

#include "evenkeel/detail/weight_layer.hpp"
#include "evenkeel/detail/weight_pass.hpp"
#include "evenkeel/detail/weight_standardize_math.hpp"
#include "evenkeel/storage.hpp"

#include <concepts>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

namespace evenkeel {
/// Options of weight_standardization.
struct WeightStandardizationOptions {
  double eps = 1e-5;  ///< added to the variance, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = 0;      ///< the axis of the output units
};

/// Options of scaled_weight_standardization.
struct ScaledWeightStandardizationOptions {
  bool eps_added = false;          ///< sqrt(fan_in * (var + eps)) in place of sqrt(max(var * fan_in, eps))
  std::optional<double> eps = {};  ///< 1e-4; where added 1e-6; at least 0, or ek::machine_epsilon
  Axes axis = 0;                   ///< the axis of the output units
};

/// Statistics that the forward leaves for the backward. A is the accumulator type of w.
template <class A, class Storage = HostStorage>
class WeightStandardizationSaved {
 public:
  using Scalar = A;

  Index units() const { return units_; }
  // Where the storage is the host's:

  A mean(Index unit) const requires(Storage::on_host) {
    return static_cast<A>((field(1, unit) + field(2, unit)) / field(0, unit));
  }
  /// What w - mean was multiplied by, the gain aside.
  A rstd(Index unit) const requires(Storage::on_host) { return static_cast<A>(field(3, unit) * field(0, unit)); }

  /// Makes room for a forward and a backward over w, so that neither allocates.
  template <class Device, class W>
  void reserve(const Device& device, const W& w, const Axes& axis = 0) {
    detail::WeightArguments arguments("reserve");
    arguments.reference("w", w, axis);
    values_.reserve(9 * arguments.units() + detail::unit_room(device, arguments.grid()));
  }

  // What forward and backward keep here.
  double field(int k, Index unit) const requires(Storage::on_host) { return values_.data()[k * units_ + unit]; }
  Index units_ = 0;  // 0: nothing saved yet
  Index count_ = 0;  // values per unit
  Axes axis_;
  bool has_gain_ = false, in_place_ = false;
  typename Storage::template Buffer<double> values_;  // (scale | mean | rest | rstd | mean_dy | pull, units), then
                                                      // (slope | dy | dy_xhat, units), then scratch
};

namespace detail::inline EVENKEEL_ISA {

template <class Device, class W, class G, class What, class Saved>
void standardize_weight(const char* function, const Device& device, const W& w, const G& gain, What& w_hat,
                        Saved& saved, Denominator denominator, double eps_option, const Axes& axis) {
  WeightArguments arguments(function);
  const auto rows = arguments.reference("w", w, axis);
  const auto gains = arguments.parameter("gain", gain);
  const auto out = arguments.output("w_hat", w_hat);
  const double eps = eps_option == machine_epsilon
                         ? static_cast<double>(std::numeric_limits<typename Saved::Scalar>::epsilon())
                         : resolved_eps<double>(function, eps_option);
  const RowGrid grid = arguments.grid();
  const Index units = arguments.units();
  saved.units_ = units;
  saved.count_ = arguments.count();
  saved.axis_ = axis;
  saved.has_gain_ = !is_none_v<G>;
  saved.in_place_ = static_cast<const void*>(out.data) == rows.data;
  saved.values_.ensure(9 * units + unit_room(device, grid));
  double* const values = saved.values_.data();
  double* const scratch = values + 9 * units;
  const double n = static_cast<double>(saved.count_), bytes = arguments.bytes(rows);
  unit_sums(device, RowPass{UnitMeanMath{1 / n, eps}, grid, std::tuple(rows), std::tuple(), std::tuple(), none, values},
            scratch, bytes);
  const double* const known = values;
  double* const spread = values + 4 * units;  // (rest | rstd | slope, units); slope stays here
  unit_sums(
      device,
      RowPass{UnitSpreadMath{denominator, n, eps}, grid, std::tuple(rows), std::tuple(), std::tuple(), known, spread},
      scratch, bytes, SpreadToKnown{values, units});
  channel_write(device, RowPass{StandardizedWrite{}, grid, std::tuple(rows), std::tuple(gains), std::tuple(out), known},
                bytes + arguments.bytes(out));
}

template <class Device, class Dy, class W, class G, class Saved, class Dw, class Dg>
void standardize_weight_backward(const char* function, const Device& device, const Dy& dw_hat, const W& w,
                                 const G& gain, Saved& saved, Dw& dw, Dg& dgain, GradientMode mode) {
  static_assert(!is_none_v<G> || is_none_v<Dg>, "evenkeel: there is no gain that dgain could belong to");
  if (saved.units_ == 0) throw_shape_error(function, "saved is empty, expected the one that the forward filled");
  WeightArguments arguments(function);
  const auto rows = arguments.reference("w", w, saved.axis_);
  const RowGrid grid = arguments.grid();
  const Index units = arguments.units();
  if (saved.units_ != units || saved.count_ != arguments.count())
    throw_shape_error(function, "saved holds ", saved.units_, " units of ", saved.count_, " values, ",
                      arguments.shape());
  if (saved.has_gain_ == is_none_v<G>)
    throw_shape_error(function,
                      saved.has_gain_ ? "gain is none, the forward had one" : "there is a gain, the forward had none");
  if (saved.in_place_)
    throw_shape_error(function,
                      "saved comes from an in-place forward, which has overwritten w; expected a forward whose w_hat "
                      "is not its w");
  const auto dy_rows = arguments.input("dw_hat", dw_hat);
  const auto gains = arguments.parameter("gain", gain);
  const auto dgains = arguments.parameter("dgain", dgain);
  const auto out = arguments.output("dw", dw);
  require_own_gradient(function, "dw", out, "dw_hat", dy_rows, mode);
  double* const values = saved.values_.data();
  const double* const known = values;
  double* const sums = values + 7 * units;  // (dy | dy_xhat, units)
  const double bytes = arguments.bytes(dy_rows) + arguments.bytes(rows);
  unit_sums(
      device,
      RowPass{StandardizedGradientSums{}, grid, std::tuple(dy_rows, rows), std::tuple(), std::tuple(), known, sums},
      values + 9 * units, bytes, StandardizedMeans{values, units, static_cast<double>(saved.count_)});
  write_gradient(device, StandardizedGradientWrite{}, grid, std::tuple(dy_rows, rows), std::tuple(gains), out, known,
                 bytes + arguments.bytes(out), mode);
  put_gradients(device, static_cast<const double*>(sums + units), FeatureParts{1, units, 1}, units, mode, dgains);
}

inline double resolved(const ScaledWeightStandardizationOptions& options) {
  return options.eps.value_or(options.eps_added ? 1e-6 : 1e-4);
}
inline Denominator denominator_of(const ScaledWeightStandardizationOptions& options) {
  return options.eps_added ? Denominator::added : Denominator::largest;
}

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// w_hat = (w - mean)/sqrt(var + eps) for each index of options.axis, over all other axes.
///
/// w, w_hat   any shape, the same for both; w_hat may be w itself, then no backward is possible
/// saved      receives the statistics
/// Writes w_hat and saved. Throws ShapeError before any work. eps stands inside the root; with eps = 0 a constant unit
/// becomes 0. Allocates nothing but what saved lacks. Example: tests/norms/weight_standardization_test.cpp.
template <class Device, class W, class What, class A, class Storage>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const W>>>
void weight_standardization(const Device& device, const W& w, What&& w_hat,
                            WeightStandardizationSaved<A, Storage>& saved,
                            const WeightStandardizationOptions& options = {}) {
  detail::standardize_weight("weight_standardization", device, w, none, w_hat, saved, detail::Denominator::plain,
                             options.eps, options.axis);
}

/// The gradient of weight_standardization.
///
/// dw_hat, w, dw   the shape of the forward's w
/// saved           filled by the forward
/// dw is the gradient of a parameter: accumulated, or overwritten as `mode` says; only then may it be dw_hat itself.
/// Throws ShapeError before any work, also where saved does not belong to w.
template <class Device, class DwHat, class W, class A, class Storage, class Dw>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const W>>>
void weight_standardization_backward(const Device& device, const DwHat& dw_hat, const W& w,
                                     WeightStandardizationSaved<A, Storage>& saved, Dw&& dw,
                                     GradientMode mode = GradientMode::accumulate) {
  detail::standardize_weight_backward("weight_standardization_backward", device, dw_hat, w, none, saved, dw, none,
                                      mode);
}

/// w_hat = gain * (w - mean)/sqrt(max(var * fan_in, eps)), or with the denominator sqrt(fan_in * (var + eps)), for each
/// index of options.axis, over all other axes.
///
/// w, w_hat   any shape, the same for both; w_hat may be w itself, then no backward is possible
/// gain       one value for each index of the axis, or ek::none; a constant factor, such as an activation's gain,
///            belongs into it
/// saved      receives the statistics
/// Writes w_hat and saved. Throws ShapeError before any work. Allocates nothing but what saved lacks.
template <class Device, class W, class G, class What, class A, class Storage>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const W>>>
void scaled_weight_standardization(const Device& device, const W& w, const G& gain, What&& w_hat,
                                   WeightStandardizationSaved<A, Storage>& saved,
                                   const ScaledWeightStandardizationOptions& options = {}) {
  detail::standardize_weight("scaled_weight_standardization", device, w, gain, w_hat, saved,
                             detail::denominator_of(options), detail::resolved(options), options.axis);
}

/// The gradients of scaled_weight_standardization.
///
/// dw_hat, w, dw   the shape of the forward's w
/// gain, dgain     the shape of the forward's gain, or ek::none
/// saved           filled by the forward
/// dw and dgain are gradients of parameters: accumulated, or overwritten as `mode` says; only then may dw be dw_hat
/// itself. Where eps is the larger one in the maximum, the variance counts as a constant. Throws ShapeError before any
/// work, also where saved does not belong to w.
template <class Device, class DwHat, class W, class G, class A, class Storage, class Dw, class Dg>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const W>>>
void scaled_weight_standardization_backward(const Device& device, const DwHat& dw_hat, const W& w, const G& gain,
                                            WeightStandardizationSaved<A, Storage>& saved, Dw&& dw, Dg&& dgain,
                                            GradientMode mode = GradientMode::accumulate) {
  detail::standardize_weight_backward("scaled_weight_standardization_backward", device, dw_hat, w, gain, saved, dw,
                                      dgain, mode);
}

/// A weight whose standardized form a linear or convolution layer uses. T is the scalar of the parameter; the weight
/// that is made of it may have another.
///
///     ek::WeightStandardization<float> standardization(initial);
///     standardization.materialize(device, w_hat);                   // before the layer that uses w_hat runs
///     standardization.backward(device, dw_hat);                     // after its backward
template <class T, class Storage = HostStorage>
class WeightStandardization {
 public:
  using Scalar = T;

  /// initial lies in the host's memory.
  template <detail::WeightTensor W>
  explicit WeightStandardization(const W& initial, const WeightStandardizationOptions& options = {})
      : weight_("WeightStandardization", "weight", initial, options.axis), options_(options) {
    weight_.assign("WeightStandardization", initial);
  }

  /// Makes room in saved, so that neither materialize nor backward allocates; on a CUDA device they must not.
  template <class Device>
  void reserve(const Device& device) {
    saved.reserve(device, std::as_const(weight_).values(), options_.axis);
  }

  /// w_hat has the shape of the initial weight.
  template <class Device, class What>
  void materialize(const Device& device, What&& w_hat) {
    const char* const function = "WeightStandardization::materialize";
    auto out = weight_.like(function, "w_hat", w_hat);
    detail::standardize_weight(function, device, std::as_const(weight_).values(), none, out, saved,
                               detail::Denominator::plain, options_.eps, options_.axis);
  }
  /// The last materialize: w_hat is a plain weight from then on, and the layer can be dropped.
  template <class Device, class What>
  void fold(const Device& device, What&& w_hat) {
    materialize(device, w_hat);
  }

  /// The gradient of the weight is accumulated. Once or more after each materialize.
  template <class Device, class DwHat>
  void backward(const Device& device, const DwHat& dw_hat, GradientMode mode = GradientMode::accumulate) {
    const char* const function = "WeightStandardization::backward";
    auto dw = weight_.gradients();
    detail::standardize_weight_backward(function, device, weight_.like(function, "dw_hat", dw_hat),
                                        std::as_const(weight_).values(), none, saved, dw, none, mode);
  }

  template <class F>
  void for_each_parameter(F&& f) {
    f(weight_.parameter.ref());
  }

  Parameter<T, Storage>& weight() { return weight_.parameter; }  // (the initial weight's shape)
  const WeightStandardizationOptions& options() const { return options_; }

  WeightStandardizationSaved<accumulator_t<T>, Storage> saved;

 private:
  detail::StoredWeight<T, Storage> weight_;
  WeightStandardizationOptions options_;
};

/// A weight whose scaled standardized form a linear or convolution layer uses, with a gain per output unit that starts
/// at 1.
///
///     ek::ScaledWeightStandardization<float> standardization(initial, {.eps_added = true});
template <class T, class Storage = HostStorage>
class ScaledWeightStandardization {
 public:
  using Scalar = T;

  /// initial lies in the host's memory.
  template <detail::WeightTensor W>
  explicit ScaledWeightStandardization(const W& initial, const ScaledWeightStandardizationOptions& options = {})
      : weight_("ScaledWeightStandardization", "weight", initial, options.axis),
        gain_("gain", weight_.units(), false),
        options_(options) {
    weight_.assign("ScaledWeightStandardization", initial);
    gain_.fill(T(1));
  }

  /// Makes room in saved, so that neither materialize nor backward allocates; on a CUDA device they must not.
  template <class Device>
  void reserve(const Device& device) {
    saved.reserve(device, std::as_const(weight_).values(), options_.axis);
  }

  /// w_hat has the shape of the initial weight.
  template <class Device, class What>
  void materialize(const Device& device, What&& w_hat) {
    const char* const function = "ScaledWeightStandardization::materialize";
    auto out = weight_.like(function, "w_hat", w_hat);
    detail::standardize_weight(function, device, std::as_const(weight_).values(), gains(), out, saved,
                               detail::denominator_of(options_), detail::resolved(options_), options_.axis);
  }
  /// The last materialize: w_hat is a plain weight from then on, and the layer can be dropped.
  template <class Device, class What>
  void fold(const Device& device, What&& w_hat) {
    materialize(device, w_hat);
  }

  /// The gradients of weight and gain are accumulated. Once or more after each materialize.
  template <class Device, class DwHat>
  void backward(const Device& device, const DwHat& dw_hat, GradientMode mode = GradientMode::accumulate) {
    const char* const function = "ScaledWeightStandardization::backward";
    auto dw = weight_.gradients();
    auto dgain = detail::map_of(gain_.gradient(), gain_.size());
    detail::standardize_weight_backward(function, device, weight_.like(function, "dw_hat", dw_hat),
                                        std::as_const(weight_).values(), gains(), saved, dw, dgain, mode);
  }

  /// Calls f(ParameterRef<T>) for weight, then for gain.
  template <class F>
  void for_each_parameter(F&& f) {
    f(weight_.parameter.ref());
    f(gain_.ref());
  }

  Parameter<T, Storage>& weight() { return weight_.parameter; }  // (the initial weight's shape)
  Parameter<T, Storage>& gain() { return gain_; }                // (units)
  const ScaledWeightStandardizationOptions& options() const { return options_; }

  WeightStandardizationSaved<accumulator_t<T>, Storage> saved;

 private:
  auto gains() const { return detail::map_of(gain_.value(), gain_.size()); }

  detail::StoredWeight<T, Storage> weight_;
  Parameter<T, Storage> gain_;
  ScaledWeightStandardizationOptions options_;
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
