/// What LayerNorm and RMSNorm have in common: from checked arguments to a pass over rows, and the layer class.
#pragma once

#include "evenkeel/detail/add_math.hpp"
#include "evenkeel/detail/affine_math.hpp"
#include "evenkeel/detail/arguments.hpp"
#include "evenkeel/detail/masked_math.hpp"
#include "evenkeel/detail/output_math.hpp"
#include "evenkeel/detail/row_pass_cpu.hpp"
#include "evenkeel/detail/scaled_math.hpp"
#include "evenkeel/parameter.hpp"
#include "evenkeel/saved.hpp"

#include <array>
#include <cmath>
#include <tuple>
#include <utility>

namespace evenkeel {

namespace detail {

template <class S, template <class, class> class Saved, class A>
inline constexpr bool is_saved = false;
template <template <class, class> class Saved, class A, class Storage>
inline constexpr bool is_saved<Saved<A, Storage>, Saved, A> = true;

/// A `saved` of the accumulator type of X's scalar, or none.
template <class S, template <class, class> class Saved, class X>
concept SavedOrNone = is_none_v<S> || is_saved<std::remove_cvref_t<S>, Saved, accumulator_t<scalar_t<const X>>>;

/// The rounding order of a backward, which has none of its own: its code need not exist twice.
struct RoundOnce {};

/// Whether the options of a norm have a factor for its output.
template <class Options>
concept ScaledOptions = requires(const Options& options) {
  options.scale;
};

template <class Options>
double scale_of(const Options& options) {
  if constexpr (ScaledOptions<Options>)
    return options.scale;
  else
    return 1;
}

/// The math of norm(x + factor * residual).
template <class T, class Math, class Factor>
AddMath<Math, T, Factor> add_math(const Math& math, Factor factor) {
  return {{math}, factor};
}

/// Calls f(affine, weight) with the AffineMath that the options name, and the weight as the device's driver takes it. The
/// rounding order, a Rounding or RoundOnce, matters only where data, of type T, are rounded at all.
template <class Device, class T, class W, class Order, class F>
void with_affine(const W& weight, bool unit_offset, [[maybe_unused]] Order rounding, const F& f) {
  const auto with_rounding = [&]<bool Offset>(std::bool_constant<Offset>, const auto& driver_weight) {
    if constexpr (is_half_v<T> && std::is_same_v<Order, Rounding>) {
      if (rounding == Rounding::round_normalized)
        return f(AffineMath<Offset, driver_scalar_t<Device, T>>{}, driver_weight);
    }
    f(AffineMath<Offset, None>{}, driver_weight);
  };
  if constexpr (is_none_v<W>) {
    with_rounding(std::false_type{}, weight);
  } else if constexpr (offsets_at_run_time<Device>) {
    using A = accumulator_t<T>;
    with_rounding(std::false_type{}, OffsetParameter<std::remove_pointer_t<W>, A>{weight, A(unit_offset)});
  } else {
    if (unit_offset) return with_rounding(std::true_type{}, weight);
    with_rounding(std::false_type{}, weight);
  }
}

/// A residual that enters the sum times a factor.
template <class Residual>
struct Scaled {
  const Residual& tensor;
  double factor;
};
template <class R>
const R& tensor_of(const R& residual) {
  return residual;
}
template <class R>
const R& tensor_of(const Scaled<R>& residual) {
  return residual.tensor;
}
template <class A, class R>
None factor_of(const R&) {
  return none;
}
template <class A, class R>
A factor_of(const Scaled<R>& residual) {
  return static_cast<A>(residual.factor);
}

inline namespace EVENKEEL_ISA {

/// Before a forward that may overwrite x: the features for which (y - bias) / weight would not give xhat back, and their
/// x.
template <class Device, class Saved, class T, class Feature>
  requires(!StreamDevice<Device>)
void keep_features(const char*, const Device&, Saved& saved, const Rows<T>& x, const RowGrid& grid,
                   const Feature& feature) {
  using A = typename Saved::Scalar;
  Index kept = 0;
  for (Index i = 0; i < grid.length; ++i) kept += feature.lost(i);
  saved.kept_features = kept;
  saved.kept_index.reserve(kept);
  saved.kept_xhat.reserve(kept * grid.rows());
  kept = 0;
  for (Index i = 0; i < grid.length; ++i) {
    if (!feature.lost(i)) continue;
    saved.kept_index.data()[kept] = i;
    for (Index r = 0; r < grid.rows(); ++r)
      saved.kept_xhat.data()[kept * grid.rows() + r] = static_cast<A>(*element_at(x, grid, r, i));
    ++kept;
  }
}
template <class Device, class Saved>
  requires(!StreamDevice<Device>)
void standardize_kept(const Device&, Saved& saved) { saved.standardize_kept(); }

/// Forward of the norm whose math is Norm::Forward, of x, of what a mask leaves of x, or of sum = x + residual, where
/// residual may be Scaled. With a residual and no sum the residual is added to the norm of x.
template <class Norm, class Device, class X, class Residual, class Mask, class Weight, class Bias, class Sum, class Y,
          class Saved, class Options>
void row_norm(const char* function, const Device& device, const X& x, const Residual& residual, const Mask& mask,
              const Weight& weight, const Bias& bias, Sum& sum, Y& y, Saved& saved, const Options& options) {
  require_device<Device>();
  using T = scalar_t<const X>;
  using A = accumulator_t<T>;
  RowArguments arguments(function);
  const auto rows = arguments.reference("x", x, options.axis);
  const auto added = arguments.input("residual", tensor_of(residual));
  const auto set = arguments.row_mask("mask", mask);
  const auto w = arguments.parameter("weight", weight);
  const auto b = arguments.parameter("bias", bias);
  const A eps = resolved_eps<A>(function, options.eps);
  const RowGrid grid = arguments.grid();
  constexpr bool plain = is_none_v<Sum> && is_none_v<Residual>;
  constexpr bool has_option = plain && !is_none_v<Saved> && requires { options.backward_from_output; };
  const bool for_output = [&] {
    if constexpr (has_option)
      return options.backward_from_output;
    else
      return false;
  }();
  const auto run = [&](const auto& outputs) {
    const auto out = std::get<0>(outputs);
    if constexpr (has_option)
      if (for_output)
        keep_features(function, device, saved, rows, grid,
                      OutputFeature<A, std::remove_const_t<decltype(w)>, std::remove_const_t<decltype(b)>>{
                          w, b, A(options.unit_offset)});
    const auto kept = [&] {
      if constexpr (is_none_v<Saved>)
        return none;
      else
        return saved.begin({grid.rows(), grid.length, scalar_name<T>(), options.axis, options.unit_offset,
                            !is_none_v<Weight>, is_none_v<Sum> && static_cast<const void*>(out.data) == rows.data,
                            !is_none_v<Bias>, for_output, scale_of(options)});
    }();
    with_affine<Device, T>(w, options.unit_offset, options.rounding, [&](auto affine, const auto& weights) {
      const typename Norm::template Forward<A, decltype(affine)> unscaled{A(1) / static_cast<A>(grid.length), eps};
      const auto math = [&] {
        if constexpr (ScaledOptions<Options>)
          return ScaledForward<std::remove_const_t<decltype(unscaled)>>{{unscaled}, static_cast<A>(options.scale)};
        else
          return unscaled;
      }();
      const auto pass = [&](const auto& of_call, const auto&... inputs) {
        row_pass(device,
                 RowPass{of_call, grid, std::tuple(rows, inputs...), std::tuple(weights, b), outputs, none, kept});
      };
      using Math = std::remove_const_t<decltype(math)>;
      if constexpr (!is_none_v<Mask>)
        pass(MaskedForward<Math>{{{math}}}, set);
      else if constexpr (plain)
        pass(math);
      else if constexpr (is_none_v<Sum>)
        pass(NormAddMath<Math>{{math}}, added);
      else
        pass(add_math<driver_scalar_t<Device, scalar_t<Sum>>>(math, factor_of<A>(residual)), added);
    });
    if constexpr (has_option)
      if (for_output) standardize_kept(device, saved);
  };
  if constexpr (is_none_v<Sum>) {
    run(std::tuple(arguments.output("y", y)));
  } else {
    const auto total = arguments.output("sum", sum);
    run(std::tuple(total, arguments.output("y", y)));
  }
}

/// Backward of the norm whose math is Norm::Backward. `x_name` is what the public function calls its x. IsScaled: its
/// forward had ScaledOptions.
template <class Norm, bool IsScaled = false, class Device, class Dy, class Dsum, class X, class Mask, class Weight,
          class Saved, class Dx, class Dweight, class Dbias>
void row_norm_backward(const char* function, const char* x_name, const Device& device, const Dy& dy, const Dsum& dsum,
                       const X& x, const Mask& mask, const Weight& weight, Saved& saved, Dx& dx, Dweight& dweight,
                       Dbias& dbias, GradientMode mode) {
  require_device<Device>();
  static_assert(!is_none_v<Weight> || is_none_v<Dweight>, "evenkeel: there is no weight that dweight could belong to");
  using T = scalar_t<const X>;
  using A = accumulator_t<T>;
  static_assert(std::is_same_v<A, typename Saved::Scalar>,
                "evenkeel: saved must be of the accumulator type of the data: double for double, float for the rest");
  using Terms = ParameterTerms<!is_none_v<Dweight>, !is_none_v<Dbias>>;
  saved.check_filled(function);
  RowArguments arguments(function);
  const auto rows = arguments.reference(x_name, x, saved.call.axis);
  const RowGrid grid = arguments.grid();
  saved.check(function, x_name, grid.rows(), grid.length, scalar_name<T>(), !is_none_v<Weight>);
  const auto dy_rows = arguments.input("dy", dy);
  const auto dsum_rows = arguments.input("dsum", dsum);
  const auto set = arguments.row_mask("mask", mask);
  const auto w = arguments.parameter("weight", weight);
  const auto dw = arguments.gradient("dweight", dweight);
  const auto db = arguments.gradient("dbias", dbias);
  const auto dx_rows = arguments.output("dx", dx);
  saved.scratch.ensure(feature_scratch<A, Terms::count>(device, grid.rows(), grid.length));
  A* const scratch = saved.scratch.data();
  const A* const known = saved.statistics.data();
  FeatureParts sums{};
  with_affine<Device, T>(w, saved.call.unit_offset, RoundOnce{}, [&](auto affine, const auto& weights) {
    const typename Norm::template Backward<A, decltype(affine), Terms> math{A(1) / static_cast<A>(grid.length)};
    const auto pass = [&](const auto& of_call, const auto& last_input) {
      sums = row_pass(device,
                      RowPass{of_call, grid, std::tuple(dy_rows, rows, last_input), std::tuple(weights),
                              std::tuple(dx_rows), known},
                      scratch, sums_in_place<A>(device, mode, dw, db));
    };
    using Math = std::remove_const_t<decltype(math)>;
    if constexpr (!is_none_v<Mask>)
      pass(MaskedBackward<Math>{{{math}}}, set);
    else if constexpr (IsScaled)
      pass(ScaledBackward<Math>{{math}, static_cast<A>(saved.call.scale)}, dsum_rows);
    else
      pass(math, dsum_rows);
  });
  put_gradients(device, scratch, sums, grid.length, mode, dw, db);
}

}  // namespace EVENKEEL_ISA
}  // namespace detail

inline namespace EVENKEEL_ISA {

/// A row norm with its parameters, their gradients and its saved statistics. T is the scalar of the parameters; the
/// data may have any scalar of the same accumulator type. Traits names the norm: see RmsNorm, LayerNorm.
template <class T, class Traits, class Storage = HostStorage>
class RowNormLayer {
 public:
  using Scalar = T;
  using Options = typename Traits::Options;
  using Saved = typename Traits::template Saved<accumulator_t<T>, Storage>;

  /// `features` is the length of the normalized axes together. Throws ShapeError if it is below 1.
  explicit RowNormLayer(Index features, const Options& options = {}, Affine affine = Traits::affine)
      : weight("weight", checked(features), false),
        bias("bias", affine == Affine::weight_and_bias ? features : 0, false),
        options_(options),
        affine_(affine) {
    weight.fill(T(options.unit_offset ? 0 : 1));
  }

  /// y = norm(x). y may be x, then no backward is possible.
  template <class Device, class X, class Y>
  void forward(const Device& device, const X& x, Y&& y) {
    forward_of(Traits::forward, device, x, none, none, y);
  }

  /// dx is written, the gradients of weight and bias are accumulated. x is the forward's.
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device& device, const Dy& dy, const X& x, Dx&& dx, GradientMode mode = GradientMode::accumulate) {
    backward_of(Traits::backward, "x", device, dy, none, x, dx, mode);
  }

  /// y = residual + norm(x), in one pass. y may be residual, and x, then no backward is possible. The backward is that
  /// of forward; the gradient of the residual is dy.
  template <class Device, class X, class Residual, class Y>
  void forward_add(const Device& device, const X& x, const Residual& residual, Y&& y) {
    forward_of(Traits::forward_add, device, x, residual, none, y);
  }

  /// sum = x + residual, y = norm(sum), in one pass.
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

  /// dx = (gradient through the norm) + dsum: the gradient of the sum, hence of x, and of residual but for its scale.
  /// dsum may be ek::none.
  template <class Device, class Dy, class Dsum, class Sum, class Dx>
  void add_backward(const Device& device, const Dy& dy, const Dsum& dsum, const Sum& sum, Dx&& dx,
                    GradientMode mode = GradientMode::accumulate) {
    backward_of(Traits::add_backward, "sum", device, dy, dsum, sum, dx, mode);
  }

  /// Calls f(ParameterRef<T>) for weight and bias, as far as the layer has them.
  template <class F>
  void for_each_parameter(F&& f) {
    if (affine_ != Affine::off) f(weight.ref());
    if (affine_ == Affine::weight_and_bias) f(bias.ref());
  }

  Index features() const { return weight.size(); }
  const Options& options() const { return options_; }

  Parameter<T, Storage> weight;  // (features)
  Parameter<T, Storage> bias;    // (features), or none
  Saved saved;

 private:
  static Index checked(Index features) {
    if (features < 1)
      detail::throw_shape_error(Traits::forward, "the layer has ", features, " features, expected 1 or more");
    return features;
  }

  /// Without parameters there is nothing else that would notice.
  template <class X>
  void check_features(const char* function, const X& x) const {
    if (affine_ != Affine::off) return;
    detail::RowArguments arguments(function);
    arguments.reference("x", x, options_.axis);
    if (arguments.grid().length != features())
      detail::throw_shape_error(function, "x has ", arguments.grid().length, " features, the layer has ", features(),
                                " (", arguments.shape(), ")");
  }

  using Values = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;

  /// Calls f(weight, bias, dweight, dbias), each a map or none.
  template <class F>
  void with_parameters(const F& f) {
    const auto map = [](T* data, Index size) { return Values(data, size); };
    const Values w = map(weight.value(), weight.size()), dw = map(weight.gradient(), weight.size());
    const Values b = map(bias.value(), bias.size()), db = map(bias.gradient(), bias.size());
    if (affine_ == Affine::off)
      f(none, none, none, none);
    else if (affine_ == Affine::weight)
      f(w, none, dw, none);
    else
      f(w, b, dw, db);
  }

  template <class Device, class X, class Residual, class Sum, class Y>
  void forward_of(const char* function, const Device& device, const X& x, const Residual& residual, Sum& sum, Y& y) {
    check_features(function, x);
    with_parameters([&](const auto& w, const auto& b, const auto&, const auto&) {
      detail::row_norm<typename Traits::Math>(function, device, x, residual, none, w, b, sum, y, saved, options_);
    });
  }
  template <class Device, class Dy, class Dsum, class X, class Dx>
  void backward_of(const char* function, const char* x_name, const Device& device, const Dy& dy, const Dsum& dsum,
                   const X& x, Dx& dx, GradientMode mode) {
    with_parameters([&](const auto& w, const auto&, auto dw, auto db) {
      detail::row_norm_backward<typename Traits::Math, detail::ScaledOptions<Options>>(
          function, x_name, device, dy, dsum, x, none, w, saved, dx, dw, db, mode);
    });
  }

  Options options_;
  Affine affine_;
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
