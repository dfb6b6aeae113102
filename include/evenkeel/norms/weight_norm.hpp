/// WeightNorm: a weight as a length and a direction. T. Salimans, D. P. Kingma, "Weight Normalization", 2016, equations
/// 2 and 3.
///
///     w = g * v / norm(v),  norm and g for each output unit, or one of both for the whole weight
///     unit = v / norm(v),  dg = sum(dw * unit),  dv = (g / norm(v)) * (dw - unit * dg)
///
/// A zero direction has no unit vector: splitting a weight there is an error; forward and backward take unit = 0, so
/// that w, dv and dg are 0 there.
#pragma once

#include "evenkeel/detail/weight_layer.hpp"
#include "evenkeel/detail/weight_norm_math.hpp"
#include "evenkeel/detail/weight_pass.hpp"
#include "evenkeel/storage.hpp"

#include <concepts>
#include <tuple>
#include <type_traits>
#include <utility>

namespace evenkeel {

/// Options of weight_norm.
struct WeightNormOptions {
  Axes axis = 0;       ///< the axis that keeps a norm for each of its indices; all others are reduced
  bool whole = false;  ///< one norm and one g for the whole weight; axis is ignored
};

/// Norms that weight_norm leaves for weight_norm_backward. A is the accumulator type of v.
template <class A, class Storage = HostStorage>
class WeightNormSaved {
 public:
  using Scalar = A;

  Index units() const { return units_; }
  /// norm(v) of one unit, where the storage is the host's.
  A norm(Index unit) const requires(Storage::on_host) {
    const double* const p = values_.data() + unit;
    return static_cast<A>(p[units_] / p[0]);
  }

  /// Makes room for a forward and a backward over v, so that neither allocates.
  template <class Device, class V>
  void reserve(const Device& device, const V& v, const WeightNormOptions& options = {}) {
    detail::WeightArguments arguments("reserve", options.whole);
    arguments.reference("v", v, options.axis);
    values_.reserve(fields * arguments.units() + detail::unit_room(device, arguments.grid()));
  }

  // What weight_norm and weight_norm_backward keep here.
  static constexpr Index fields = 6;  ///< for each unit, before the scratch
  Index units_ = 0;                   // 0: nothing saved yet
  Index count_ = 0;                   // values per unit
  WeightNormOptions options_;
  bool in_place_ = false;
  // (scale | length | inverse | dw_unit | two that the writing pass reads, units), then scratch
  typename Storage::template Buffer<double> values_;
};

namespace detail::inline EVENKEEL_ISA {

template <class Device, class V, class G, class W, class Saved>
void weight_norm_of(const char* function, const Device& device, const V& v, const G& g, W& w, Saved& saved,
                    const WeightNormOptions& options) {
  WeightArguments arguments(function, options.whole);
  const auto v_rows = arguments.reference("v", v, options.axis);
  const auto lengths = arguments.parameter("g", g);
  const auto out = arguments.output("w", w);
  const RowGrid grid = arguments.grid();
  saved.units_ = arguments.units();
  saved.count_ = arguments.count();
  saved.options_ = options;
  saved.in_place_ = static_cast<const void*>(out.data) == v_rows.data;
  const Index units = saved.units_;
  saved.values_.ensure(Saved::fields * units + unit_room(device, grid));
  double* const values = saved.values_.data();
  double* const written = values + 4 * units;
  double* const scratch = values + Saved::fields * units;
  const double bytes = 2 * arguments.bytes(v_rows) + arguments.bytes(out);
  auto* const g_values = driver_pointer<Device>(lengths);
  using T = scalar_t<const V>;
  const RowPass directions{DirectionMath<T>{}, grid, std::tuple(v_rows), std::tuple(), std::tuple(), none, values};
  const auto write = [&](const auto& between, const auto& math) {
    const double* const known = written;
    unit_passes(device, directions, scratch, between,
                RowPass{math, grid, std::tuple(v_rows), std::tuple(), std::tuple(out), known}, bytes);
  };
  if constexpr (in_float<Device, T, scalar_t<W>>)
    write(FloatWeightNormFactors{values, g_values, written, units}, FloatWeightNormWrite<float>{});
  else
    write(WeightNormFactors{values, g_values, written, units}, WeightNormWrite{});
}

template <class Device, class Dw, class V, class G, class Saved, class Dv, class Dg>
void weight_norm_backward_of(const char* function, const Device& device, const Dw& dw, const V& v, const G& g,
                             Saved& saved, Dv& dv, Dg& dg, GradientMode mode) {
  if (saved.units_ == 0) throw_shape_error(function, "saved is empty, expected the one that the forward filled");
  WeightArguments arguments(function, saved.options_.whole);
  const auto v_rows = arguments.reference("v", v, saved.options_.axis);
  const RowGrid grid = arguments.grid();
  if (saved.units_ != arguments.units() || saved.count_ != arguments.count())
    throw_shape_error(function, "saved holds ", saved.units_, " units of ", saved.count_, " values, ",
                      arguments.shape());
  if (saved.in_place_)
    throw_shape_error(function,
                      "saved comes from an in-place forward, which has overwritten v; expected a forward whose w is "
                      "not its v");
  const auto dw_rows = arguments.input("dw", dw);
  const auto lengths = arguments.parameter("g", g);
  const auto dlengths = arguments.parameter("dg", dg);
  const auto out = arguments.output("dv", dv);
  require_own_gradient(function, "dv", out, "dw", dw_rows, mode);
  double* const values = saved.values_.data();
  double* const dw_unit = values + 3 * saved.units_;
  double* const scratch = values + Saved::fields * saved.units_;
  const double* const direction = values;
  const double bytes = 2 * (arguments.bytes(dw_rows) + arguments.bytes(v_rows)) + arguments.bytes(out);
  const auto inputs = std::tuple(dw_rows, v_rows);
  using T = scalar_t<const V>;
  const RowPass sums{WeightNormGradientSums<T>{}, grid, inputs, std::tuple(), std::tuple(), direction, dw_unit};
  const auto write = [&](const auto& between, const auto& math, const auto& parameters, const double* known) {
    with_gradient_pass(math, grid, inputs, parameters, out, known, mode,
                       [&](const auto& pass) { unit_passes(device, sums, scratch, between, pass, bytes); });
  };
  if constexpr (std::is_same_v<T, double>) {
    write(NothingBetween{}, WeightNormGradientWrite{}, std::tuple(lengths), direction);
  } else {
    double* const written = values + 4 * saved.units_;
    auto* const g_values = driver_pointer<Device>(lengths);
    write(WeightNormTangents{direction, g_values, written, saved.units_}, WeightNormTangentWrite{}, std::tuple(),
          written);
  }
  put_gradients(device, static_cast<const double*>(dw_unit), FeatureParts{1, saved.units_, 1}, saved.units_, mode,
                dlengths);
}

template <class Device, class W, class V, class G>
void weight_norm_split_of(const char* function, const Device& device, const W& w, V& v, G& g,
                          const WeightNormOptions& options) {
  WeightArguments arguments(function, options.whole);
  const auto w_rows = arguments.reference("w", w, options.axis);
  auto* const lengths = arguments.parameter("g", g);
  const auto out = arguments.output("v", v);
  const RowGrid grid = arguments.grid();
  const Index units = arguments.units();
  auto buffer = scratch_of(device, 3 * units + unit_room(device, grid));
  double* const values = buffer.data();  // (scale | length | inverse, units)
  unit_sums(
      device,
      RowPass{DirectionMath<scalar_t<const W>>{}, grid, std::tuple(w_rows), std::tuple(), std::tuple(), none, values},
      values + 3 * units, arguments.bytes(w_rows));
  HostBuffer<double> copy;
  const double* const on_host = host_values(device, values, 2 * units, copy);
  for (Index unit = 0; unit < units; ++unit)
    if (on_host[units + unit] == 0)
      throw_shape_error(function, "w has only zeros at index ", unit, ", expected a direction (", arguments.shape(),
                        ")");
  channel_write(device,
                RowPass{WeightCopy{}, grid, std::tuple(w_rows), std::tuple(none), std::tuple(out), nothing_known},
                arguments.bytes(w_rows) + arguments.bytes(out));
  auto* const g_values = driver_pointer<Device>(lengths);
  for_each_value(
      device, units,
      DirectionLength<std::remove_pointer_t<decltype(driver_pointer<Device>(lengths))>>{values, g_values, units});
}

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// w = g * v / norm(v), one norm for each index of options.axis, over all other axes.
///
/// v, w      any shape, the same for both; w may be v itself, then no backward is possible
/// g         one value for each index of the axis, or one value where options.whole
/// saved     receives the norms
/// Writes w and saved. Throws ShapeError before any work. There is no eps: a norm of any size is divided by, and where
/// v is zero, so is w. Allocates nothing but what saved lacks. Example: tests/norms/weight_norm_test.cpp.
template <class Device, class V, class G, class W, class A, class Storage>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const V>>>
void weight_norm(const Device& device, const V& v, const G& g, W&& w, WeightNormSaved<A, Storage>& saved,
                 const WeightNormOptions& options = {}) {
  detail::weight_norm_of("weight_norm", device, v, g, w, saved, options);
}

/// The gradients of weight_norm.
///
/// dw, v, dv   the shape of the forward's v
/// g, dg       the shape of the forward's g; dg may be ek::none
/// saved       filled by the forward
/// Both dv and dg are gradients of parameters: accumulated, or overwritten as `mode` says; only then may dv be dw
/// itself. Zero where v is zero. Throws ShapeError before any work, also where saved does not belong to v.
template <class Device, class Dw, class V, class G, class A, class Storage, class Dv, class Dg>
  requires std::same_as<A, accumulator_t<detail::scalar_t<const V>>>
void weight_norm_backward(const Device& device, const Dw& dw, const V& v, const G& g,
                          WeightNormSaved<A, Storage>& saved, Dv&& dv, Dg&& dg,
                          GradientMode mode = GradientMode::accumulate) {
  detail::weight_norm_backward_of("weight_norm_backward", device, dw, v, g, saved, dv, dg, mode);
}

/// The first split of a weight: v = w and g = norm(w), of which weight_norm makes w again.
///
/// w, v   any shape, the same for both; v may be w itself
/// g      as in weight_norm
/// Writes v and g. Throws ShapeError before any of that where shapes are wrong or w is zero in all of one unit, which
/// it names. Allocates three numbers per unit, and on a CUDA device waits for it: it is for setting up, not for each
/// step.
template <class Device, class W, class V, class G>
void weight_norm_split(const Device& device, const W& w, V&& v, G&& g, const WeightNormOptions& options = {}) {
  detail::weight_norm_split_of("weight_norm_split", device, w, v, g, options);
}

/// WeightNorm with its parameters, g named original0 and v named original1 as by torch's parametrization. T is their
/// scalar; the weight that is made of them may have another.
///
///     ek::WeightNorm<float> norm(initial);                          // initial is split
///     norm.materialize(device, w);                                  // before the layer that uses w runs
///     norm.backward(device, dw);                                    // after its backward
template <class T, class Storage = HostStorage>
class WeightNorm {
 public:
  using Scalar = T;

  /// initial lies in the host's memory. Throws ShapeError where a unit of it is zero.
  template <detail::WeightTensor W>
  explicit WeightNorm(const W& initial, const WeightNormOptions& options = {})
      : direction_("WeightNorm", "original1", initial, options.whole ? Axes(0) : options.axis),
        length_("original0", options.whole ? 1 : direction_.units(), false),
        options_(options) {
    detail::set_on_host<Storage>(length_.value(), length_.size(), [&](T* lengths) {
      direction_.set_on_host([&](auto v) {
        auto g = detail::map_of(lengths, length_.size());
        detail::weight_norm_split_of("WeightNorm", serial, direction_.like("WeightNorm", "weight", initial), v, g,
                                     options);
      });
    });
  }

  /// Makes room in saved, so that neither materialize nor backward allocates; on a CUDA device they must not.
  template <class Device>
  void reserve(const Device& device) {
    saved.reserve(device, std::as_const(direction_).values(), options_);
  }

  /// w = g * v / norm(v). w has the shape of the initial weight.
  template <class Device, class W>
  void materialize(const Device& device, W&& w) {
    auto out = direction_.like("WeightNorm::materialize", "w", w);
    const auto v = std::as_const(direction_).values();
    detail::weight_norm_of("WeightNorm::materialize", device, v,
                           detail::map_of(std::as_const(length_).value(), length_.size()), out, saved, options_);
  }
  /// The last materialize: w is a plain weight from then on, and the layer can be dropped.
  template <class Device, class W>
  void fold(const Device& device, W&& w) {
    materialize(device, w);
  }

  /// The gradients of g and v are accumulated. Once or more after each materialize.
  template <class Device, class Dw>
  void backward(const Device& device, const Dw& dw, GradientMode mode = GradientMode::accumulate) {
    const auto v = std::as_const(direction_).values();
    auto dv = direction_.gradients();
    auto dg = detail::map_of(length_.gradient(), length_.size());
    detail::weight_norm_backward_of("WeightNorm::backward", device, direction_.like("WeightNorm::backward", "dw", dw),
                                    v, detail::map_of(std::as_const(length_).value(), length_.size()), saved, dv, dg,
                                    mode);
  }

  /// Calls f(ParameterRef<T>) for g, then for v.
  template <class F>
  void for_each_parameter(F&& f) {
    f(length_.ref());
    f(direction_.parameter.ref());
  }

  Parameter<T, Storage>& g() { return length_; }               // (units), or (1)
  Parameter<T, Storage>& v() { return direction_.parameter; }  // (the initial weight's shape)
  const WeightNormOptions& options() const { return options_; }

  WeightNormSaved<accumulator_t<T>, Storage> saved;

 private:
  detail::StoredWeight<T, Storage> direction_;
  Parameter<T, Storage> length_;
  WeightNormOptions options_;
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
