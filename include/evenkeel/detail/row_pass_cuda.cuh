/// A pass over rows on a CUDA device: from the pass to its plan, and from the plan to its kernel. Nothing here
/// allocates, synchronizes or asks the device.
#pragma once

#include "evenkeel/cuda_stream.cuh"
#include "evenkeel/detail/row_kernels.cuh"
#include "evenkeel/detail/row_math.hpp"

#include <algorithm>
#include <cstdint>
#include <tuple>

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// Data and parameters as the device names their types.
template <class T>
DeviceRows<device_scalar_t<T>> device_rows(const Rows<T>& rows) {
  return {device_pointer(rows.data), {rows.stride[0], rows.stride[1], rows.stride[2]}, rows.length_stride};
}
template <class T>
DeviceMaskRows<device_scalar_t<T>> device_rows(const MaskRows<T>& rows) {
  return {device_rows(static_cast<const Rows<T>&>(rows))};
}
inline None device_rows(None) { return none; }
template <class T>
OneValue<device_scalar_t<T>> device_rows(const OneValue<T>& value) {
  return {device_pointer(value.data)};
}

template <class Tuple, class F>
auto list_of(const Tuple& tuple, const F& f) {
  return std::apply([&](const auto&... t) { return make_list(f(t)...); }, tuple);
}

/// Bytes of an element of DeviceRows; nothing else has any.
template <class T>
inline constexpr int scalar_bytes = 0;
template <class T>
inline constexpr int scalar_bytes<DeviceRows<T>> = sizeof(T);
template <class T>
inline constexpr int scalar_bytes<DeviceMaskRows<T>> = sizeof(T);
template <class T>
inline constexpr bool repeats_value(const T&) {
  return false;
}
template <class T>
bool repeats_value(const DeviceMaskRows<T>& rows) {
  return rows.length_stride == 0;
}

template <class... T, class F>
void for_each(const List<T...>& list, const F& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) { (f(at<I>(list)), ...); }
  (std::make_integer_sequence<int, sizeof...(T)>{});
}

/// What the pass's types alone decide.
template <class Pass>
struct PassTraits;
template <class Math, class... X, class... P, class... Y, class Known, class Kept>
struct PassTraits<DevicePass<Math, List<X...>, List<P...>, List<Y...>, Known, Kept>> {
  using A = typename Math::Scalar;
  static constexpr int widest = std::max({1, scalar_bytes<X>..., scalar_bytes<Y>...});
  static constexpr int full = 16 / widest;  // elements of one access
  static constexpr int held =
      std::max<int>(1, (0 + ... + scalar_bytes<X>)+Math::feature_sums* static_cast<int>(sizeof(A)));
  // Registers beside the held values, in bytes, of maths with more parameters or sums than most.
  static constexpr int spare = (0 + ... + int(!is_none_v<P>)) > 2 || Math::sums > 2 ? 64 : 0;
};

/// The elements that one access may take of every tensor, `full`, 2 or 1: they divide the length, each stride that is
/// used, and each address.
template <class Pass>
int vector_of(const Pass& pass, int full) {
  const auto& grid = pass.grid;
  const auto fits = [&](int vector) {
    bool ok = grid.length % vector == 0;
    const auto divides = [&](std::uintptr_t bytes, std::size_t scalar) {
      return bytes % std::min<std::size_t>(16, scalar * static_cast<std::size_t>(vector)) == 0;
    };
    const auto check = [&](const auto& rows) {
      using R = std::remove_cvref_t<decltype(rows)>;
      if constexpr (scalar_bytes<R> != 0) {
        constexpr std::size_t scalar = scalar_bytes<R>;
        if (repeats_value(rows)) return;
        ok = ok && divides(reinterpret_cast<std::uintptr_t>(rows.data), scalar);
        for (int level = 0; level < 3; ++level)
          if (grid.extent[level] > 1)
            ok = ok && divides(static_cast<std::uintptr_t>(rows.stride[level]) * scalar, scalar);
      }
    };
    const auto check_parameter = [&](const auto& p) {
      if constexpr (requires { p.data; })
        ok = ok && divides(reinterpret_cast<std::uintptr_t>(p.data), sizeof(*p.data));
      else if constexpr (!is_none_v<std::remove_cvref_t<decltype(p)>>)
        ok = ok && divides(reinterpret_cast<std::uintptr_t>(p), sizeof(*p));
    };
    for_each(pass.inputs, check);
    for_each(pass.outputs, check);
    for_each(pass.parameters, check_parameter);
    return ok;
  };
  return fits(full) ? full : full > 2 && fits(2) ? 2 : 1;
}

template <class Pass>
bool is_strided(const Pass& pass) {
  bool strided = false;
  const auto check = [&](const auto& rows) {
    if constexpr (scalar_bytes<std::remove_cvref_t<decltype(rows)>> != 0)
      strided = strided || (rows.length_stride != 1 && !repeats_value(rows));
  };
  for_each(pass.inputs, check);
  for_each(pass.outputs, check);
  return strided && pass.grid.length > 1;
}

template <class T>
bool touches(const DeviceRows<T>& rows) {
  return rows.stride[2] == 1;
}
template <class T>
bool touches(const DeviceMaskRows<T>&) {
  return true;
}
template <class T>
bool touches(const OneValue<T>&) {
  return true;
}
inline bool touches(None) { return true; }

/// Whether enough rows are neighbours in every tensor, for lanes that lie along them. A mask's rows lie as they do.
template <class Pass>
bool is_touching(const Pass& pass) {
  bool touching = pass.grid.extent[2] >= 8;
  const auto check = [&](const auto& rows) { touching = touching && touches(rows); };
  for_each(pass.inputs, check);
  for_each(pass.outputs, check);
  return touching;
}

/// Launches the kernel that the plan names.
template <class Pass>
class RowLaunch {
  using Traits = PassTraits<Pass>;
  using Math = decltype(Pass::math);

 public:
  RowLaunch(cudaStream_t stream, const Pass& pass, const RowPlan& plan) : stream_(stream), pass_(pass), plan_(plan) {}

  void run() const {
    if (plan_.scope == RowScope::stream) return stream();
    if (plan_.scope == RowScope::across) return launch(&row_across_kernel<Pass>, shape(), stream_, pass_);
    with_vector<Traits::full>();
  }

 private:
  template <int V>
  void with_vector() const {
    if constexpr (V > 1)
      if (plan_.vector < V) return with_vector<(V > 2 ? 2 : 1)>();
    with_scope<V>();
  }
  template <int V>
  void with_scope() const {
    if (plan_.scope == RowScope::lanes) return with_bound<RowScope::lanes, V, lane_bound>();
    if (plan_.scope == RowScope::cluster) return with_bound<RowScope::cluster, V, 256>();
    if (plan_.bound == 256) return with_bound<RowScope::block, V, 256>();
    if (plan_.bound == 512) return with_bound<RowScope::block, V, 512>();
    with_bound<RowScope::block, V, 1024>();
  }
  template <RowScope Scope, int V, int Bound>
  void with_bound() const {
    constexpr int most = most_packs(Bound, V, Traits::full, Traits::held);
    constexpr bool wide = V == Traits::full;
    if constexpr (most > 0 && (Scope != RowScope::cluster || wide) &&
                  takes_bound(Bound, V, Traits::full, Traits::held)) {
      if constexpr (!wide || Scope == RowScope::cluster || Bound > 256)
        launch_kernel<Scope, V, most, Bound>();
      else
        with_packs<Scope, V, most, Bound>();
    }
  }
  template <RowScope Scope, int V, int Packs, int Bound>
  void with_packs() const {
    if constexpr (Packs > 1)
      if (plan_.packs < Packs) return with_packs<Scope, V, Packs / 2, Bound>();
    launch_kernel<Scope, V, Packs, Bound>();
  }
  template <RowScope Scope, int V, int Packs, int Bound>
  void launch_kernel() const {
    constexpr int larger = V < Traits::full ? 1024 : 2 * Bound;  // narrow accesses have no kernel for 512 threads
    if constexpr (Scope == RowScope::block && Bound < larger && shares_kernel<V, Packs, larger>) {
      launch_kernel<Scope, V, Packs, larger>();
    } else {
      constexpr int blocks = resident_blocks(
          Bound,
          kept_bytes(Scope, Packs, V, Traits::held, static_cast<int>(sizeof(typename Traits::A))) + Traits::spare);
      launch(&row_kernel<Pass, Scope, V, Packs, Bound, blocks>, shape(), stream_, pass_, plan_.lanes,
             plan_.rows_per_block(), plan_.cluster);
    }
  }
  /// Whether a kernel for larger blocks keeps as many packs: it serves smaller ones too.
  template <int V, int Packs, int Bound>
  static constexpr bool shares_kernel = Bound <= 1024 && most_packs(Bound, V, Traits::full, Traits::held) == Packs;
  void stream() const {
    if constexpr (Math::feature_sums > 0) {
      LaunchShape columns;
      columns.block = feature_bound;
      columns.grid = static_cast<unsigned>(quotient_up(pass_.grid.length, feature_bound) * plan_.parts);
      launch(&feature_kernel<Pass>, columns, stream_, pass_, static_cast<int>(plan_.parts));
    }
    if (plan_.vector > 1)
      launch(&row_stream_kernel<Pass, Traits::full>, shape(), stream_, pass_);
    else
      launch(&row_stream_kernel<Pass, 1>, shape(), stream_, pass_);
  }
  LaunchShape shape() const {
    LaunchShape s;
    s.grid = static_cast<unsigned>(plan_.blocks);
    s.block = static_cast<unsigned>(plan_.threads);
    s.shared = static_cast<std::size_t>(plan_.shared);
    s.cluster = static_cast<unsigned>(plan_.cluster);
    return s;
  }

  cudaStream_t stream_;
  const Pass& pass_;
  const RowPlan& plan_;
};

inline DeviceGrid device_grid(const RowGrid& grid) {
  const auto& extent = grid.extent;
  return {grid.rows(),
          {extent[0], extent[1], extent[2]},
          grid.length,
          extent[0] == 1 && extent[2] == 1,
          Divisor(std::max<Index>(1, extent[1])),
          Divisor(std::max<Index>(1, extent[2]))};
}

/// The pass on the device, without its scratch.
template <class Math, class X, class P, class Y, class Known, class Kept>
auto device_pass(const RowPass<Math, X, P, Y, Known, Kept>& pass, typename Math::Scalar* sums) {
  const auto rows = [](const auto& r) { return device_rows(r); };
  const auto parameter = [](const auto& p) { return device_pointer(p); };
  const auto inputs = list_of(pass.inputs, rows);
  const auto parameters = list_of(pass.parameters, parameter);
  const auto outputs = list_of(pass.outputs, rows);
  const DeviceGrid grid = device_grid(pass.grid);
  return DevicePass<Math, std::remove_const_t<decltype(inputs)>, std::remove_const_t<decltype(parameters)>,
                    std::remove_const_t<decltype(outputs)>, Known, Kept>{
      pass.math, grid, inputs, parameters, outputs, pass.known, pass.kept, sums, sums_pitch(pass.grid.length)};
}

template <class Pass>
RowPlan plan_of(const Pass& pass, const CudaFacts& facts) {
  using Traits = PassTraits<Pass>;
  using Math = decltype(Pass::math);
  RowProblem problem;
  problem.rows = pass.grid.rows;
  problem.length = pass.grid.length;
  problem.full = Traits::full;
  problem.held = Traits::held;
  problem.sums = Math::feature_sums;
  problem.sum_bytes = sizeof(typename Math::Scalar);
  problem.strided = is_strided(pass);
  problem.touching = is_touching(pass);
  problem.vector = problem.strided ? 1 : vector_of(pass, Traits::full);
  return plan_rows(problem, facts);
}

/// Runs the pass. Where the math has feature sums, `scratch` holds feature_scratch() values and receives partial sums.
template <StreamDevice Device, class Math, class X, class P, class Y, class Known, class Kept>
FeatureParts row_pass(const Device& device, const RowPass<Math, X, P, Y, Known, Kept>& pass,
                      typename Math::Scalar* scratch = nullptr, None = none) {
  const auto on_device = device_pass(pass, scratch);
  if (pass.grid.rows() == 0) return {0, on_device.pitch, Math::feature_sums};
  RowPlan plan = plan_of(on_device, cuda_facts(device));
  if constexpr (may_have_no_turn<Math>)  // then no more blocks than stay on the device: each must start to find out
    plan.blocks = std::min(plan.blocks, persistent_blocks(cuda_facts(device), plan.bound, 0) * plan.cluster);
  RowLaunch(device.stream(), on_device, plan).run();
  return {plan.parts, on_device.pitch, Math::feature_sums};
}

/// Partial sums of several blocks have no place in a gradient.
template <class A, StreamDevice Device, class... T>
None sums_in_place(const Device&, GradientMode, T...) {
  return none;
}

/// Values of A that such a pass needs as scratch.
template <class A, int FeatureCount, StreamDevice Device>
Index feature_scratch(const Device& device, Index rows, Index length) {
  return FeatureCount == 0 ? 0 : most_parts(rows, length, cuda_facts(device)) * FeatureCount * sums_pitch(length);
}

/// Adds the sums over rows that a pass left in `scratch` to gradients, or writes them there: pointers or none, in the
/// order of the sums, of which those that are none have none.
template <StreamDevice Device, class A, class... T>
void put_gradients(const Device& device, const A* scratch, const FeatureParts& parts, Index length, GradientMode mode,
                   T... gradients) {
  if constexpr ((!is_none_v<T> || ...)) {
    const auto list = make_list(device_pointer(gradients)...);
    LaunchShape shape;
    shape.grid = static_cast<unsigned>(quotient_up(length, 32));
    shape.block = 256;
    launch(&gradient_kernel<A, std::remove_const_t<decltype(list)>>, shape, device.stream(), scratch,
           static_cast<std::int64_t>(parts.count), parts.terms, static_cast<std::int64_t>(parts.pitch),
           static_cast<std::int64_t>(length), list, mode == GradientMode::accumulate);
  }
}

/// Writes `ones` ones and zeros after them.
template <StreamDevice Device, class A>
void put_indicator(const Device& device, A* values, Index length, Index ones) {
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(quotient_up(length, 256));
  shape.block = 256;
  launch(&indicator_kernel<A>, shape, device.stream(), values, static_cast<std::int64_t>(length),
         static_cast<std::int64_t>(ones));
}

/// Adds the sum of what the rows kept to a scalar's gradient, or writes it there; a pointer or none.
template <StreamDevice Device, class A, class T>
void put_total(const Device& device, const A* shares, Index rows, GradientMode mode, T gradient) {
  if constexpr (!is_none_v<T>) {
    LaunchShape shape;
    shape.block = 256;
    launch(&total_kernel<A, device_scalar_t<std::remove_pointer_t<T>>>, shape, device.stream(), shares,
           static_cast<std::int64_t>(rows), device_pointer(gradient), mode == GradientMode::accumulate);
  }
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
