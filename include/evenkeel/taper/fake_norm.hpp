/// FakeLN, the older way to a network without LayerNorm: layer by layer, sigma is replaced by its average. L. Baroni et
/// al., "Transformers Don't Need LayerNorm at Inference Time", arXiv 2507.02559. Their auxiliary loss is not part of
/// it.
///
///     y = (x - mean)/sigma_avg * weight + bias
///
/// That is the LayerNorm variant of TaperNorm at gate 0 with the factor 1/sigma_avg and the norm's own weight.
#pragma once

#include "evenkeel/detail/row_averages.hpp"
#include "evenkeel/norms/layer_norm.hpp"
#include "evenkeel/taper/ema.hpp"
#include "evenkeel/taper/taper_layer.hpp"

#include <cmath>

namespace evenkeel {

/// Options of FakeLayerNorm.
struct FakeLayerNormOptions {
  double eps = 1e-5;  ///< added to the variance, inside the root, as long as there is one
  Axes axis = {};     ///< the normalized axis or neighbouring axes
  double rate = 0.1;  ///< the weight of the newest batch in the average of sigma
};

/// A FakeLayerNorm beside its parameters, as plain numbers, to be saved with them and restored.
struct FakeLayerNormState {
  EmaState sigma;
  double average = 0;  ///< sigma_avg, 0 before freeze()
};

inline namespace EVENKEEL_ISA {

/// LayerNorm until freeze(), then a fixed affine map of x - mean. T is the scalar of the parameters.
///
///     ek::FakeLayerNorm<float> norm(width);
///     norm.forward(device, x, y), norm.backward(device, dy, x, dx);   // some batches, whose sigma is averaged
///     norm.freeze();                                                  // one layer after the other
///
/// With CudaStorage the average of sigma lies in the device's memory and forward and backward put their work into the
/// stream, after reserve(). The host waits for the device, and so may not while a stream is captured, in freeze(),
/// sigma(), state(), restore() and linear_map(). Frozen, the average is a number of the host's.
template <class T, class Storage = HostStorage>
class FakeLayerNorm {
  using A = accumulator_t<T>;

 public:
  using Scalar = T;
  using Options = FakeLayerNormOptions;

  /// `features` is the length of the normalized axes together. Throws ShapeError if it is below 1, or for an impossible
  /// rate.
  explicit FakeLayerNorm(Index features, const Options& options = {})
      : real(features, {.eps = options.eps, .axis = options.axis}), options_(options), sigma_(options.rate) {}

  /// Makes room for a forward and a backward over x, real or frozen, so that neither allocates.
  template <class Device, class X>
  void reserve(const Device& device, const X& x) {
    real.saved.reserve(device, x, options_.axis);
    saved_.reserve(device, x, options_.axis);
  }

  template <class Device, class X, class Y>
  void forward(const Device& device, const X& x, Y&& y) {
    if (frozen())
      detail::taper_norm<detail::StandardizeTaper>(
          "FakeLayerNorm::forward", device, x, none, none, values(real.weight.value()), values(real.bias.value()), none,
          y, saved_,
          TaperLayerNormOptions{.gate = 0, .factor = 1 / average_, .eps = options_.eps, .axis = options_.axis},
          detail::GateOfNothing());
    else
      real.forward(device, x, y);
    saved_is_fake_ = frozen();
    counts_ = !frozen();
  }

  /// dx is written, the gradients of weight and bias are accumulated. x is the forward's. As long as the norm is real,
  /// the batch enters the average of sigma here.
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device& device, const Dy& dy, const X& x, Dx&& dx, GradientMode mode = GradientMode::accumulate) {
    add_backward(device, dy, none, x, dx, mode);
  }

  /// dx = (gradient through the norm) + dsum, in one pass: for residual blocks. dsum may be ek::none.
  template <class Device, class Dy, class Dsum, class X, class Dx>
  void add_backward(const Device& device, const Dy& dy, const Dsum& dsum, const X& x, Dx&& dx,
                    GradientMode mode = GradientMode::accumulate) {
    if (saved_is_fake_) {
      auto dweight = values(real.weight.gradient()), dbias = values(real.bias.gradient());
      None no_dweight;
      detail::taper_norm_backward<detail::StandardizeTaper>("FakeLayerNorm::backward", "x", device, dy, dsum, x, none,
                                                            values(real.weight.value()), saved_, dx, no_dweight,
                                                            dweight, dbias, mode, detail::GateOfNothing());
      return;
    }
    real.add_backward(device, dy, dsum, x, dx, mode);
    if (!counts_) return;
    sigma_.add(device, detail::ScaleTerms<A>{real.saved.field_values(2)}, real.saved.rows());
    counts_ = false;  // a batch counts once
  }

  /// Calls f(ParameterRef<T>) for weight and bias.
  template <class F>
  void for_each_parameter(F&& f) {
    real.for_each_parameter(f);
  }

  /// From here on sigma is its average. Throws StateError if it is that already, or without a batch to average.
  void freeze() {
    require_real();
    const Ema average = sigma();
    if (average.empty())
      detail::throw_state_error("FakeLayerNorm::freeze",
                                "got no batches, expected 1 or more that went forward and backward, or freeze(sigma)");
    freeze(average.value());
  }
  /// The same with a given sigma.
  void freeze(double sigma) {
    require_real();
    if (!(sigma > 0) || std::isinf(sigma))
      detail::throw_state_error("FakeLayerNorm::freeze", "got sigma ", sigma, ", expected a finite number above 0");
    average_ = sigma;
  }
  bool frozen() const { return average_ > 0; }
  /// sigma_avg, 0 before freeze().
  double average() const { return average_; }
  Ema sigma() const { return sigma_.get()[0]; }
  Index features() const { return real.features(); }
  const Options& options() const { return options_; }

  /// What the frozen layer is, for whoever folds it into the next one. Throws StateError before freeze().
  AffineMap linear_map() const {
    if (!frozen())
      detail::throw_state_error("FakeLayerNorm::linear_map", "got a real LayerNorm, expected one after freeze()");
    AffineMap result;
    result.centred = true;
    for (const T w : real.weight.host_values()) result.scale.push_back(static_cast<double>(w) / average_);
    for (const T b : real.bias.host_values()) result.offset.push_back(static_cast<double>(b));
    return result;
  }

  FakeLayerNormState state() const { return {sigma().state(), average_}; }
  /// Throws StateError for numbers that no run leaves.
  void restore(const FakeLayerNormState& state) {
    if (!(state.average >= 0) || std::isinf(state.average))
      detail::throw_state_error("FakeLayerNorm::restore", "got the average ", state.average,
                                ", expected a finite number of at least 0");
    sigma_.set({state.sigma});
    average_ = state.average;
  }

  LayerNorm<T, Storage> real;  ///< the norm, whose weight and bias stay in use

 private:
  void require_real() const {
    if (frozen())
      detail::throw_state_error("FakeLayerNorm::freeze", "got a layer whose sigma is ", average_,
                                " already, expected one that is not frozen yet");
  }
  auto values(T* data) const { return Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>(data, features()); }

  Options options_;
  detail::RowAverages<1, Storage> sigma_;
  double average_ = 0;
  bool counts_ = false, saved_is_fake_ = false;
  TaperLayerNormSaved<A, Storage> saved_;
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
