/// TaperRmsNorm and TaperLayerNorm: layers that calibrate themselves in the warmup of the Taper that they share, fix
/// their factor c when it ends, and follow its gate. arXiv 2602.10408, sections 3.3 and 3.4, appendices A.6 and B.
///
///     c = E[||h * weight||^2 / r(h)] / E[||h * weight||^2],  h = x, or x - mean with sigma in place of r
///
/// which minimizes E||h * weight/r - c * h * weight||^2. The two means are bias-corrected averages of the batch means,
/// each with the Taper's rate as the weight of the new batch.
///
///     ek::Taper taper({.warmup_steps = 1000, .end_step = 20000});
///     ek::PreNorm attention(ek::TaperRmsNorm<float>(width, taper), Attention(width));
///     ek::TaperRmsNorm<float> final_norm(width, taper, {.tapered = all_taper});
///
/// The final norm is of the same type in both of the paper's settings: with .tapered = false it stays a plain norm,
/// which is Internal-Taper; with true the network is All-Taper, which needs a scale anchor (scale_anchor.hpp).
#pragma once

#include "evenkeel/detail/row_averages.hpp"
#include "evenkeel/distributed/averages.hpp"
#include "evenkeel/fold/affine_map.hpp"
#include "evenkeel/parameter.hpp"
#include "evenkeel/taper/taper.hpp"
#include "evenkeel/taper/taper_norm.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <type_traits>

namespace evenkeel {

/// Options of TaperRmsNorm.
struct TaperRmsNormLayerOptions {
  double eps = 1e-6;    ///< added to the mean square, inside the root
  Axes axis = {};       ///< the normalized axis or neighbouring axes
  bool tapered = true;  ///< false: gate 1 for good, a plain RMSNorm, as the final norm of Internal-Taper
};

/// Options of TaperLayerNorm.
struct TaperLayerNormLayerOptions {
  double eps = 1e-5;    ///< added to the variance, inside the root
  Axes axis = {};       ///< the normalized axis or neighbouring axes
  bool tapered = true;  ///< false: gate 1 for good, a plain LayerNorm, as the final norm of Internal-Taper
};

/// A tapered layer beside its parameters, as plain numbers, to be saved with them and restored.
struct TaperLayerState {
  EmaState numerator, denominator;
  double factor = 0;
  bool calibrated = false;
};

namespace detail {

struct TaperRmsLayer {
  using Options = TaperRmsNormLayerOptions;
  using CallOptions = TaperRmsNormOptions;
  template <class A, class Storage>
  using Saved = TaperRmsNormSaved<A, Storage>;
  using Variant = RmsTaper;
  static constexpr bool has_bias = false;
  static constexpr const char *name = "TaperRmsNorm", *forward = "TaperRmsNorm::forward",
                              *backward = "TaperRmsNorm::backward", *add_forward = "TaperRmsNorm::add_forward",
                              *add_backward = "TaperRmsNorm::add_backward", *forward_add = "TaperRmsNorm::forward_add";
};
struct TaperStandardizeLayer {
  using Options = TaperLayerNormLayerOptions;
  using CallOptions = TaperLayerNormOptions;
  template <class A, class Storage>
  using Saved = TaperLayerNormSaved<A, Storage>;
  using Variant = StandardizeTaper;
  static constexpr bool has_bias = true;
  static constexpr const char *name = "TaperLayerNorm", *forward = "TaperLayerNorm::forward",
                              *backward = "TaperLayerNorm::backward", *add_forward = "TaperLayerNorm::add_forward",
                              *add_backward = "TaperLayerNorm::add_backward",
                              *forward_add = "TaperLayerNorm::forward_add";
};

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// TaperRmsNorm or TaperLayerNorm. T is the scalar of the parameters; the data may have any scalar of the same
/// accumulator type. Copies share the Taper and nothing else.
///
/// With CudaStorage the averages of the warmup lie in the device's memory and forward and backward put their work into
/// the stream. The host waits for the device, and so may not while a stream is captured, where it is told a number or
/// tells one: in calibrate(), hence in the first forward after the warmup unless that came before it, and in
/// numerator(), denominator(), observe(), state(), restore() and linear_map().
///
/// Gate is Taper, and the gate a number of the host's, which a captured graph keeps as it was when it was captured; or
/// CudaTaper, and the gate lies in the device's memory, where the graph finds that of the step: see cuda_taper.cuh. What
/// a forward in the warmup does is the host's choice in either case, so a graph is captured anew after it.
template <class T, class Traits, class Storage = HostStorage, class Gate = Taper>
class TaperLayer {
  using A = accumulator_t<T>;

 public:
  using Scalar = T;
  using Options = typename Traits::Options;
  using Saved = typename Traits::template Saved<A, Storage>;

  /// `features` is the length of the normalized axes together; the taper must outlive the layer. weight and
  /// scale_weight are ones, bias zeros. Throws ShapeError if features is below 1.
  TaperLayer(Index features, const Gate& taper, const Options& options = {})
      : weight("weight", checked(features), false),
        scale_weight("scale_weight", features, false),
        bias("bias", Traits::has_bias ? features : 0, false),
        taper_(&taper),
        options_(options),
        averages_(taper.rate()) {
    weight.fill(T(1));
    scale_weight.fill(T(1));
  }
  TaperLayer(Index, const Gate&&, const Options& = {}) = delete;

  /// y at the Taper's gate. y may be x, then no backward is possible. In the warmup saved also receives what the
  /// backward will calibrate with; the first forward after it fixes the factor, see calibrate().
  template <class Device, class X, class Y>
  void forward(const Device& device, const X& x, Y&& y) {
    forward_of(Traits::forward, device, x, none, none, y);
  }

  /// y = residual + the forward's, in one pass. y may be residual, and x, then no backward is possible. The backward is
  /// that of forward; the gradient of the residual is dy.
  template <class Device, class X, class Residual, class Y>
  void forward_add(const Device& device, const X& x, const Residual& residual, Y&& y) {
    forward_of(Traits::forward_add, device, x, residual, none, y);
  }

  /// sum = x + residual, y = the forward of sum, in one pass: for residual blocks.
  template <class Device, class X, class Residual, class Sum, class Y>
  void add_forward(const Device& device, const X& x, const Residual& residual, Sum&& sum, Y&& y) {
    forward_of(Traits::add_forward, device, x, residual, sum, y);
  }
  /// The same with sum = x + residual_scale * residual.
  template <class Device, class X, class Residual, class Sum, class Y>
  void add_forward(const Device& device, const X& x, const Residual& residual, double residual_scale, Sum&& sum,
                   Y&& y) {
    forward_of(Traits::add_forward, device, x, detail::Scaled<Residual>{residual, residual_scale}, sum, y);
  }

  /// dx is written, the gradients of the parameters are accumulated. x is the forward's. In the warmup the batch enters
  /// the averages here, so that forwards without a backward, of a validation, do not count; a batch whose means are not
  /// finite throws StateError after the gradients are written, on a device where the averages are read.
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device& device, const Dy& dy, const X& x, Dx&& dx, GradientMode mode = GradientMode::accumulate) {
    backward_of(Traits::backward, "x", device, dy, none, x, dx, mode);
  }

  /// dx = (gradient through the norm) + dsum, in one pass: the gradient of the sum, hence of x, and of residual but for
  /// its scale. dsum may be ek::none.
  template <class Device, class Dy, class Dsum, class Sum, class Dx>
  void add_backward(const Device& device, const Dy& dy, const Dsum& dsum, const Sum& sum, Dx&& dx,
                    GradientMode mode = GradientMode::accumulate) {
    backward_of(Traits::add_backward, "sum", device, dy, dsum, sum, dx, mode);
  }

  /// Calls f(ParameterRef<T>) for weight, scale_weight where the layer is tapered, and bias where the norm has one.
  /// There is no weight decay on them.
  template <class F>
  void for_each_parameter(F&& f) {
    f(weight.ref());
    if (options_.tapered) f(scale_weight.ref());
    if (Traits::has_bias) f(bias.ref());
  }

  Index features() const { return weight.size(); }
  const Options& options() const { return options_; }
  /// The gate of the next forward.
  double gate() const { return options_.tapered ? taper_->gate() : 1; }
  /// Whether the factor is fixed, and the factor: 0 before.
  bool calibrated() const { return calibrated_; }
  double factor() const { return factor_; }

  /// The averages of the two batch means.
  Ema numerator() const { return averages_.get()[0]; }
  Ema denominator() const { return averages_.get()[1]; }
  /// Adds the means of a batch to the averages, as the backward does by itself.
  void observe(double batch_numerator, double batch_denominator) {
    require_uncalibrated("observe");
    averages_.add({batch_numerator, batch_denominator});
  }

  /// Fixes the factor from the averages and starts scale_weight from weight. The first forward after the warmup does so
  /// by itself. Throws StateError if it is fixed already, or if there is no batch to compute it from.
  void calibrate() {
    require_uncalibrated("calibrate");
    const auto [above, below] = averages_.get();
    if (below.empty())
      detail::throw_state_error(function("calibrate").c_str(),
                                "got no batches in the warmup, expected 1 or more that went forward and backward, or "
                                "calibrate(factor)");
    calibrate(ratio(above.value(), below.value()));
  }
  /// The same from the averages of all ranks, so that the factor is the same on each of them: before the first forward
  /// after the warmup. Each batch of each rank counts alike. One message of 5 doubles. Where it is an error on one rank,
  /// all ranks throw, and nothing has changed.
  template <Communicator C>
  void calibrate(C&& communicator) {
    const auto [above, below] = detail::averages_over_ranks<2>(function("calibrate").c_str(), communicator, [&] {
      require_uncalibrated("calibrate");
      return std::array{numerator().state(), denominator().state()};
    });
    calibrate(ratio(above, below));
  }
  /// The same with a given factor.
  void calibrate(double factor) {
    require_uncalibrated("calibrate");
    if (!std::isfinite(factor))
      detail::throw_state_error(function("calibrate").c_str(), "got the factor ", factor, ", expected a finite number");
    factor_ = factor;
    calibrated_ = true;
    Storage::copy(weight.value(), scale_weight.value(), features());
  }

  /// At gate 0, what the layer is: x, or x - mean, times c * scale_weight, plus bias. Throws StateError before.
  AffineMap linear_map() const {
    if (gate() > 0 || !calibrated_)
      detail::throw_state_error(function("linear_map").c_str(), "got gate ", gate(), ", expected gate 0",
                                gate() > 0 ? "" : " and a forward at it");
    AffineMap result;
    result.centred = Traits::Variant::centres;
    for (const T c : scale_weight.host_values()) result.scale.push_back(factor_ * static_cast<double>(c));
    for (const T b : bias.host_values()) result.offset.push_back(static_cast<double>(b));
    return result;
  }

  /// What a model saves beside the parameters, and the same back. Throws StateError for numbers that no run leaves.
  TaperLayerState state() const {
    const auto [above, below] = averages_.get();
    return {above.state(), below.state(), factor_, calibrated_};
  }
  void restore(const TaperLayerState& state) {
    if (!std::isfinite(state.factor) || (!state.calibrated && state.factor != 0) ||
        state.numerator.count != state.denominator.count)
      detail::throw_state_error(function("restore").c_str(), "got factor ", state.factor, ", calibrated ",
                                int(state.calibrated), ", counts ", state.numerator.count, " and ",
                                state.denominator.count,
                                ", expected a finite factor, 0 where not calibrated, and equal counts");
    averages_.set({state.numerator, state.denominator});
    factor_ = state.factor;
    calibrated_ = state.calibrated;
  }

  Parameter<T, Storage> weight;        // (features)
  Parameter<T, Storage> scale_weight;  // (features), without use where the layer is not tapered
  Parameter<T, Storage> bias;          // (features), or none
  Saved saved;

 private:
  static std::string function(const char* member) { return std::string(Traits::name) + "::" + member; }
  static Index checked(Index features) {
    if (features < 1)
      detail::throw_shape_error(function(Traits::name).c_str(), "the layer has ", features,
                                " features, expected 1 or more");
    return features;
  }
  static double ratio(double above, double below) {
    if (!(below > 0))
      detail::throw_state_error(function("calibrate").c_str(), "got a mean of ||h * weight||^2 of ", below,
                                ", expected more than 0");
    return above / below;
  }
  void require_uncalibrated(const char* member) const {
    if (!options_.tapered)
      detail::throw_state_error(function(member).c_str(), "got a layer with tapered = false, expected a tapered one");
    if (calibrated_)
      detail::throw_state_error(function(member).c_str(), "got a layer whose factor is ", factor_,
                                " already, expected one that is not calibrated yet");
  }
  auto call_options(bool calibrates) const {
    typename Traits::CallOptions options;
    options.gate = gate();
    options.factor = factor_;
    options.eps = options_.eps;
    options.axis = options_.axis;
    options.calibrate = calibrates;
    return options;
  }

  auto gate_of_call() const {
    if constexpr (requires { taper_->template numbers<A>(); })
      return detail::GateOfMemory<A>{options_.tapered ? taper_->template numbers<A>() : nullptr};
    else
      return detail::GateOfHost();
  }

  /// Calls f(weight, scale_weight, bias, dweight, dscale_weight, dbias), each a map or none.
  template <class F>
  void with_parameters(const F& f) {
    using Values = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;
    const Index n = features();
    const Values w(weight.value(), n), dw(weight.gradient(), n);
    const Values c(scale_weight.value(), n), dc(scale_weight.gradient(), n);
    if constexpr (Traits::has_bias)
      f(w, c, Values(bias.value(), n), dw, dc, Values(bias.gradient(), n));
    else
      f(w, c, none, dw, dc, none);
  }

  template <class Device, class X, class Residual, class Sum, class Y>
  void forward_of(const char* function, const Device& device, const X& x, const Residual& residual, Sum& sum, Y& y) {
    const bool warmup = taper_->phase() == TaperPhase::warmup;
    if (options_.tapered && !calibrated_ && !warmup) calibrate();
    const bool calibrates = options_.tapered && !calibrated_;
    with_parameters([&](const auto& w, const auto& c, const auto& b, auto...) {
      detail::taper_norm<typename Traits::Variant>(function, device, x, residual, w, c, b, sum, y, saved,
                                                   call_options(calibrates), gate_of_call());
    });
  }
  template <class Device, class Dy, class Dsum, class X, class Dx>
  void backward_of(const char* function, const char* x_name, const Device& device, const Dy& dy, const Dsum& dsum,
                   const X& x, Dx& dx, GradientMode mode) {
    with_parameters([&](const auto& w, const auto& c, const auto&, auto dw, auto dc, auto db) {
      detail::taper_norm_backward<typename Traits::Variant>(function, x_name, device, dy, dsum, x, w, c, saved, dx, dw,
                                                            dc, db, mode, gate_of_call());
    });
    if (!saved.taper.calibrated || calibrated_) return;
    averages_.add(device, saved.calibration_terms(), saved.rows());
    saved.taper.calibrated = false;  // a batch counts once
  }

  const Gate* taper_;
  Options options_;
  detail::RowAverages<2, Storage> averages_;  // numerator, denominator
  double factor_ = 0;
  bool calibrated_ = false;
};

/// RMSNorm that tapers to x * c * scale_weight: weight and scale_weight, no bias.
///
///     ek::TaperRmsNorm<float> norm(width, taper);
///     norm.forward(device, x, y);
///     norm.backward(device, dy, x, dx);
template <class T, class Storage = HostStorage, class Gate = Taper>
using TaperRmsNorm = TaperLayer<T, detail::TaperRmsLayer, Storage, Gate>;

/// LayerNorm that tapers to (x - mean) * c * scale_weight + bias.
template <class T, class Storage = HostStorage, class Gate = Taper>
using TaperLayerNorm = TaperLayer<T, detail::TaperStandardizeLayer, Storage, Gate>;

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
