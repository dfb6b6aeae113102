/// What the backward from the output does beside its pass over rows, on a CUDA device. Nothing here allocates,
/// synchronizes or asks the device.
///
/// The host does not know how many features are kept. saved has room for some: their indices stand in `features`, in
/// ascending order, with -1 behind the last one, and features[room] is 1 where there were more of them. Then dx and
/// dweight become NaN.
#pragma once

#include "evenkeel/detail/channel_device.cuh"
#include "evenkeel/detail/for_each_value.cuh"
#include "evenkeel/detail/output_math.hpp"
#include "evenkeel/detail/row_pass_cuda.cuh"
#include "evenkeel/detail/standardize_math.hpp"
#include "evenkeel/detail/weight_pass.hpp"
#include "evenkeel/norms/output_backward.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace evenkeel::detail {

/// No feature is kept yet: room + 1 values.
struct NoFeatures {
  std::ptrdiff_t *features, room;
  EVENKEEL_DEVICE void operator()(std::int64_t i) const { features[i] = i < room ? -1 : 0; }
};

/// A thread for each feature; a lost one counts those before it.
template <class Feature>
struct FindFeatures {
  Feature feature;
  std::ptrdiff_t *features, room;
  EVENKEEL_DEVICE void operator()(std::int64_t i) const {
    if (!feature.lost(i)) return;
    std::ptrdiff_t before = 0;
    for (std::int64_t j = 0; j < i; ++j) before += feature.lost(j);
    if (before < room)
      features[before] = i;
    else if (before == room)
      features[room] = 1;
  }
};

/// x of the kept features, to (room, rows).
template <class A, class T>
struct GatherKept {
  DeviceRows<const T> x;
  DeviceGrid grid;
  const std::ptrdiff_t* features;
  A* kept;
  EVENKEEL_DEVICE void operator()(std::int64_t i) const {
    const Quotient k(i, grid.rows);
    const std::ptrdiff_t feature = features[k.whole];
    if (feature >= 0) kept[i] = to<A>(row_at(x, grid.place(k.rest))[feature * x.length_stride]);
  }
};

/// xhat from it, with statistics (mean | rest | rstd, rows), or (rstd, rows).
template <class A, int Fields>
struct StandardizeKept {
  const A* statistics;
  std::int64_t rows;
  const std::ptrdiff_t* features;
  A* kept;
  EVENKEEL_DEVICE void operator()(std::int64_t i) const {
    const Quotient k(i, rows);
    if (features[k.whole] < 0) return;
    const A* const of_row = statistics + k.rest;
    if constexpr (Fields == 3)
      kept[i] = StandardizeRow<A>{of_row[0], of_row[rows], of_row[2 * rows]}.xhat(kept[i]);
    else
      kept[i] = kept[i] * of_row[0];
  }
};

/// What y - bias is multiplied by for xhat; 0 where xhat was kept.
template <class A, class Feature>
struct OutputInverse {
  static constexpr A nan = std::numeric_limits<A>::quiet_NaN();
  Feature feature;
  const std::ptrdiff_t* features;
  std::ptrdiff_t room;
  A* inverse;
  EVENKEEL_DEVICE void operator()(std::int64_t i) const {
    inverse[i] = features[room] != 0 ? nan : feature.lost(i) ? A(0) : A(1) / feature.factor(i);
  }
};

/// Of each row: its rstd and the sum of h * xhat over the kept features, to (rstd | kept_hxhat, rows), and their dy, to
/// (room, rows).
template <class A, class T, class Feature>
struct KeptFlow {
  Feature feature;
  DeviceRows<const T> dy;
  DeviceGrid grid;
  const std::ptrdiff_t* features;
  std::ptrdiff_t room;
  const A *rstd, *xhat;
  A *known, *kept_dy;
  EVENKEEL_DEVICE void operator()(std::int64_t r) const {
    const T* const row = row_at(dy, grid.place(r));
    A sum = 0;
    for (std::ptrdiff_t k = 0; k < room && features[k] >= 0; ++k) {
      const A gradient = to<A>(row[features[k] * dy.length_stride]);
      kept_dy[k * grid.rows + r] = gradient;
      sum += gradient * feature.factor(features[k]) * xhat[k * grid.rows + r];
    }
    known[r] = rstd[r];
    known[grid.rows + r] = sum;
  }
};

/// dx of the kept features, whose rows left (rstd | mean_h | mean_hxhat, rows).
template <class Math, class T, class Feature>
struct KeptGradients {
  using A = typename Math::Scalar;
  Feature feature;
  DeviceRows<T> dx;
  DeviceGrid grid;
  const std::ptrdiff_t* features;
  const A *row_values, *xhat, *kept_dy;
  EVENKEEL_DEVICE void operator()(std::int64_t i) const {
    const Quotient k(i, grid.rows);
    const std::ptrdiff_t f = features[k.whole];
    if (f < 0) return;
    const A* const of_row = row_values + k.rest;
    const typename Math::template Row<A> row{of_row[0], of_row[grid.rows], of_row[2 * grid.rows]};
    row_at(dx, grid.place(k.rest))[f * dx.length_stride] =
        to<T>(Math::gradient(row, kept_dy[i] * feature.factor(f), xhat[i]));
  }
};

/// dweight of the kept features, added to what the pass left of it: a block for each.
template <class A>
__global__ void __launch_bounds__(256)
    kept_sums_kernel(const A* kept_dy, const A* xhat, const std::ptrdiff_t* features, std::int64_t rows, A* sums) {
  using Reduction = RowReduction<double, 1, RowScope::block, 256>;
  EVENKEEL_SHARED(double, partial, Reduction::scratch);
  const std::int64_t k = blockIdx.x;
  if (features[k] < 0) return;
  Reduction reduction(256, 256, partial, partial, 1);
  Values<double, 1> sum;
  sum[0] = 0;
  for (std::int64_t r = threadIdx.x; r < rows; r += 256)
    sum[0] += static_cast<double>(kept_dy[k * rows + r]) * static_cast<double>(xhat[k * rows + r]);
  reduction.sum(sum);
  if (threadIdx.x == 0) sums[features[k]] += static_cast<A>(sum[0]);
}

inline namespace EVENKEEL_ISA {

template <class A, class W, class B>
auto device_feature(const OutputFeature<A, W, B>& feature) {
  const auto weight = device_pointer(feature.weight);
  const auto bias = device_pointer(feature.bias);
  return OutputFeature<A, std::remove_const_t<decltype(weight)>, std::remove_const_t<decltype(bias)>>{weight, bias,
                                                                                                      feature.offset};
}

/// Before a forward that may overwrite x: the features that are lost, and their x.
template <StreamDevice Device, class Saved, class T, class Feature>
void keep_features(const char* function, const Device& device, Saved& saved, const Rows<T>& x, const RowGrid& grid,
                   const Feature& of_host) {
  using A = typename Saved::Scalar;
  const Index room = saved.kept_features;
  if (saved.kept_index.size() < room + 1 || saved.kept_xhat.size() < room * grid.rows())
    throw CudaError(std::string(function) +
                    ": saved has no room for a backward from the output; call saved.reserve_from_output(device, x, "
                    "features) before the forward");
  std::ptrdiff_t* const features = saved.kept_index.data();
  const auto feature = device_feature(of_host);
  for_each_value(device, room + 1, NoFeatures{features, room});
  for_each_value(device, grid.length, FindFeatures<std::remove_const_t<decltype(feature)>>{feature, features, room});
  for_each_value(device, room * grid.rows(),
                 GatherKept<A, device_scalar_t<std::remove_const_t<T>>>{device_rows(read_only(x)), device_grid(grid),
                                                                        features, saved.kept_xhat.data()});
}

/// After it, when the statistics are known: their xhat.
template <StreamDevice Device, class Saved>
void standardize_kept(const Device& device, Saved& saved) {
  using A = typename Saved::Scalar;
  for_each_value(device, saved.kept_features * saved.rows(),
                 StandardizeKept<A, Saved::fields>{saved.statistics.data(), saved.rows(), saved.kept_index.data(),
                                                   saved.kept_xhat.data()});
}

/// Before the pass of the backward: what it knows of features and rows.
template <StreamDevice Device, class A, class T, class Feature>
void prepare_kept(const Device& device, const OutputParts<A>& parts, const RowGrid& grid, const Rows<T>& dy,
                  const Feature& of_host) {
  const auto feature = device_feature(of_host);
  using OnDevice = std::remove_const_t<decltype(feature)>;
  for_each_value(device, grid.length, OutputInverse<A, OnDevice>{feature, parts.features, parts.kept, parts.inverse});
  for_each_value(device, grid.rows(),
                 KeptFlow<A, device_scalar_t<std::remove_const_t<T>>, OnDevice>{
                     feature, device_rows(read_only(dy)), device_grid(grid), parts.features, parts.kept, parts.rstd,
                     parts.xhat, parts.known, parts.kept_dy});
}

/// Behind it: the gradients of the kept features.
template <class Math, bool HasDweight, StreamDevice Device, class A, class T, class Feature>
void finish_kept(const Device& device, const OutputParts<A>& parts, const RowGrid& grid, const Rows<T>& dx,
                 const Feature& of_host) {
  if (parts.kept == 0 || grid.rows() == 0) return;
  const auto feature = device_feature(of_host);
  for_each_value(
      device, parts.kept * grid.rows(),
      KeptGradients<Math, device_scalar_t<T>, std::remove_const_t<decltype(feature)>>{
          feature, device_rows(dx), device_grid(grid), parts.features, parts.row_values, parts.xhat, parts.kept_dy});
  if constexpr (HasDweight) {
    LaunchShape shape;
    shape.grid = static_cast<unsigned>(parts.kept);
    shape.block = 256;
    launch(&kept_sums_kernel<A>, shape, device.stream(), static_cast<const A*>(parts.kept_dy), parts.xhat,
           parts.features, static_cast<std::int64_t>(grid.rows()), parts.sums);
  }
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel::detail
