/// Spectral norm: a weight divided by its largest singular value, which a power iteration estimates. T. Miyato et al.,
/// "Spectral Normalization for Generative Adversarial Networks", 2018, algorithm 1.
///
///     w as a matrix W (rows: the output units, columns: all other axes, in order), u and v kept from call to call
///     once or more: v = W^T u / norm(W^T u),  u = W v / norm(W v)
///     sigma = u^T W v,  w_hat = w / sigma
///     dw = (dw_hat - sum(dw_hat * w_hat) * u v^T) / sigma,  u and v being constants
///
/// Each step updates v and then u, as in the paper; torch's parametrization updates u and then v.
///
/// sigmaReparam: w_hat = gamma * w / sigma with a learned scalar gamma. S. Zhai et al., "Stabilizing Transformer
/// Training by Preventing Attention Entropy Collapse", 2023, equation 2.
///
/// No eps: a weight of any size is divided by its sigma. Where W^T u or W v is zero, v or u stays what it was; where
/// sigma is zero, as for a weight of zeros, w_hat and all gradients are zero.
#pragma once

#include "evenkeel/detail/spectral_math.hpp"
#include "evenkeel/detail/weight_layer.hpp"
#include "evenkeel/detail/weight_pass.hpp"
#include "evenkeel/init/random.hpp"
#include "evenkeel/storage.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>

namespace evenkeel {

/// Options of spectral_norm and sigma_reparam.
struct SpectralNormOptions {
  int power_iterations = 1;  ///< steps of each call, in training; 0 takes u and v as they are, for inference
  Axes axis = 0;             ///< the axis of the output units, the rows of the matrix
};

/// What the forward leaves for the backward: sigma and the vectors it was taken with. A is the accumulator type of w.
template <class A, class Storage = HostStorage>
class SpectralNormSaved {
 public:
  using Scalar = A;

  A sigma() const { return static_cast<A>(sigma_); }

  /// Makes room for a forward and a backward over w, so that neither allocates.
  template <class Device, class W>
  void reserve(const Device&, const W& w, const SpectralNormOptions& options = {}) {
    detail::WeightArguments arguments("reserve");
    arguments.reference("w", w, options.axis);
    values_.reserve(3 * arguments.units() + 2 * arguments.count());
  }

  // What forward and backward keep here.
  double divisor() const { return sigma_ == 0 ? std::numeric_limits<double>::infinity() : sigma_; }
  Index rows_ = 0;  // 0: nothing saved yet
  Index columns_ = 0;
  Axes axis_;
  bool in_place_ = false;
  double sigma_ = 0;
  typename Storage::template Buffer<double> values_;  // u, W v, pull (rows), v, W^T u (columns)
};

namespace detail::inline EVENKEEL_ISA {

/// to = from / norm(from); where from is zero, to stays what it was.
inline void normalize(const double* from, double* to, Index count) {
  double largest = 0;
  for (Index i = 0; i < count; ++i) largest = std::max(largest, std::abs(from[i]));
  if (largest == 0) return;
  double squares = 0;
  for (Index i = 0; i < count; ++i) squares += (from[i] / largest) * (from[i] / largest);
  const double length = std::sqrt(squares);
  for (Index i = 0; i < count; ++i) to[i] = from[i] / largest / length;
}

/// v, one value for each column of the matrix, as if it were as large as w.
inline Rows<const double> repeat_columns(const RowGrid& grid, const double* v) {
  return {v, {grid.extent[1] * grid.extent[2], grid.extent[2], 1}, 0};
}

/// to = W v, one value for each row.
template <class Device, class T>
void multiply(const Device& device, const RowGrid& grid, const Rows<T>& w, const double* v, double* to, double bytes) {
  channel_sums(
      device,
      RowPass{ProductMath{}, grid, std::tuple(w, repeat_columns(grid, v)), std::tuple(), std::tuple(), none, to},
      bytes);
}

/// to = W^T u, one value for each column. Columns are the channels then; where they lie along more than one
/// axis of the view, one pass for each index of the outer ones.
template <class Device, class T>
void multiply_transposed(const Device& device, const RowGrid& grid, const Rows<T>& w, const double* u, double* to,
                         double bytes) {
  const std::size_t axis = grid.extent[2] > 1 ? 2 : grid.extent[1] > 1 ? 1 : 0;
  const Index length = grid.extent[axis], first = axis > 0 ? grid.extent[0] : 1, second = axis > 1 ? grid.extent[1] : 1;
  const RowGrid turned{{1, 1, grid.length}, length};
  const Rows<const double> rows{u, {0, 0, 1}, 0};
  for (Index i = 0; i < first; ++i)
    for (Index j = 0; j < second; ++j) {
      T* const data = w.data + (axis > 0 ? i * w.stride[0] : 0) + (axis > 1 ? j * w.stride[1] : 0);
      const Rows<T> columns{data, {0, 0, w.length_stride}, w.stride[axis]};
      channel_sums(device,
                   RowPass{ProductMath{}, turned, std::tuple(columns, rows), std::tuple(), std::tuple(), none,
                           to + (i * second + j) * length},
                   bytes / static_cast<double>(first * second));
    }
}

/// Takes `iterations` steps from u and v, writes them back, and leaves sigma and both vectors in saved.
template <class Device, class T, class U, class V, class Saved>
void estimate_sigma(const Device& device, const RowGrid& grid, const Rows<T>& w, U* u, V* v, Saved& saved,
                    int iterations, double bytes) {
  const Index rows = grid.length, columns = grid.rows();
  saved.values_.reserve(3 * rows + 2 * columns);
  double* const left = saved.values_.data();
  double* const product = left + rows;
  double* const right = left + 3 * rows;
  double* const product_transposed = right + columns;
  for (Index i = 0; i < rows; ++i) left[i] = static_cast<double>(u[i]);
  for (Index i = 0; i < columns; ++i) right[i] = static_cast<double>(v[i]);
  for (int step = 0; step < iterations; ++step) {
    multiply_transposed(device, grid, w, left, product_transposed, bytes);
    normalize(product_transposed, right, columns);
    multiply(device, grid, w, right, product, bytes);
    normalize(product, left, rows);
  }
  if (iterations == 0) multiply(device, grid, w, right, product, bytes);
  double sigma = 0;
  for (Index i = 0; i < rows; ++i) sigma += left[i] * product[i];
  saved.sigma_ = sigma;
  if (iterations == 0) return;
  for (Index i = 0; i < rows; ++i) u[i] = static_cast<U>(left[i]);
  for (Index i = 0; i < columns; ++i) v[i] = static_cast<V>(right[i]);
}

inline constexpr const char* one_gamma = "scale for all of it";

template <class Device, class W, class G, class U, class V, class What, class Saved>
void spectral_norm_of(const char* function, const Device& device, const W& w, const G& gamma, U& u, V& v, What& w_hat,
                      Saved& saved, const SpectralNormOptions& options) {
  WeightArguments arguments(function);
  const auto rows = arguments.reference("w", w, options.axis);
  if (options.power_iterations < 0)
    throw_shape_error(function, "power_iterations is ", options.power_iterations, ", expected at least 0");
  double gain = 1;
  if constexpr (!is_none_v<G>) gain = static_cast<double>(*arguments.values("gamma", gamma, 1, one_gamma));
  auto* const left = arguments.values("u", u, arguments.units(), "rows");
  auto* const right = arguments.values("v", v, arguments.count(), "columns");
  const auto out = arguments.output("w_hat", w_hat);
  saved.rows_ = arguments.units();
  saved.columns_ = arguments.count();
  saved.axis_ = options.axis;
  saved.in_place_ = static_cast<const void*>(out.data) == rows.data;
  const double bytes = arguments.bytes(rows);
  estimate_sigma(device, arguments.grid(), rows, left, right, saved, options.power_iterations, bytes);
  channel_write(device,
                RowPass{SpectralWrite{saved.divisor(), gain}, arguments.grid(), std::tuple(rows), std::tuple(none),
                        std::tuple(out), nothing_known},
                bytes + arguments.bytes(out));
}

template <class Device, class DwHat, class W, class G, class Saved, class Dw, class Dgamma>
void spectral_norm_backward_of(const char* function, const Device& device, const DwHat& dw_hat, const W& w,
                               const G& gamma, Saved& saved, Dw& dw, Dgamma& dgamma, GradientMode mode) {
  static_assert(!is_none_v<G> || is_none_v<Dgamma>, "evenkeel: there is no gamma that dgamma could belong to");
  if (saved.rows_ == 0) throw_shape_error(function, "saved is empty, expected the one that the forward filled");
  WeightArguments arguments(function);
  const auto rows = arguments.reference("w", w, saved.axis_);
  const RowGrid grid = arguments.grid();
  if (saved.rows_ != arguments.units() || saved.columns_ != arguments.count())
    throw_shape_error(function, "saved holds ", saved.rows_, " rows of ", saved.columns_, " columns, ",
                      arguments.shape());
  if (saved.in_place_)
    throw_shape_error(function,
                      "saved comes from an in-place forward, which has overwritten w; expected a forward whose w_hat "
                      "is not its w");
  const auto dw_hat_rows = arguments.input("dw_hat", dw_hat);
  double gain = 1;
  if constexpr (!is_none_v<G>) gain = static_cast<double>(*arguments.values("gamma", gamma, 1, one_gamma));
  const auto dgain = [&] {
    if constexpr (is_none_v<Dgamma>)
      return none;
    else
      return arguments.values("dgamma", dgamma, 1, one_gamma);
  }();
  const auto out = arguments.output("dw", dw);
  require_own_gradient(function, "dw", out, "dw_hat", dw_hat_rows, mode);
  double* const left = saved.values_.data();
  double* const pull = left + 2 * saved.rows_;
  const double* const right = left + 3 * saved.rows_;
  const double bytes = arguments.bytes(dw_hat_rows) + arguments.bytes(rows);
  channel_sums(device,
               RowPass{SpectralGradientSums{saved.divisor()}, grid, std::tuple(dw_hat_rows, rows), std::tuple(),
                       std::tuple(), none, pull},
               bytes);
  double total = 0;
  for (Index i = 0; i < saved.rows_; ++i) total += pull[i];
  for (Index i = 0; i < saved.rows_; ++i) pull[i] = total * left[i];
  const double* const known = pull;
  write_gradient(device, SpectralGradientWrite{saved.divisor(), gain}, grid,
                 std::tuple(dw_hat_rows, repeat_columns(grid, right)), std::tuple(none), out, known,
                 bytes + arguments.bytes(out), mode);
  put_gradient(dgain, &total, 1, mode);
}

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// w_hat = w / sigma(w), after options.power_iterations steps of the power iteration.
///
/// w, w_hat   any shape, the same for both; w_hat may be w itself, then no backward is possible
/// u          one value for each row of the matrix, that is for each index of options.axis
/// v          one value for each column: the other axes, counted as AxisView counts its rows; for axis 0 of a row-major
///            weight that is torch's order
/// saved      receives sigma and the vectors it was taken with
/// Reads u and v, and writes them where there are steps; they start as anything but zero, see SpectralNorm. Writes
/// w_hat and saved. Throws ShapeError before any work. Allocates nothing but what saved lacks. Example:
/// tests/norms/spectral_norm_test.cpp.
template <class Device, class W, class U, class V, class What, class A, class Storage>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const W>>>
void spectral_norm(const Device& device, const W& w, U&& u, V&& v, What&& w_hat, SpectralNormSaved<A, Storage>& saved,
                   const SpectralNormOptions& options = {}) {
  detail::spectral_norm_of("spectral_norm", device, w, none, u, v, w_hat, saved, options);
}

/// The gradient of spectral_norm, with u and v as constants.
///
/// dw_hat, w, dw   the shape of the forward's w
/// saved           filled by the forward
/// dw is the gradient of a parameter: accumulated, or overwritten as `mode` says; only then may it be dw_hat itself.
/// Throws ShapeError before any work, also where saved does not belong to w.
template <class Device, class DwHat, class W, class A, class Storage, class Dw>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const W>>>
void spectral_norm_backward(const Device& device, const DwHat& dw_hat, const W& w, SpectralNormSaved<A, Storage>& saved,
                            Dw&& dw, GradientMode mode = GradientMode::accumulate) {
  detail::spectral_norm_backward_of("spectral_norm_backward", device, dw_hat, w, none, saved, dw, none, mode);
}

/// w_hat = gamma * w / sigma(w). gamma has one value; all else is as in spectral_norm.
template <class Device, class W, class G, class U, class V, class What, class A, class Storage>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const W>>>
void sigma_reparam(const Device& device, const W& w, const G& gamma, U&& u, V&& v, What&& w_hat,
                   SpectralNormSaved<A, Storage>& saved, const SpectralNormOptions& options = {}) {
  detail::spectral_norm_of("sigma_reparam", device, w, gamma, u, v, w_hat, saved, options);
}

/// The gradients of sigma_reparam: dgamma = sum(dw_hat * w / sigma). gamma is the forward's, dgamma has one value or is
/// ek::none; all else is as in spectral_norm_backward, with dw and dgamma both gradients of parameters.
template <class Device, class DwHat, class W, class G, class A, class Storage, class Dw, class Dgamma>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const W>>>
void sigma_reparam_backward(const Device& device, const DwHat& dw_hat, const W& w, const G& gamma,
                            SpectralNormSaved<A, Storage>& saved, Dw&& dw, Dgamma&& dgamma,
                            GradientMode mode = GradientMode::accumulate) {
  detail::spectral_norm_backward_of("sigma_reparam_backward", device, dw_hat, w, gamma, saved, dw, dgamma, mode);
}

/// What SpectralNorm and SigmaReparam are: a weight, the two vectors of its power iteration and, HasGamma, a scale that
/// starts at 1. T is the scalar of the parameters; the weight that is made of them may have another.
template <class T, bool HasGamma, class Storage = HostStorage>
class SpectralNormLayer {
 public:
  using Scalar = T;
  using A = accumulator_t<T>;

  /// The vectors start from normal numbers, a function of the seed, and 15 steps with the initial weight, as torch's
  /// do.
  template <detail::WeightTensor W>
  explicit SpectralNormLayer(const W& initial, const SpectralNormOptions& options = {}, std::uint64_t seed = 0)
      : weight_(name(), "original", initial, options.axis), options_(options) {
    weight_.assign(name(), serial, initial);
    u_.reserve(weight_.units());
    v_.reserve(weight_.count());
    RandomStream(seed, "u").fill_normal(u_.data(), weight_.units());
    RandomStream(seed, "v").fill_normal(v_.data(), weight_.count());
    if constexpr (HasGamma) gamma_.fill(T(1));
    detail::WeightArguments arguments(name());
    const auto rows = arguments.reference("weight", std::as_const(weight_).values(), options.axis);
    detail::estimate_sigma(serial, arguments.grid(), rows, u_.data(), v_.data(), saved, 15, 0);
  }

  /// Takes the options' steps and makes w_hat, which has the shape of the initial weight.
  template <class Device, class What>
  void materialize(const Device& device, What&& w_hat) {
    write(HasGamma ? "SigmaReparam::materialize" : "SpectralNorm::materialize", device, w_hat,
          options_.power_iterations);
  }
  /// Makes w_hat with the vectors as they are: for inference, or for a plain weight after which the layer can be
  /// dropped.
  template <class Device, class What>
  void fold(const Device& device, What&& w_hat) {
    write(HasGamma ? "SigmaReparam::fold" : "SpectralNorm::fold", device, w_hat, 0);
  }

  /// The gradients of the weight and of gamma are accumulated. Once or more after each materialize.
  template <class Device, class DwHat>
  void backward(const Device& device, const DwHat& dw_hat, GradientMode mode = GradientMode::accumulate) {
    const char* const function = HasGamma ? "SigmaReparam::backward" : "SpectralNorm::backward";
    auto dw = weight_.gradients();
    const auto dy = weight_.like(function, "dw_hat", dw_hat);
    const auto w = std::as_const(weight_).values();
    if constexpr (HasGamma) {
      auto dgamma = detail::map_of(gamma_.gradient(), 1);
      detail::spectral_norm_backward_of(function, device, dy, w, detail::map_of(gamma_.value(), 1), saved, dw, dgamma,
                                        mode);
    } else {
      detail::spectral_norm_backward_of(function, device, dy, w, none, saved, dw, none, mode);
    }
  }

  /// Calls f(ParameterRef<T>) for gamma, if there is one, then for the weight.
  template <class F>
  void for_each_parameter(F&& f) {
    if constexpr (HasGamma) f(gamma_.ref());
    f(weight_.parameter.ref());
  }

  Parameter<T, Storage>& weight() { return weight_.parameter; }  // (the initial weight's shape)
  Parameter<T, Storage>& gamma() requires HasGamma { return gamma_; }
  auto u() { return detail::map_of(u_.data(), weight_.units()); }  // (rows), to be kept in a checkpoint as v is
  auto v() { return detail::map_of(v_.data(), weight_.count()); }  // (columns)
  const SpectralNormOptions& options() const { return options_; }

  SpectralNormSaved<A, Storage> saved;

 private:
  static constexpr const char* name() { return HasGamma ? "SigmaReparam" : "SpectralNorm"; }

  template <class Device, class What>
  void write(const char* function, const Device& device, What& w_hat, int iterations) {
    auto out = weight_.like(function, "w_hat", w_hat);
    auto left = u();
    auto right = v();
    const SpectralNormOptions now{.power_iterations = iterations, .axis = options_.axis};
    const auto w = std::as_const(weight_).values();
    if constexpr (HasGamma)
      detail::spectral_norm_of(function, device, w, detail::map_of(gamma_.value(), 1), left, right, out, saved, now);
    else
      detail::spectral_norm_of(function, device, w, none, left, right, out, saved, now);
  }

  detail::StoredWeight<T, Storage> weight_;
  Parameter<T, Storage> gamma_{"gamma", HasGamma ? 1 : 0, false};
  typename Storage::template Buffer<A> u_, v_;
  SpectralNormOptions options_;
};

/// A weight divided by its largest singular value. The parameter is named original as by torch's parametrization.
///
///     ek::SpectralNorm<float> norm(initial);
///     norm.materialize(device, w_hat);                              // before the layer that uses w_hat runs
///     norm.backward(device, dw_hat);                                // after its backward
template <class T, class Storage = HostStorage>
using SpectralNorm = SpectralNormLayer<T, false, Storage>;

/// A weight divided by its largest singular value, times a learned scalar gamma.
///
///     ek::SigmaReparam<float> reparam(initial);
template <class T, class Storage = HostStorage>
using SigmaReparam = SpectralNormLayer<T, true, Storage>;

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
