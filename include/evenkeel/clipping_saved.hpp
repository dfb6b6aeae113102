/// Gradient clipping that leaves its results where the gradients are: with a ClippingSaved the functions of clipping.hpp
/// run on CUDA devices too, put their work into the stream and return. The formulas are those of clipping.hpp.
///
///     ek::ClippingSaved<ek::CudaStorage> saved;
///     saved.reserve(device, parameters);
///     ek::clip_global_gradient_norm(device, parameters, 1.0, saved);
///     ...
///     saved.norm();  // waits for the device
///
/// On the CPU the same calls do what those without a saved do.
#pragma once

#include "evenkeel/clipping.hpp"
#include "evenkeel/detail/clip_math.hpp"
#include "evenkeel/detail/direction_math.hpp"
#include "evenkeel/detail/weight_pass.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <type_traits>

namespace evenkeel {
namespace detail::inline EVENKEEL_ISA {

/// Where a call keeps its numbers: (norm | factor | clipped), (norm | factor) of this rank alone, a norm for each rank; then
/// values for each unit or parameter, then scratch.
struct ClippingValues {
  static constexpr Index norm = 0, factor = 1, clipped = 2, own = 3, gathered = 5;
};

/// f(parameter) for each one that clipping looks at.
template <class List, class F>
void for_each_clipped(const List& parameters, const F& f) {
  for (const auto& parameter : parameters)
    if (parameter.role != Role::head && parameter.role != Role::classifier && parameter.value.length > 0 &&
        parameter.value.rows() > 0)
      f(parameter);
}
template <class List>
Index clipped_units(const List& parameters) {
  Index units = 0;
  for_each_clipped(parameters, [&](const auto& parameter) { units += parameter.value.length; });
  return units;
}
template <class List>
Index filled_parameters(const List& parameters) {
  return std::ranges::count_if(parameters, [](const auto& parameter) { return parameter.size > 0; });
}

/// Values that a call over these parameters needs, the ranks' norms aside.
template <class Device, class List>
  requires ListOf<List, ClippedParameter> Index clipping_room(const Device& device, const List& parameters) {
    Index most = 0;
    if constexpr (StreamDevice<Device>)
      for_each_clipped(parameters, [&](const auto& parameter) {
        most = std::max(most, 4 * parameter.value.length + std::max(unit_room(device, grid_of(parameter.value)),
                                                                    unit_room(device, grid_of(parameter.gradient))));
      });
    return ClippingValues::gathered + clipped_units(parameters) + most;
  }
template <class Device, class List>
  requires ListOf<List, ParameterRef> Index clipping_room(const Device& device, const List& parameters) {
    Index most = 0;
    if constexpr (StreamDevice<Device>)
      for (const auto& parameter : parameters)
        if (parameter.size > 0) most = std::max(most, 3 + unit_room(device, RowGrid{{1, 1, parameter.size}, 1}));
    return ClippingValues::gathered + filled_parameters(parameters) + most;
  }

/// The norm of each unit to `norms`: its direction to `directions`, (3, units), and then between(unit).
template <class Device, class T, class Between>
void unit_directions(const Device& device, const RowGrid& grid, const Rows<const T>& rows, double* directions,
                     double* scratch, const Between& between) {
  unit_sums(device, RowPass{DirectionMath<T>{}, grid, std::tuple(rows), std::tuple(), std::tuple(), none, directions},
            scratch, static_cast<double>(grid.rows() * grid.length) * sizeof(T), between);
}

/// Each unit's gradient times its factor, in place.
template <class Device, class T>
void scale_units(const Device& device, const RowGrid& grid, const Rows<T>& gradient, const double* factors) {
  channel_write(
      device,
      RowPass{ClippedWrite{}, grid, std::tuple(read_only(gradient)), std::tuple(), std::tuple(gradient), factors},
      2.0 * static_cast<double>(grid.rows() * grid.length) * sizeof(T));
}

template <class T>
RowGrid whole_grid(const ParameterRef<T>& parameter) {
  return {{1, 1, parameter.size}, 1};
}
template <class T>
Rows<T> whole_rows(const ParameterRef<T>& parameter) {
  return {parameter.gradient, {0, 0, 1}, 0};
}

/// The norm of all gradients and the factor that brings it to `limit`, to `result`, (norm | factor).
template <class Device, class List>
void put_gradient_norm(const Device& device, const List& parameters, double limit, double* result, double* norms) {
  const Index count = filled_parameters(parameters);
  double* const directions = norms + count;
  Index p = 0;
  for (const auto& parameter : parameters) {
    if (parameter.size == 0) continue;
    unit_directions(device, whole_grid(parameter), read_only(whole_rows(parameter)), directions, directions + 3,
                    DirectionLength<double>{directions, norms + p++, 1});
  }
  put_means(device, SquareTerms{norms}, count, GlobalNormTo{static_cast<double>(count), limit, result});
}
template <class Device, class List>
void scale_parameters(const Device& device, const List& parameters, const double* factor) {
  for (const auto& parameter : parameters)
    if (parameter.size > 0) scale_units(device, whole_grid(parameter), whole_rows(parameter), factor);
}

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// What the last call of a clipping function has found, and its scratch.
template <class Storage = HostStorage>
class ClippingSaved {
  using Values = detail::ClippingValues;

 public:
  /// Makes room for calls over these parameters, a list of ClippedParameter or of ParameterRef, with gradients spread over
  /// `ranks`, so that none allocates.
  template <class Device, class List>
    requires detail::ListOf<List, ClippedParameter> || detail::ListOf<List, ParameterRef>
  void reserve(const Device& device, const List& parameters, int ranks = 1) {
    values_.reserve(detail::clipping_room(device, parameters) + ranks);
  }

  /// The norm that the gradients had, of the last call that took the global one. Waits for the device, where the storage
  /// is one's; NaN there where another rank's call has failed.
  double norm() const { return read(Values::norm); }
  /// What the last adaptive_gradient_clipping has clipped. Waits for the device, where the storage is one's.
  ClippingReport report() const { return {units_ == 0 ? 0 : std::llround(read(Values::clipped)), units_}; }
  /// (norm | factor) of the last call that took the global norm, in the storage's memory, for what follows in the stream;
  /// the factor is what the gradients were multiplied by, 1 without clipping.
  const double* norm_and_factor() const { return values_.data(); }

  /// For the functions: room for `size` values, returned for writing.
  double* begin(Index size) {
    values_.ensure(size);
    return values_.data();
  }
  /// For the functions: the units that report() counts.
  void set_units(Index units) { units_ = units; }
  /// The values that there is room for.
  Index room() const { return values_.size(); }

 private:
  double read(Index i) const {
    if (values_.size() == 0) return 0;
    double value = 0;
    Storage::read(values_.data() + i, &value, 1);
    return value;
  }
  Index units_ = 0;
  typename Storage::template Buffer<double> values_;  // see ClippingValues
};

}  // namespace EVENKEEL_ISA

namespace detail::inline EVENKEEL_ISA {

/// The global norm, and clipping by it where Clips.
template <bool Clips, class Device, class List, class Storage, class C>
void take_gradient_norm(const char* function, const Device& device, const List& parameters, double limit,
                        ClippingSaved<Storage>& saved, C& communicator) {
  require_device<Device>();
  using Places = ClippingValues;
  if constexpr (!StreamDevice<Device>) {
    const double norm = [&] {
      if constexpr (Clips)
        return clip_global_gradient_norm(device, parameters, limit, communicator);
      else
        return global_gradient_norm(device, parameters, communicator);
    }();
    double* const values = saved.begin(Places::gathered);
    values[Places::norm] = norm;
    values[Places::factor] = norm > limit && std::isfinite(norm) ? limit / norm : 1;
  } else {
    const Index ranks = communicator.size();
    constexpr bool local = is_local_v<C>;
    if constexpr (!local) {
      static_assert(
          requires { communicator.stream(); },
          "evenkeel: ranks on CUDA devices need a communicator of device memory, which has a stream()");
      if (communicator.stream() != device.stream())
        throw_shape_error(function, "the communicator's stream is not the device's");
    }
    const auto exchange = [&](double* values) {
      if constexpr (!local) communicator.all_gather(values + Places::own, values + Places::gathered, 1);
    };
    const auto room = [&] {
      if constexpr (Clips) require_clip(function, "limit", limit);
      return saved.begin(clipping_room(device, parameters) + ranks);
    };
    // Without room there is no message to send: saved.reserve is called on all ranks, or on none.
    double* const values = prepared_or_refused(room, [&] {
      if (local || saved.room() < Places::gathered + ranks) return;
      double* const message = saved.begin(Places::gathered + ranks);
      for_each_value(device, 1, NoNorm{message + Places::own});
      exchange(message);
    });
    double* const norms = values + Places::gathered + ranks;
    put_gradient_norm(device, parameters, limit, values + (local ? Places::norm : Places::own), norms);
    exchange(values);
    if constexpr (!local)
      put_means(device, SquareTerms{values + Places::gathered}, ranks,
                GlobalNormTo{static_cast<double>(ranks), limit, values});
    if constexpr (Clips) scale_parameters(device, parameters, values + Places::factor);
  }
}

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// adaptive_gradient_clipping on any device: how many units were clipped is in saved.report() afterwards.
///
/// parameters   a list of ClippedParameter in the device's memory
/// saved        has room for them: see ClippingSaved::reserve
/// On a CUDA device a call puts its work into the stream and allocates nothing; results are the same bits in every run.
/// Norms are formed in double, in another order than on the CPU, so that factors may differ in their last bits. Throws
/// ShapeError for an option that is not above 0, CudaError where saved lacks room, both before any work. Example:
/// tests/cuda/clipping_test.cpp.
template <class Device, class List, class Storage>
  requires detail::ListOf<List, ClippedParameter>
void adaptive_gradient_clipping(const Device& device, const List& parameters, ClippingSaved<Storage>& saved,
                                const AdaptiveClippingOptions& options = {}) {
  detail::require_device<Device>();
  if constexpr (!detail::StreamDevice<Device>) {
    const ClippingReport report = adaptive_gradient_clipping(device, parameters, options);
    saved.begin(detail::ClippingValues::gathered)[detail::ClippingValues::clipped] =
        static_cast<double>(report.clipped);
    saved.set_units(report.units);
  } else {
    detail::require_clipping_options("adaptive_gradient_clipping", options);
    double* const values = saved.begin(detail::clipping_room(device, parameters));
    const Index all = detail::clipped_units(parameters);
    saved.set_units(all);
    double* const factors = values + detail::ClippingValues::gathered;  // (all)
    double* const norms = factors + all;                                // (units)
    Index first = 0;
    detail::for_each_clipped(parameters, [&](const auto& parameter) {
      const Index units = parameter.value.length;
      double* const directions = norms + units;        // (scale | length | inverse, units)
      double* const scratch = directions + 3 * units;  // unit_room()
      const auto gradient = detail::rows_of(parameter.gradient);
      const detail::RowGrid grid = detail::grid_of(parameter.gradient);
      detail::unit_directions(device, detail::grid_of(parameter.value), detail::rows_of(parameter.value), directions,
                              scratch, detail::DirectionLength<double>{directions, norms, units});
      detail::unit_directions(device, grid, detail::read_only(gradient), directions, scratch,
                              detail::AdaptiveFactors{directions, norms, factors + first, units, options.clip,
                                                      options.least_weight, options.least_gradient});
      detail::scale_units(device, grid, gradient, factors + first);
      first += units;
    });
    if (all > 0)
      put_means(device, detail::ClippedTerms{factors}, all,
                detail::SumTo{static_cast<double>(all), values + detail::ClippingValues::clipped});
  }
}

/// global_gradient_norm on any device: the norm is in saved.norm() afterwards, and in saved.norm_and_factor() for what
/// follows in the stream. Memory, errors and accuracy as in adaptive_gradient_clipping with a saved.
template <class Device, class List, class Storage>
  requires detail::ListOf<List, ParameterRef>
void global_gradient_norm(const Device& device, const List& parameters, ClippingSaved<Storage>& saved) {
  LocalCommunicator alone;
  detail::take_gradient_norm<false>("global_gradient_norm", device, parameters, std::numeric_limits<double>::infinity(),
                                    saved, alone);
}
/// clip_global_gradient_norm on any device. The host does not learn the norm: the factor goes from the device's memory to
/// the gradients, which are left alone where it is 1. Throws ShapeError for a limit that is not above 0 and finite.
template <class Device, class List, class Storage>
  requires detail::ListOf<List, ParameterRef>
void clip_global_gradient_norm(const Device& device, const List& parameters, double limit,
                               ClippingSaved<Storage>& saved) {
  LocalCommunicator alone;
  detail::take_gradient_norm<true>("clip_global_gradient_norm", device, parameters, limit, saved, alone);
}

/// The norm of gradients that are spread over ranks: saved has room for a norm of each. On CUDA devices the exchange stands
/// in the stream, for instance a NcclCommunicator's; where a rank's call fails the norm is NaN on the others, and no
/// gradient is touched.
template <class Device, class List, class Storage, Communicator C>
  requires detail::ListOf<List, ParameterRef>
void global_gradient_norm(const Device& device, const List& parameters, ClippingSaved<Storage>& saved,
                          C&& communicator) {
  detail::take_gradient_norm<false>("global_gradient_norm", device, parameters, std::numeric_limits<double>::infinity(),
                                    saved, communicator);
}
/// clip_global_gradient_norm of gradients that are spread over ranks: as global_gradient_norm over ranks with a saved.
template <class Device, class List, class Storage, Communicator C>
  requires detail::ListOf<List, ParameterRef>
void clip_global_gradient_norm(const Device& device, const List& parameters, double limit,
                               ClippingSaved<Storage>& saved, C&& communicator) {
  detail::take_gradient_norm<true>("clip_global_gradient_norm", device, parameters, limit, saved, communicator);
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
