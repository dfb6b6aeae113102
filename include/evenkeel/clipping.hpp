/// Gradient clipping: adaptive, by the norm of the weight, and global, by the norm of all gradients. Norms are formed in
/// double and in an order that does not depend on threads.
///
///   adaptive   for each output unit: G *= bound / max(norm(G), 1e-6) where norm(G) > bound = clip * max(norm(W), 1e-3)
///   global     all gradients *= limit / norm where norm = sqrt(sum of all squares) > limit
///
/// These functions return what they find, so they run on the CPU; with a ClippingSaved (clipping_saved.hpp) the same run on
/// CUDA devices too.
///
/// Source: A. Brock et al., High-performance large-scale image recognition without normalization, 2021, section 4;
/// R. Pascanu, T. Mikolov, Y. Bengio, On the difficulty of training recurrent neural networks, ICML 2013, algorithm 1.
#pragma once

#include "evenkeel/detail/parallel_cpu.hpp"
#include "evenkeel/detail/weight_math.hpp"
#include "evenkeel/distributed/communicator.hpp"
#include "evenkeel/init/role.hpp"
#include "evenkeel/parameter.hpp"
#include "evenkeel/view.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <ranges>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace evenkeel {

/// Options of adaptive_gradient_clipping.
struct AdaptiveClippingOptions {
  double clip = 0.01;
  double least_weight = 1e-3;    ///< what the norm of a weight counts as at least
  double least_gradient = 1e-6;  ///< the same of a gradient, where it divides
};

/// How many units were clipped, of how many that were looked at.
struct ClippingReport {
  Index clipped = 0;
  Index units = 0;
  double share() const { return units == 0 ? 0 : static_cast<double>(clipped) / static_cast<double>(units); }
};

namespace detail::inline EVENKEEL_ISA {

template <class X>
concept TensorArgument = EigenTensor<std::remove_cvref_t<X>> || EigenDense<std::remove_cvref_t<X>>;

/// The scalar of a tensor, and no member for anything else, so that deduction passes it over.
template <class W, bool = is_tensor_argument<W>>
struct WeightScalar {};
template <class W>
struct WeightScalar<W, true> {
  using type = scalar_t<W>;
};

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// A parameter as clipping sees it: value, gradient, role, and which of its axes counts the output units. T is its scalar.
template <Scalar T>
class ClippedParameter {
 public:
  /// A weight, of which each index of `axes` is a unit; a vector or a number is one unit, whatever `axes` say. Both
  /// tensors have the same shape, any storage order and strides. Throws ShapeError where shapes or axes do not fit, and
  /// where a weight comes without axes. Example, torch's layout: `ek::ClippedParameter(w, dw, ek::Role::query, 0)`.
  template <detail::TensorArgument W, detail::TensorArgument G>
  ClippedParameter(const W& weight, G&& weight_gradient, const RoleOf& of, const Axes& axes = {}) : role(of.role) {
    const char* const function = "ClippedParameter";
    const detail::Layout layout = detail::layout_of(weight), other = detail::layout_of(weight_gradient);
    if (!detail::same_extents(layout, other))
      detail::throw_shape_error(function, "gradient is ", detail::text(other), ", weight is ", detail::text(layout));
    const T* const values = weight.data();  // of a const Map they may be written
    if (layout.rank < 2) {
      value = whole(values, layout.size(), layout.rank == 0 ? 1 : layout.stride[0]);
      gradient = whole(weight_gradient.data(), layout.size(), layout.rank == 0 ? 1 : other.stride[0]);
      return;
    }
    if (axes.count == 0)
      detail::throw_shape_error(function, "no axis is named, expected that of the output units (weight is ",
                                detail::text(layout), ")");
    const detail::AxisRange range = detail::resolve_axes(function, "weight", layout, axes);
    value = detail::view_as(detail::geometry_along(function, "weight", layout, range), values);
    gradient = detail::view_along(function, "gradient", weight_gradient, range);
  }

  /// Contiguous values that are one unit: vectors, numbers.
  ClippedParameter(const T* values, T* gradients, Index size, const RoleOf& of)
      : value(whole(values, size, 1)), gradient(whole(gradients, size, 1)), role(of.role) {}
  ClippedParameter(const ParameterRef<T>& parameter, const RoleOf& of)
      : ClippedParameter(parameter.value, parameter.gradient, parameter.size, of) {}

  AxisView<const T> value;
  AxisView<T> gradient;
  Role role;

 private:
  template <class U>
  static AxisView<U> whole(U* data, Index size, Index stride) {
    return {.data = data, .length = 1, .inner = size, .inner_stride = stride};
  }
};

template <class W, class G, class... Rest>
ClippedParameter(const W&, G&&, Rest...) -> ClippedParameter<typename detail::WeightScalar<W>::type>;
template <class T>
ClippedParameter(const T*, T*, Index, RoleOf) -> ClippedParameter<T>;
template <class T>
ClippedParameter(T*, T*, Index, RoleOf) -> ClippedParameter<T>;
template <class T>
ClippedParameter(ParameterRef<T>, RoleOf) -> ClippedParameter<T>;
template <class T>
ClippedParameter(ParameterRef<T>, Role) -> ClippedParameter<T>;

}  // namespace EVENKEEL_ISA

namespace detail::inline EVENKEEL_ISA {

/// f(element) for each element of one unit, which is one index of the view's axis.
template <class T, class F>
void for_each_of_unit(const AxisView<T>& view, Index unit, const F& f) {
  for (Index o0 = 0; o0 < view.outer[0]; ++o0)
    for (Index o1 = 0; o1 < view.outer[1]; ++o1) {
      T* const row = view.data + o0 * view.outer_stride[0] + o1 * view.outer_stride[1] + unit * view.stride;
      for (Index k = 0; k < view.inner; ++k) f(row[k * view.inner_stride]);
    }
}

template <class X, template <class> class Item>
inline constexpr bool is_item = false;
template <class T, template <class> class Item>
inline constexpr bool is_item<Item<T>, Item> = true;

/// A list of ClippedParameter or ParameterRef: std::vector, std::array, std::span.
template <class List, template <class> class Item>
concept ListOf = std::ranges::contiguous_range<const List> && is_item<std::ranges::range_value_t<const List>, Item>;

template <class T>
double unit_norm(const AxisView<T>& view, Index unit) {
  const auto squares = [&](double scale) {
    double sum = 0;
    for_each_of_unit(view, unit, [&](const T& value) {
      const double scaled = static_cast<double>(value) * scale;
      sum += scaled * scaled;
    });
    return sum;
  };
  const double plain = squares(1), scale = scale_of_squares(plain);
  return scale == 1 ? std::sqrt(plain) : std::sqrt(squares(scale)) / scale;
}

inline std::string number_text(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

inline void require_clip(const char* function, const char* option, double value) {
  if (!(value > 0 && std::isfinite(value)))
    throw_shape_error(function, option, " is ", number_text(value), ", expected a finite number above 0");
}

inline void require_clipping_options(const char* function, const AdaptiveClippingOptions& options) {
  require_clip(function, "clip", options.clip);
  require_clip(function, "least_weight", options.least_weight);
  require_clip(function, "least_gradient", options.least_gradient);
}

/// The one sentence for results that the host cannot have without waiting.
template <class Device>
constexpr void require_host_results() {
  require_device<Device>();
  static_assert(!StreamDevice<Device> || CpuDevice<Device>,
                "evenkeel: on CUDA devices clipping leaves what it finds in their memory: include "
                "evenkeel/clipping_saved.hpp and pass an ek::ClippingSaved<ek::CudaStorage>");
}

/// The sum of (scale * x)^2 of `size` values: blocks of a fixed length, added in their order.
template <class Device, class T>
double sum_of_squares(const Device& device, const T* data, Index size, double scale) {
  constexpr Index block = 1 << 14;
  constexpr std::size_t at_once = 256;
  std::array<double, at_once> part;
  double sum = 0;
  for (Index first = 0; first < size; first += block * static_cast<Index>(at_once)) {
    const Index rest = size - first, blocks = std::min((rest + block - 1) / block, static_cast<Index>(at_once));
    for_each_block(device, blocks, static_cast<double>(rest) * sizeof(T), [&](Index b) {
      const T* const from = data + first + b * block;
      const Index count = std::min(block, rest - b * block);
      // Eight sums, because one would wait for each addition.
      std::array<double, 8> lane{};
      for (Index i = 0; i < count; ++i) {
        const double value = static_cast<double>(from[i]) * scale;
        lane[static_cast<std::size_t>(i & 7)] += value * value;
      }
      part[static_cast<std::size_t>(b)] =
          ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    });
    for (Index b = 0; b < blocks; ++b) sum += part[static_cast<std::size_t>(b)];
  }
  return sum;
}

/// All gradients times limit / norm where the norm, theirs, is finite and larger.
template <class Device, class List>
void scale_to_limit(const Device& device, const List& parameters, double norm, double limit) {
  if (!(norm > limit) || !std::isfinite(norm)) return;
  const double scale = limit / norm;
  for (const auto& parameter : parameters) {
    using T = std::remove_pointer_t<decltype(parameter.gradient)>;
    constexpr Index block = 1 << 14;
    for_each_block(device, (parameter.size + block - 1) / block, 2.0 * static_cast<double>(parameter.size) * sizeof(T),
                   [&](Index b) {
                     const Index end = std::min(parameter.size, (b + 1) * block);
                     for (Index i = b * block; i < end; ++i)
                       parameter.gradient[i] = static_cast<T>(static_cast<double>(parameter.gradient[i]) * scale);
                   });
  }
}

/// The norm of each rank's gradients; below 0 that of a rank whose call has failed.
template <Communicator C>
std::vector<double> gathered_norms(C& communicator, double own) {
  std::vector<double> norms(static_cast<std::size_t>(communicator.size()));
  start_all_gather(communicator, &own, norms.data(), 1).wait();
  return norms;
}
/// The norm of all of them together.
template <Communicator C>
double norm_over_ranks(C& communicator, double own) {
  const std::vector<double> norms = gathered_norms(communicator, own);
  double largest = 0, squares = 0;
  for (std::size_t r = 0; r < norms.size(); ++r) {
    if (norms[r] < 0)
      throw RankError(
          error_text("clip_global_gradient_norm", "the call of rank ", r, " failed, of which its own error says more"));
    if (!std::isfinite(norms[r])) return norms[r];
    largest = std::max(largest, norms[r]);
  }
  if (largest == 0) return 0;
  for (const double norm : norms) squares += norm / largest * (norm / largest);
  return largest * std::sqrt(squares);
}

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// Scales down the gradient of each unit that is large beside its weight, in place, and says how many were. Call it after
/// backward and before the optimizer.
///
/// parameters   a list of ClippedParameter, all of a network; those whose role is head or classifier are left out and not counted
/// A gradient with a NaN or an infinity is left as it is, for the trainer to notice. Results do not depend on threads.
/// Allocates nothing. Throws ShapeError for an option that is not above 0, before any work. Example:
///
///   const std::array parameters{ek::ClippedParameter(w, dw, ek::Role::ffn_up, 0),
///                               ek::ClippedParameter(bias.ref(), ek::Role::bias)};
///   const ek::ClippingReport report = ek::adaptive_gradient_clipping(device, parameters);
template <class Device, class List>
  requires detail::ListOf<List, ClippedParameter> ClippingReport adaptive_gradient_clipping(
      const Device& device, const List& parameters, const AdaptiveClippingOptions& options = {}) {
    detail::require_host_results<Device>();
    detail::require_clipping_options("adaptive_gradient_clipping", options);
    ClippingReport report;
    for (const auto& parameter : parameters) {
      using T = std::remove_pointer_t<decltype(parameter.gradient.data)>;
      if (parameter.role == Role::head || parameter.role == Role::classifier) continue;
      const Index units = parameter.value.length;
      if (units == 0 || parameter.value.rows() == 0) continue;
      std::atomic<Index> clipped{0};
      constexpr Index at_once = 16;
      const double bytes = 2.0 * static_cast<double>(units) * static_cast<double>(parameter.value.rows()) * sizeof(T);
      detail::for_each_block(device, (units + at_once - 1) / at_once, bytes, [&](Index b) {
        for (Index unit = b * at_once; unit < std::min(units, (b + 1) * at_once); ++unit) {
          const double bound = options.clip * std::max(detail::unit_norm(parameter.value, unit), options.least_weight);
          const double norm = detail::unit_norm(parameter.gradient, unit);
          if (!(norm > bound) || !std::isfinite(norm)) continue;
          const double scale = bound / std::max(norm, options.least_gradient);
          detail::for_each_of_unit(parameter.gradient, unit,
                                   [scale](T& g) { g = static_cast<T>(static_cast<double>(g) * scale); });
          clipped.fetch_add(1);
        }
      });
      report.units += units;
      report.clipped += clipped.load();
    }
    return report;
  }

/// The norm of all gradients together: sqrt of the sum of their squares, in double. Blocks of a fixed length are added in
/// their order, so it does not depend on threads. Allocates nothing. Example, with a std::vector of what for_each_parameter
/// gave: `ek::global_gradient_norm(device, parameters)`.
template <class Device, class List>
  requires detail::ListOf<List, ParameterRef>
double global_gradient_norm(const Device& device, const List& parameters) {
  detail::require_host_results<Device>();
  const auto squares = [&](double scale) {
    double sum = 0;
    for (const auto& parameter : parameters)
      sum += detail::sum_of_squares(device, parameter.gradient, parameter.size, scale);
    return sum;
  };
  const double plain = squares(1), scale = detail::scale_of_squares(plain);
  return scale == 1 ? std::sqrt(plain) : std::sqrt(squares(scale)) / scale;
}

/// Scales all gradients so that their norm is at most `limit`, in place, and returns the norm that they had. Where it is
/// not finite they are left as they are. Throws ShapeError for a limit that is not above 0. Example:
/// `ek::clip_global_gradient_norm(device, parameters, 1.0);`
template <class Device, class List>
  requires detail::ListOf<List, ParameterRef>
double clip_global_gradient_norm(const Device& device, const List& parameters, double limit) {
  detail::require_clip("clip_global_gradient_norm", "limit", limit);
  const double norm = global_gradient_norm(device, parameters);
  detail::scale_to_limit(device, parameters, norm, limit);
  return norm;
}

/// The norm of gradients that are spread over ranks, each of which has other parameters or other parts of them; the same
/// bits on all. One message of 1 double. (Where every rank has all gradients, averaged, the norm needs no exchange.)
template <class Device, class List, Communicator C>
  requires detail::ListOf<List, ParameterRef>
double global_gradient_norm(const Device& device, const List& parameters, C&& communicator) {
  return detail::norm_over_ranks(communicator, global_gradient_norm(device, parameters));
}
/// clip_global_gradient_norm of gradients that are spread over ranks. Throws RankError where another rank's call fails.
template <class Device, class List, Communicator C>
  requires detail::ListOf<List, ParameterRef>
double clip_global_gradient_norm(const Device& device, const List& parameters, double limit, C&& communicator) {
  const auto own_norm = [&] {
    detail::require_clip("clip_global_gradient_norm", "limit", limit);
    return global_gradient_norm(device, parameters);
  };
  const double own = detail::prepared_or_refused(own_norm, [&] { detail::gathered_norms(communicator, -1); });
  const double norm = detail::norm_over_ranks(communicator, own);
  detail::scale_to_limit(device, parameters, norm, limit);
  return norm;
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
