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
#include <tuple>
#include <type_traits>
#include <utility>

namespace evenkeel {

/// Options of spectral_norm and sigma_reparam.
struct SpectralNormOptions {
  int power_iterations = 1;  ///< steps of each call, in training; 0 takes u and v as they are, for inference
  Axes axis = 0;             ///< the axis of the output units, the rows of the matrix
};

namespace detail {

/// Where a forward and a backward over `rows` x `columns` keep their numbers.
struct SpectralValues {
  Index rows, columns;
  Index u() const { return 0; }
  Index product() const { return rows; }   // W v
  Index pull() const { return 2 * rows; }  // (pull | sigma | gain, rows), as the write of a gradient knows them
  Index factors() const { return 3 * rows; }
  Index v() const { return 5 * rows; }
  Index product_transposed() const { return 5 * rows + columns; }  // W^T u
  Index sigma() const { return 5 * rows + 2 * columns; }
  Index total() const { return sigma() + 1; }  // sum(dw_hat * w / sigma)
  Index scratch() const { return sigma() + 2; }
};

/// The columns of the matrix for W^T u: channels are the columns along the grid's fastest level that has any, samples
/// those along the level before it. Where there is a third level, one pass for each index of it.
struct TransposedColumns {
  ChannelGrid grid;
  std::size_t channel, sample;  // levels
  Index passes;
};
inline TransposedColumns transposed_columns(const RowGrid& grid) {
  const std::size_t channel = grid.extent[2] > 1   ? 2
                              : grid.extent[1] > 1 ? 1
                                                   : 0,
                    sample = channel > 0 ? channel - 1 : 0;
  return {{channel > 0 ? grid.extent[sample] : 1, grid.extent[channel], {1, 1, 1, grid.length}},
          channel,
          sample,
          channel == 2 ? grid.extent[0] : 1};
}

template <class Device>
Index spectral_room(const Device& device, const RowGrid& grid) {
  return SpectralValues{grid.length, grid.rows()}.scratch() +
         std::max(unit_room(device, grid), unit_room(device, transposed_columns(grid).grid));
}

}  // namespace detail

/// What the forward leaves for the backward: sigma and the vectors it was taken with. A is the accumulator type of w.
template <class A, class Storage = HostStorage>
class SpectralNormSaved {
 public:
  using Scalar = A;

  /// Where the storage is the host's.
  A sigma() const requires(Storage::on_host) {
    return places_.rows == 0 ? A(0) : static_cast<A>(values_.data()[places_.sigma()]);
  }

  /// Makes room for a forward and a backward over w, so that neither allocates.
  template <class Device, class W>
  void reserve(const Device& device, const W& w, const SpectralNormOptions& options = {}) {
    detail::WeightArguments arguments("reserve");
    arguments.reference("w", w, options.axis);
    values_.reserve(detail::spectral_room(device, arguments.grid()));
  }

  // What forward and backward keep here.
  Index rows_ = 0;  // 0: nothing saved yet
  Index columns_ = 0;
  Axes axis_;
  bool in_place_ = false;
  detail::SpectralValues places_{};
  typename Storage::template Buffer<double> values_;  // see SpectralValues
};

namespace detail::inline EVENKEEL_ISA {

/// to = from / norm(from); where from is zero, to stays what it was.
template <class Device>
  requires(!StreamDevice<Device>)
void normalize(const Device&, const double* from, double* to, Index count) {
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
void multiply(const Device& device, const RowGrid& grid, const Rows<T>& w, const double* v, double* to, double* scratch,
              double bytes) {
  unit_sums(device,
            RowPass{ProductMath{}, grid, std::tuple(w, repeat_columns(grid, v)), std::tuple(), std::tuple(), none, to},
            scratch, bytes);
}

/// to = W^T u, one value for each column.
template <class Device, class T>
void multiply_transposed(const Device& device, const RowGrid& grid, const Rows<T>& w, const double* u, double* to,
                         double* scratch, double bytes) {
  const TransposedColumns turned = transposed_columns(grid);
  const Cells<const double> repeated{u, 0, 0, {0, 0, 0, 1}};
  for (Index i = 0; i < turned.passes; ++i) {
    const Cells<T> columns{w.data + i * w.stride[0],
                           turned.channel > 0 ? w.stride[turned.sample] : 0,
                           w.stride[turned.channel],
                           {0, 0, 0, w.length_stride}};
    unit_sums(device,
              ChannelPass{ProductMath{}, turned.grid, std::tuple(columns, repeated), std::tuple(), std::tuple(), none,
                          to + i * turned.grid.cells()},
              scratch, bytes / static_cast<double>(turned.passes));
  }
}

/// Takes `iterations` steps from u and v, writes them back, and leaves sigma and both vectors in saved.
template <class Device, class T, class U, class V, class Saved>
void estimate_sigma(const Device& device, const RowGrid& grid, const Rows<T>& w, U* u, V* v, Saved& saved,
                    int iterations, double bytes) {
  const Index rows = grid.length, columns = grid.rows();
  const SpectralValues places{rows, columns};
  saved.places_ = places;
  double* const values = saved.values_.data();
  double* const left = values + places.u();
  double* const product = values + places.product();
  double* const right = values + places.v();
  double* const product_transposed = values + places.product_transposed();
  double* const scratch = values + places.scratch();
  auto* const u_values = driver_pointer<Device>(u);
  auto* const v_values = driver_pointer<Device>(v);
  using DeviceU = std::remove_pointer_t<decltype(driver_pointer<Device>(u))>;
  using DeviceV = std::remove_pointer_t<decltype(driver_pointer<Device>(v))>;
  for_each_value(device, rows, CopyToDouble<std::remove_const_t<DeviceU>>{u_values, left});
  for_each_value(device, columns, CopyToDouble<std::remove_const_t<DeviceV>>{v_values, right});
  for (int step = 0; step < iterations; ++step) {
    multiply_transposed(device, grid, w, left, product_transposed, scratch, bytes);
    normalize(device, product_transposed, right, columns);
    multiply(device, grid, w, right, product, scratch, bytes);
    normalize(device, product, left, rows);
  }
  if (iterations == 0) multiply(device, grid, w, right, product, scratch, bytes);
  double* const products = values + places.pull();
  for_each_value(device, rows, ProductOfValues{left, product, products});
  put_total(device, static_cast<const double*>(products), rows, GradientMode::overwrite, values + places.sigma());
  if (iterations == 0) return;
  for_each_value(device, rows, CopyFromDouble<DeviceU>{left, u_values});
  for_each_value(device, columns, CopyFromDouble<DeviceV>{right, v_values});
}

/// Sigma and gamma, a pointer or none, for each row.
template <class Device, class G, class Saved>
void set_factors(const Device& device, G gamma, Saved& saved) {
  const SpectralValues places = saved.places_;
  double* const values = saved.values_.data();
  const auto g = driver_pointer<Device>(gamma);
  for_each_value(device, places.rows,
                 SpectralFactors<std::remove_const_t<decltype(g)>>{values + places.sigma(), g,
                                                                   values + places.factors(), places.rows});
}

/// A pointer to gamma or its gradient, or none.
template <class G>
auto one_value(WeightArguments& arguments, const char* name, G& gamma) {
  if constexpr (is_none_v<G>)
    return none;
  else
    return arguments.values(name, gamma, 1, "scale for all of it");
}

template <class Device, class W, class G, class U, class V, class What, class Saved>
void spectral_norm_of(const char* function, const Device& device, const W& w, const G& gamma, U& u, V& v, What& w_hat,
                      Saved& saved, const SpectralNormOptions& options) {
  WeightArguments arguments(function);
  const auto rows = arguments.reference("w", w, options.axis);
  if (options.power_iterations < 0)
    throw_shape_error(function, "power_iterations is ", options.power_iterations, ", expected at least 0");
  const auto gain = one_value(arguments, "gamma", gamma);
  auto* const left = arguments.values("u", u, arguments.units(), "rows");
  auto* const right = arguments.values("v", v, arguments.count(), "columns");
  const auto out = arguments.output("w_hat", w_hat);
  saved.values_.ensure(spectral_room(device, arguments.grid()));
  saved.rows_ = arguments.units();
  saved.columns_ = arguments.count();
  saved.axis_ = options.axis;
  saved.in_place_ = static_cast<const void*>(out.data) == rows.data;
  const double bytes = arguments.bytes(rows);
  estimate_sigma(device, arguments.grid(), rows, left, right, saved, options.power_iterations, bytes);
  set_factors(device, gain, saved);
  const double* const known = saved.values_.data() + saved.places_.factors();
  channel_write(device,
                RowPass{SpectralWrite{}, arguments.grid(), std::tuple(rows), std::tuple(none), std::tuple(out), known},
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
  const auto gain = one_value(arguments, "gamma", gamma);
  const auto dgain = one_value(arguments, "dgamma", dgamma);
  const auto out = arguments.output("dw", dw);
  require_own_gradient(function, "dw", out, "dw_hat", dw_hat_rows, mode);
  saved.values_.ensure(spectral_room(device, grid));
  set_factors(device, gain, saved);
  const SpectralValues places = saved.places_;
  double* const values = saved.values_.data();
  double* const pull = values + places.pull();
  const double* const factors = values + places.factors();
  const double bytes = arguments.bytes(dw_hat_rows) + arguments.bytes(rows);
  unit_sums(
      device,
      RowPass{SpectralGradientSums{}, grid, std::tuple(dw_hat_rows, rows), std::tuple(), std::tuple(), factors, pull},
      values + places.scratch(), bytes);
  const double* const sums = pull;
  put_total(device, sums, places.rows, mode, dgain);
  put_total(device, sums, places.rows, GradientMode::overwrite, values + places.total());
  for_each_value(device, places.rows, SpectralPull{values + places.total(), values + places.u(), pull});
  write_gradient(device, SpectralGradientWrite{}, grid,
                 std::tuple(dw_hat_rows, repeat_columns(grid, values + places.v())), std::tuple(none), out, sums,
                 bytes + arguments.bytes(out), mode);
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

  /// initial lies in the host's memory. The vectors start from normal numbers, a function of the seed, and 15 steps
  /// with the initial weight, as torch's do.
  template <detail::WeightTensor W>
  explicit SpectralNormLayer(const W& initial, const SpectralNormOptions& options = {}, std::uint64_t seed = 0)
      : weight_(name(), "original", initial, options.axis), options_(options) {
    weight_.assign(name(), initial);
    u_.reserve(weight_.units());
    v_.reserve(weight_.count());
    if constexpr (HasGamma) gamma_.fill(T(1));
    detail::set_on_host<Storage>(u_.data(), weight_.units(), [&](A* u) {
      detail::set_on_host<Storage>(v_.data(), weight_.count(), [&](A* v) {
        RandomStream(seed, "u").fill_normal(u, weight_.units());
        RandomStream(seed, "v").fill_normal(v, weight_.count());
        const auto estimate = [&](const auto& w, auto& start) {
          detail::WeightArguments arguments(name());
          const auto rows = arguments.reference("weight", w, options.axis);
          start.values_.reserve(detail::spectral_room(serial, arguments.grid()));
          detail::estimate_sigma(serial, arguments.grid(), rows, u, v, start, 15, 0);
        };
        if constexpr (Storage::on_host) {
          estimate(std::as_const(weight_).values(), saved);
        } else {
          SpectralNormSaved<A> start;
          detail::StoredWeight<T, HostStorage> copy(name(), "original", initial, options.axis);
          copy.assign(name(), initial);
          estimate(std::as_const(copy).values(), start);
        }
      });
    });
  }

  /// Makes room in saved, so that neither materialize nor backward allocates; on a CUDA device they must not.
  template <class Device>
  void reserve(const Device& device) {
    saved.reserve(device, std::as_const(weight_).values(), options_);
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
