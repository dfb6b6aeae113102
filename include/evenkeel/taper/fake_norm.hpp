/// FakeLN, the older way to a network without LayerNorm: layer by layer, sigma is replaced by its average. L. Baroni et
/// al., "Transformers Don't Need LayerNorm at Inference Time", arXiv 2507.02559. Their auxiliary loss is not part of
/// it.
///
///     y = (x - mean)/sigma_avg * weight + bias
///
/// That is the LayerNorm variant of TaperNorm at gate 0 with the factor 1/sigma_avg and the norm's own weight.
#pragma once

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
template <class T>
class FakeLayerNorm {
  using A = accumulator_t<T>;

 public:
  using Scalar = T;
  using Options = FakeLayerNormOptions;

  /// `features` is the length of the normalized axes together. Throws ShapeError if it is below 1, or for an impossible
  /// rate.
  explicit FakeLayerNorm(Index features, const Options& options = {})
      : real(features, {.eps = options.eps, .axis = options.axis}), options_(options), sigma_(options.rate) {}

  template <class Device, class X, class Y>
  void forward(const Device& device, const X& x, Y&& y) {
    if (frozen())
      taper_layer_norm(device, x, none, values(real.weight.value()), values(real.bias.value()), y, saved_,
                       {.gate = 0, .factor = 1 / average_, .eps = options_.eps, .axis = options_.axis});
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
                                                            dweight, dbias, mode);
      return;
    }
    real.add_backward(device, dy, dsum, x, dx, mode);
    if (!counts_ || real.saved.rows() == 0) return;
    counts_ = false;  // a batch counts once
    double sum = 0;
    for (Index r = 0; r < real.saved.rows(); ++r) {
      const auto rstd = static_cast<double>(real.saved.rstd(r));
      sum += rstd > 0 ? 1 / rstd : 0;
    }
    sigma_.add(sum / static_cast<double>(real.saved.rows()));
  }

  /// Calls f(ParameterRef<T>) for weight and bias.
  template <class F>
  void for_each_parameter(F&& f) {
    real.for_each_parameter(f);
  }

  /// From here on sigma is its average. Throws StateError if it is that already, or without a batch to average.
  void freeze() {
    require_real();
    if (sigma_.empty())
      detail::throw_state_error("FakeLayerNorm::freeze",
                                "got no batches, expected 1 or more that went forward and backward, or freeze(sigma)");
    freeze(sigma_.value());
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
  const Ema& sigma() const { return sigma_; }
  Index features() const { return real.features(); }
  const Options& options() const { return options_; }

  /// What the frozen layer is, for whoever folds it into the next one. Throws StateError before freeze().
  AffineMap linear_map() const {
    if (!frozen())
      detail::throw_state_error("FakeLayerNorm::linear_map", "got a real LayerNorm, expected one after freeze()");
    AffineMap result;
    result.centred = true;
    for (Index i = 0; i < features(); ++i) {
      result.scale.push_back(static_cast<double>(real.weight.value()[i]) / average_);
      result.offset.push_back(static_cast<double>(real.bias.value()[i]));
    }
    return result;
  }

  FakeLayerNormState state() const { return {sigma_.state(), average_}; }
  /// Throws StateError for numbers that no run leaves.
  void restore(const FakeLayerNormState& state) {
    if (!(state.average >= 0) || std::isinf(state.average))
      detail::throw_state_error("FakeLayerNorm::restore", "got the average ", state.average,
                                ", expected a finite number of at least 0");
    sigma_.restore(state.sigma);
    average_ = state.average;
  }

  LayerNorm<T> real;  ///< the norm, whose weight and bias stay in use

 private:
  void require_real() const {
    if (frozen())
      detail::throw_state_error("FakeLayerNorm::freeze", "got a layer whose sigma is ", average_,
                                " already, expected one that is not frozen yet");
  }
  auto values(T* data) const { return Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>(data, features()); }

  Options options_;
  Ema sigma_;
  double average_ = 0;
  bool counts_ = false, saved_is_fake_ = false;
  TaperLayerNormSaved<A> saved_;
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
