/// TaperNorm from its arguments to a pass over rows: which math a gate names.
#pragma once

#include "evenkeel/detail/calibrate_math.hpp"
#include "evenkeel/detail/taper_gate_math.hpp"
#include "evenkeel/detail/taper_math.hpp"
#include "evenkeel/norms/layer_norm.hpp"
#include "evenkeel/norms/rms_norm.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <type_traits>

namespace evenkeel::detail {

/// What the two variants of TaperNorm are made of.
struct RmsTaper {
  static constexpr bool centres = false;
  using Norm = Rms;
  template <class Forward>
  using Calibration = RmsCalibration<Forward>;
  template <class A>
  static LinearForward<A> ungated(Index, A scale) {
    return {{scale}};
  }
  template <class A, class Terms>
  static LinearBackward<A, Terms> ungated_backward(Index, A scale) {
    return {scale};
  }
};
struct StandardizeTaper {
  static constexpr bool centres = true;
  using Norm = Standardize;
  template <class Forward>
  using Calibration = StandardizeCalibration<Forward>;
  template <class A>
  static CentredForward<A> ungated(Index length, A scale) {
    return {static_cast<A>(length), 2 * scale};
  }
  template <class A, class Terms>
  static CentredBackward<A, Terms> ungated_backward(Index length, A scale) {
    return {A(1) / static_cast<A>(length), scale};
  }
};

/// What saved knows of a TaperNorm beside its rows.
struct TaperCall {
  double gate = 1, factor = 0, eps = 0;
  bool has_scale_weight = false;
  bool calibrated = false;
};

inline namespace EVENKEEL_ISA {

/// The weight as the plain norm hands it to the device's driver, so that both share their code.
template <class Device, class A, class W>
auto norm_weight(const W& weight) {
  if constexpr (!is_none_v<W> && offsets_at_run_time<Device>)
    return OffsetParameter<std::remove_pointer_t<W>, A>{weight, A(0)};
  else
    return weight;
}

/// Overwrites a gradient that a pass has no part in with 0.
template <class Device, class A, class G>
void put_zeros(const Device& device, const A* scratch, Index length, GradientMode mode, G gradient) {
  if constexpr (!is_none_v<G>) {
    if (mode == GradientMode::accumulate) return;
    if constexpr (StreamDevice<Device>)
      put_gradients(device, scratch, FeatureParts{0, length, 1}, length, mode, gradient);
    else
      std::fill_n(gradient, length, std::remove_pointer_t<G>(0));
  }
}

/// put_gradients of a pass that ran in a range of the gate, and put_zeros of what the range leaves nothing of.
template <GateRange, class Device, class Gate, class A, class Zero, class... G>
  requires(!Gate::in_memory)
void put_range_gradients(const Device& device, const Gate&, const A* scratch, const FeatureParts& parts, Index length,
                         GradientMode mode, Zero zero, G... gradients) {
  put_gradients(device, scratch, parts, length, mode, gradients...);
  put_zeros(device, scratch, length, mode, zero);
}

template <class Options, class Saved>
void check_taper_options(const char* function, const Options& options, const Saved&) {
  if (!(options.gate >= 0 && options.gate <= 1))
    throw_shape_error(function, "gate is ", options.gate, ", expected a number from 0 to 1");
  if (!std::isfinite(options.factor))
    throw_shape_error(function, "factor is ", options.factor, ", expected a finite number");
  if (!options.calibrate) return;
  if (options.gate < 1)
    throw_shape_error(function, "calibrate is set and the gate is ", options.gate, ", expected gate 1");
  if (is_none_v<Saved>)
    throw_shape_error(function, "calibrate is set and saved is none, expected a saved for what it leaves");
}

/// Forward of the variant that Taper names, of x or of sum = x + residual, where residual may be Scaled. With a residual
/// and no sum the residual is added to what comes of x.
template <class Taper, class Device, class X, class Residual, class Weight, class ScaleWeight, class Bias, class Sum,
          class Y, class Saved, class Options, class GateOf = GateOfHost>
void taper_norm(const char* function, const Device& device, const X& x, const Residual& residual, const Weight& weight,
                const ScaleWeight& scale_weight, const Bias& bias, Sum& sum, Y& y, Saved& saved, const Options& options,
                const GateOf& gate_of = {}) {
  require_device<Device>();
  using T = scalar_t<const X>;
  using A = accumulator_t<T>;
  check_taper_options(function, options, saved);
  RowArguments arguments(function);
  const auto rows = arguments.reference("x", x, options.axis);
  const auto added = arguments.input("residual", tensor_of(residual));
  const auto w = arguments.parameter("weight", weight);
  const auto c = arguments.parameter("scale_weight", scale_weight);
  const auto b = arguments.parameter("bias", bias);
  const A eps = resolved_eps<A>(function, options.eps);
  const RowGrid grid = arguments.grid();
  const auto outputs = [&] {
    if constexpr (is_none_v<Sum>) {
      return std::tuple(arguments.output("y", y));
    } else {
      const auto total = arguments.output("sum", sum);
      return std::tuple(total, arguments.output("y", y));
    }
  }();
  const auto inputs = [&] {
    if constexpr (is_none_v<Residual>)
      return std::tuple(rows);
    else
      return std::tuple(rows, added);
  }();
  const auto gate = gate_of.template of_call<A>(options.gate, options.factor, true);
  const bool in_place = is_none_v<Sum> && static_cast<const void*>(std::get<0>(outputs).data) == rows.data;
  const auto kept = [&] {
    if constexpr (is_none_v<Saved>) {
      return none;
    } else {
      saved.taper = {options.gate, options.factor, static_cast<double>(eps), !is_none_v<ScaleWeight>,
                     options.calibrate};
      return saved.begin(
          {grid.rows(), grid.length, scalar_name<T>(), options.axis, false, !is_none_v<Weight>, in_place});
    }
  }();
  const auto pass = [&](const auto& math, const auto& parameters, const auto& to) {
    row_pass(device, RowPass{math, grid, inputs, parameters, outputs, none, to});
  };
  const auto added_to = [&](const auto& math) {
    using Math = std::remove_cvref_t<decltype(math)>;
    if constexpr (is_none_v<Residual>)
      return math;
    else if constexpr (is_none_v<Sum>)
      return NormAddMath<Math>{{math}};
    else
      return add_math<driver_scalar_t<Device, scalar_t<Sum>>>(math, factor_of<A>(residual));
  };
  using Norm = typename Taper::Norm::template Forward<A, AffineMath<false, None>>;
  const Norm norm{A(1) / static_cast<A>(grid.length), eps};
  if constexpr (!is_none_v<Saved> && GateOf::calibrates)
    if (options.calibrate)
      return pass(added_to(typename Taper::template Calibration<Norm>{{norm}}), std::tuple(w, b), kept);
  gate.in_ranges([&](auto range) {
    const auto in_turn = [&](const auto& math) { return gate.template in_turn<range()>(added_to(math)); };
    if constexpr (range == GateRange::one)
      pass(in_turn(norm), std::tuple(norm_weight<Device, A>(w), b), kept);
    else if constexpr (range == GateRange::between)
      pass(in_turn(TaperForward<Norm>{{norm}, gate.gate_number(), gate.scale_number()}), std::tuple(w, c, b), kept);
    else if constexpr (Taper::centres)
      pass(in_turn(Taper::template ungated<A>(grid.length, gate.scale_number())), std::tuple(c, b), kept);
    else
      pass(in_turn(Taper::template ungated<A>(grid.length, gate.scale_number())), std::tuple(c, b), none);
  });
}

/// Backward. `x_name` is what the public function calls its x; dsum, the gradient from the later uses of x, may be
/// none.
template <class Taper, class Device, class Dy, class Dsum, class X, class Weight, class ScaleWeight, class Saved,
          class Dx, class Dweight, class Dscale, class Dbias, class GateOf = GateOfHost>
void taper_norm_backward(const char* function, const char* x_name, const Device& device, const Dy& dy, const Dsum& dsum,
                         const X& x, const Weight& weight, const ScaleWeight& scale_weight, Saved& saved, Dx& dx,
                         Dweight& dweight, Dscale& dscale, Dbias& dbias, GradientMode mode,
                         const GateOf& gate_of = {}) {
  require_device<Device>();
  static_assert(!is_none_v<Weight> || is_none_v<Dweight>, "evenkeel: there is no weight that dweight could belong to");
  static_assert(!is_none_v<ScaleWeight> || is_none_v<Dscale>,
                "evenkeel: there is no scale_weight that dscale_weight could belong to");
  using T = scalar_t<const X>;
  using A = accumulator_t<T>;
  static_assert(std::is_same_v<A, typename Saved::Scalar>,
                "evenkeel: saved must be of the accumulator type of the data: double for double, float for the rest");
  constexpr bool has_dw = !is_none_v<Dweight>, has_dc = !is_none_v<Dscale>, has_db = !is_none_v<Dbias>;
  saved.check_filled(function);
  RowArguments arguments(function);
  const auto rows = arguments.reference(x_name, x, saved.call.axis);
  const RowGrid grid = arguments.grid();
  saved.check(function, x_name, grid.rows(), grid.length, scalar_name<T>(), !is_none_v<Weight>);
  if (saved.taper.has_scale_weight != !is_none_v<ScaleWeight>)
    throw_shape_error(function, saved.taper.has_scale_weight ? "scale_weight is none, the forward had one"
                                                             : "there is a scale_weight, the forward had none");
  const auto dy_rows = arguments.input("dy", dy);
  const auto dsum_rows = arguments.input("dsum", dsum);
  const auto w = arguments.parameter("weight", weight);
  const auto c = arguments.parameter("scale_weight", scale_weight);
  const auto dw = arguments.parameter("dweight", dweight);
  const auto dc = arguments.parameter("dscale_weight", dscale);
  const auto db = arguments.parameter("dbias", dbias);
  const auto dx_rows = arguments.output("dx", dx);
  saved.scratch.ensure(feature_scratch<A, has_dw + has_dc + has_db>(device, grid.rows(), grid.length));
  A* const scratch = saved.scratch.data();
  const A* const known = saved.statistics.data();
  const bool alone = Taper::centres && grid.length == 1;  // such a row is its own mean: nothing flows through it
  const auto gate = gate_of.template of_call<A>(saved.taper.gate, saved.taper.factor, !alone);
  using Affine = AffineMath<false, None>;
  const A inv_n = A(1) / static_cast<A>(grid.length);
  gate.in_ranges([&](auto range) {
    const auto pass = [&](const auto& math, const auto& parameters, const auto& of_row) {
      return row_pass(device,
                      RowPass{gate.template in_turn<range()>(math), grid, std::tuple(dy_rows, rows, dsum_rows),
                              parameters, std::tuple(dx_rows), of_row},
                      scratch);
    };
    const auto put = [&](const FeatureParts& sums, const auto& zero, const auto&... gradients) {
      put_range_gradients<range()>(device, gate, scratch, sums, grid.length, mode, zero, gradients...);
    };
    if constexpr (range == GateRange::one) {
      using Norm = typename Taper::Norm::template Backward<A, Affine, ParameterTerms<has_dw, has_db>>;
      put(pass(Norm{inv_n}, std::tuple(norm_weight<Device, A>(w)), known), dc, dw, db);
    } else if constexpr (range == GateRange::between) {
      using Norm = typename Taper::Norm::template Backward<A, Affine, ParameterTerms<false, false>>;
      const TaperBackward<Norm, TaperTerms<has_dw, has_dc, has_db>> math{
          {Norm{inv_n}}, gate.gate_number(), gate.scale_number()};
      put(pass(math, std::tuple(w, c), known), none, dw, dc, db);
    } else {
      using Terms = TaperTerms<false, has_dc, has_db>;
      const auto math = Taper::template ungated_backward<A, Terms>(grid.length, gate.scale_number());
      if constexpr (Taper::centres)
        put(pass(math, std::tuple(c), known), dw, dc, db);
      else
        put(pass(math, std::tuple(c), none), dw, dc, db);
    }
  });
}

/// The checked arguments of the gradients with respect to the gate and the factor.
template <class Dy, class X, class W, class C>
struct GateArguments {
  RowGrid grid;
  Rows<Dy> dy;
  Rows<X> x;
  W weight;  // pointers or None
  C scale_weight;
};
template <class Dy, class X, class Weight, class ScaleWeight, class Saved>
auto gate_arguments(const char* function, const Dy& dy, const X& x, const Weight& weight,
                    const ScaleWeight& scale_weight, const Saved& saved) {
  saved.check_filled(function);
  RowArguments arguments(function);
  const auto rows = arguments.reference("x", x, saved.call.axis);
  const RowGrid grid = arguments.grid();
  saved.check(function, "x", grid.rows(), grid.length, scalar_name<scalar_t<const X>>(), !is_none_v<Weight>);
  const auto dy_rows = arguments.input("dy", dy);
  const auto w = arguments.parameter("weight", weight);
  const auto c = arguments.parameter("scale_weight", scale_weight);
  return GateArguments<std::remove_pointer_t<decltype(dy_rows.data)>, std::remove_pointer_t<decltype(rows.data)>,
                       std::remove_const_t<decltype(w)>, std::remove_const_t<decltype(c)>>{grid, dy_rows, rows, w, c};
}

/// Sums over all elements of dy times the derivative of y by g and by c, in double and without the statistics that the
/// forward left: at gate 0 it left none.
template <bool Centres, class Arguments>
std::array<double, 2> taper_gate_sums(const Arguments& of, const TaperCall& taper) {
  const auto at = [](const auto& p, Index i) {
    if constexpr (is_none_v<decltype(p)>)
      return 1.0;
    else
      return static_cast<double>(p[i]);
  };
  double of_norm = 0, of_scale = 0;
  const auto n = static_cast<double>(of.grid.length);
  for (Index r = 0; r < of.grid.rows(); ++r) {
    const auto value = [&](Index i) { return static_cast<double>(*element_at(of.x, of.grid, r, i)); };
    double mean = 0, square = 0, normed = 0, scaled = 0;
    if constexpr (Centres)
      for (Index i = 0; i < of.grid.length; ++i) mean += value(i) / n;
    for (Index i = 0; i < of.grid.length; ++i) {
      const double h = value(i) - mean, d = static_cast<double>(*element_at(of.dy, of.grid, r, i));
      square += h * h / n;
      normed += d * h * at(of.weight, i);
      scaled += d * h * at(of.scale_weight, i);
    }
    const double root = std::sqrt(square + taper.eps);
    of_norm += root > 0 ? normed / root : 0;
    of_scale += scaled;
  }
  return {of_norm - taper.factor * of_scale, (1 - taper.gate) * of_scale};
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel::detail
