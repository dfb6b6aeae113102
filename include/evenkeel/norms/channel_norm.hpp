/// What BatchNorm, GroupNorm and InstanceNorm have in common: from checked arguments to passes over channels.
#pragma once

#include "evenkeel/detail/arguments.hpp"
#include "evenkeel/detail/channel_norm_math.hpp"
#include "evenkeel/detail/channel_pass_cpu.hpp"
#include "evenkeel/moments.hpp"
#include "evenkeel/norms/channel_saved.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <numeric>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace evenkeel {
namespace detail {
inline namespace EVENKEEL_ISA {

template <class Saved, class X>
concept ChannelSavedOf = std::same_as<typename Saved::Scalar, accumulator_t<scalar_t<const X>>>;

/// The statistics of group `g` of sample `s`, from its cells' moments, to `saved` and to its channels' known values. A cell
/// of the pass is a channel, or the whole group.
template <bool Local, class Pass, class Saved>
void settle_group(const Pass& pass, Saved& saved, double eps, Index s, Index g) {
  using A = typename Saved::Scalar;
  const ChannelGrid &grid = pass.grid, &whole = saved.call.grid;
  const Index size = grid.channels / saved.call.groups, cells = grid.cells();
  const auto merged = [&](const auto& moments_of) {
    Moments<double> all;
    for (Index c = g * size; c < (g + 1) * size; ++c) {
      const auto m = moments_of(c);
      all = merge(all, Moments<double>{static_cast<std::int64_t>(m.count), m.shift, m.delta, m.M2});
    }
    return all;
  };
  const auto standardized = [](const Moments<double>& m, double scaled_eps) {
    return standardize_row<double>(m.shift, m.delta, inverse_root(m.variance() + scaled_eps));
  };
  struct CellMoments {
    double count, shift, delta, M2;
  };
  Moments<double> moments = merged([&](Index c) {
    const double* const p = pass.kept + s * grid.channels + c;
    return CellMoments{p[0], p[cells], p[2 * cells], p[3 * cells]};
  });
  StandardizeRow<double> row = standardized(moments, eps);
  // Across ranks, double's range must do; and a group without values has none to look at again.
  if (Local && moments.count > 0 && !in_range(static_cast<A>(row.rstd))) {
    double largest = 0;
    for (Index c = g * size; c < (g + 1) * size; ++c)
      largest = std::fmax(largest, CarefulCell<Pass>(pass, s, c).largest());
    const double scale = careful_scale<A>(largest, eps);
    moments = merged([&](Index c) { return CarefulCell<Pass>(pass, s, c).sums(scale); });
    row = standardized(moments, eps * scale * scale);
    row = {row.mean / scale, row.rest / scale, row.rstd * scale};
    moments.shift /= scale, moments.delta /= scale, moments.M2 /= scale * scale;
  }
  saved.set_moments(s * saved.call.groups + g, moments);
  const A mean = static_cast<A>(row.mean);
  const A values[3] = {mean, static_cast<A>(row.mean - static_cast<double>(mean) + row.rest), static_cast<A>(row.rstd)};
  for (int k = 0; k < 3; ++k) {
    const Index set = k * grid.samples + s, members = whole.channels / saved.call.groups;
    saved.statistics.data()[set * saved.call.groups + g] = values[k];
    std::fill_n(saved.known.data() + set * whole.channels + g * members, members, values[k]);
  }
}

/// f(V(), c) for channels first..last-1: packs of double, and one after another those that fill none.
template <class F>
void for_each_pack(Index first, Index last, const F& f) {
  Index c = first;
  for (; c + pack_size<double> <= last; c += pack_size<double>) f(Pack<double>(), c);
  for (; c < last; ++c) f(0.0, c);
}

/// settle_group for the channels first..last-1 of one sample, each of which is a group of its own: a pack at a time.
template <class Pass, class Saved>
void settle_channels(const Pass& pass, Saved& saved, double eps, Index s, Index first, Index last) {
  using A = typename Saved::Scalar;
  const Index cells = pass.grid.cells();
  double* const moments = saved.moments_data();
  for_each_pack(first, last, [&]<class V>(const V&, Index c) {
    constexpr Index lanes = sizeof(V) / sizeof(double);
    const Index at = s * pass.grid.channels + c;
    const auto kept = [&](Index k) { return load<V>(pass.kept + k * cells + at); };
    const V count = kept(0), shift = kept(1), delta = kept(2), M2 = kept(3);
    const V variance = pass.math.mean_of(M2, count);
    const auto row = standardize_row(shift, delta, inverse_root(V(variance + eps)));
    if (!in_range_of<A>(row.rstd)) {
      for (Index g = c; g < c + lanes; ++g) settle_group<true>(pass, saved, eps, s, g);
      return;
    }
    const V mean = round_to<A>(row.mean), rest = row.mean - mean + row.rest;
    store<V>(moments + at, count), store<V>(moments + cells + at, shift);
    store<V>(moments + 2 * cells + at, delta), store<V>(moments + 3 * cells + at, M2);
    const V values[3] = {mean, rest, row.rstd};
    for (int k = 0; k < 3; ++k)
      for (A* const p : {saved.statistics.data() + k * cells + at, saved.known.data() + k * cells + at})
        store<V>(p, values[k]);
  });
}

/// Throws, before anything is written, where a mean would be taken over one value.
inline void check_count(const char* function, const RowArguments& arguments, const char* unit, std::int64_t count) {
  if (count == 1)
    throw_shape_error(function, "x has 1 value per ", unit, ", expected 2 or more in training (", arguments.shape(),
                      ")");
}

/// The arguments of a forward, checked, and the passes over them.
template <class T, class Activation, class X, class Residual, class Mask, class Weight, class Bias, class Y>
struct ChannelForwardCall {
  using A = accumulator_t<T>;
  static constexpr bool masked = !is_none_v<Mask>;

  RowArguments arguments;
  double eps;
  ChannelShape shape;
  X x;
  Residual residual;
  Mask mask;
  Weight weight;
  Bias bias;
  Y y;

  const ChannelGrid& grid() const { return shape.grid; }
  /// Of a call to the memory and back.
  double bytes() const {
    return 3.0 * sizeof(T) * static_cast<double>(grid().cells()) * static_cast<double>(grid().count());
  }
  auto sums(double* kept) const {
    return ChannelPass{ChannelMoments<A, masked>{grid().count()},
                       grid(),
                       std::tuple(shape.cells(x), shape.cells(mask)),
                       std::tuple(),
                       std::tuple(),
                       none,
                       kept};  // (count | shift | delta | M2, cells)
  }
  auto write(const A* known) const {
    return ChannelPass{ChannelForward<A, Activation>{},
                       grid(),
                       std::tuple(shape.cells(x), shape.cells(residual), shape.cells(mask)),
                       std::tuple(weight, bias),
                       std::tuple(shape.cells(y)),
                       known};  // (mean | rest | rstd, cells)
  }
  /// What the backward checks and needs.
  ChannelCall record(const ChannelSpec& spec, bool over_ranks) const {
    return {spec,
            grid(),
            shape.groups,
            scalar_name<T>(),
            &activation_tag<Activation>,
            !is_none_v<Weight>,
            !is_none_v<Bias>,
            !is_none_v<Residual>,
            masked,
            grid().cells() * grid().count() > 0 && static_cast<const void*>(y.data) == x.data,
            over_ranks,
            true};
  }
};

template <class Activation, class X, class Residual, class Mask, class Weight, class Bias, class Y>
auto channel_forward_call(const char* function, const X& x, const Residual& residual, const Mask& mask,
                          const Weight& weight, const Bias& bias, Y& y, const ChannelSpec& spec) {
  static_assert(ActivationFunction<Activation>);
  using T = scalar_t<const X>;
  RowArguments arguments(function);
  if (spec.per_sample) arguments.keep_samples(spec.sample_axis);
  const auto x_rows = arguments.reference("x", x, spec.axis);
  const auto residual_rows = arguments.input("residual", residual);
  const auto mask_rows = arguments.mask("mask", mask);
  const auto w = arguments.parameter("weight", weight, "channels");
  const auto b = arguments.parameter("bias", bias, "channels");
  const auto y_rows = arguments.output("y", y);
  const double eps = resolved_eps<accumulator_t<T>>(function, spec.eps);
  const ChannelShape shape = channel_shape(function, arguments, spec);
  return ChannelForwardCall<T, Activation, std::remove_const_t<decltype(x_rows)>,
                            std::remove_const_t<decltype(residual_rows)>, std::remove_const_t<decltype(mask_rows)>,
                            std::remove_const_t<decltype(w)>, std::remove_const_t<decltype(b)>,
                            std::remove_const_t<decltype(y_rows)>>{arguments, eps, shape, x_rows, residual_rows,
                                                                   mask_rows, w,   b,     y_rows};
}

/// Forward with the statistics of the data.
template <class Activation, class Device, class X, class Residual, class Mask, class Weight, class Bias, class Y,
          class Saved>
void channel_norm(const char* function, const Device& device, const X& x, const Residual& residual, const Mask& mask,
                  const Weight& weight, const Bias& bias, Y& y, Saved& saved, const ChannelSpec& spec) {
  require_device<Device>();
  const auto call = channel_forward_call<Activation>(function, x, residual, mask, weight, bias, y, spec);
  const ChannelShape& shape = call.shape;
  const ChannelGrid& grid = shape.grid;
  const Index size = grid.channels / shape.groups;
  constexpr bool counted_here = is_none_v<Mask>;
  if (counted_here) check_count(function, call.arguments, spec.unit, grid.count() * size);

  // A call that throws changes nothing but scratch.
  if constexpr (CpuDevice<Device>) saved.sums.reserve(4 * grid.cells() + 2 * grid.channels);
  double* const kept = saved.sums.data();
  auto sums = call.sums(kept);
  const double bytes = call.bytes();
  if constexpr (CpuDevice<Device>) {
    join_channels(sums, size);
    sums.math.cell_count = sums.grid.count();
  }
  if constexpr (CpuDevice<Device> && !counted_here) {
    channel_sums(device, sums, bytes);
    const Index members = sums.grid.channels / shape.groups;
    for (Index set = 0; set < grid.samples * shape.groups; ++set) {
      const double* const counts = kept + set * members;
      check_count(function, call.arguments, spec.unit,
                  static_cast<std::int64_t>(std::accumulate(counts, counts + members, 0.0)));
    }
  }
  saved.begin(device, call.record(spec, false));
  const auto write = call.write(saved.known.data());
  if constexpr (CpuDevice<Device>) {
    const auto between = [&](Index s, Index first, Index last) {
      if (size == 1) return settle_channels(sums, saved, call.eps, s, first, last);
      for (Index g = first / size; g < last / size; ++g) settle_group<true>(sums, saved, call.eps, s, g);
    };
    if constexpr (!counted_here) {
      for (Index s = 0; s < grid.samples; ++s) between(s, 0, grid.channels);
      channel_write(device, write, bytes);
    } else {
      channel_passes(device, sums, between, write, size, bytes);
    }
  } else {
    channel_forward(device, sums, write, saved, call.eps);
  }
}

/// Throws unless `saved` was filled by a forward over data like these.
template <class Activation, class Weight, class Residual, class Mask, class Saved>
void check_saved(const char* function, const RowArguments& arguments, const ChannelShape& shape, const char* scalar,
                 const Saved& saved, bool over_ranks) {
  const ChannelCall& call = saved.call;
  if (call.grid.channels != shape.grid.channels || call.grid.samples != shape.grid.samples ||
      call.grid.count() != shape.grid.count())
    throw_shape_error(function, "saved holds ", call.grid.samples, " x ", call.grid.channels, " channels of ",
                      call.grid.count(), " values, ", arguments.shape());
  if (call.over_ranks != over_ranks)
    throw_shape_error(function, over_ranks ? "saved comes from a forward without a communicator, expected one with it"
                                           : "saved comes from a forward over ranks, expected their communicator");
  if (std::string_view(call.scalar) != scalar)
    throw_shape_error(function, "saved comes from ", call.scalar, " data, x is ", scalar);
  if (call.activation != &activation_tag<Activation>)
    throw_shape_error(function, "saved comes from a forward with another activation");
  if (call.has_weight == is_none_v<Weight>)
    throw_shape_error(
        function, call.has_weight ? "weight is none, the forward had one" : "there is a weight, the forward had none");
  if (call.has_residual == is_none_v<Residual>)
    throw_shape_error(function, call.has_residual ? "residual is none, the forward had one"
                                                  : "there is a residual, the forward had none");
  if (call.has_mask == is_none_v<Mask>)
    throw_shape_error(function,
                      call.has_mask ? "mask is none, the forward had one" : "there is a mask, the forward had none");
  if (call.in_place)
    throw_shape_error(function,
                      "saved comes from an in-place forward, which has overwritten x; expected a forward whose y "
                      "is not its x");
}

/// Adds the sums over samples of a channel's (2, samples, channels) cells to the parameters' gradients.
template <class Dw, class Db>
void put_channel_gradients(const Dw& dw, const Db& db, const double* cells, double* sums, const ChannelGrid& grid,
                           GradientMode mode) {
  if constexpr (is_none_v<Dw> && is_none_v<Db>) return;
  for (Index k = 0; k < 2 && grid.samples != 1; ++k)
    for (Index c = 0; c < grid.channels; ++c) {
      double sum = 0;
      for (Index s = 0; s < grid.samples; ++s) sum += cells[(k * grid.samples + s) * grid.channels + c];
      sums[k * grid.channels + c] = sum;
    }
  const double* const from = grid.samples == 1 ? cells : sums;
  put_gradient(dw, from + grid.channels, grid.channels, mode);
  put_gradient(db, from, grid.channels, mode);
}

/// The means of h and h * xhat over each of the channels first..last-1 of one sample, each of which is a group of its
/// own, from the sums of g and g * xhat: a pack at a time.
template <class Weight, class A, class Saved>
void mean_gradients(const Weight& weight, const double* kept, const Saved& saved, A* known, Index s, Index first,
                    Index last) {
  const Index channels = saved.call.grid.channels, cells = saved.call.grid.cells();
  for_each_pack(first, last, [&]<class V>(const V&, Index c) {
    const Index at = s * channels + c;
    const V count = max(splat<V>(1), load<V>(saved.moments_data() + at));
    for (Index k = 0; k < 2; ++k) {
      V sum = load<V>(kept + k * cells + at);
      if constexpr (!is_none_v<Weight>) sum *= load<V>(weight + c);
      store<V>(known + (3 + k) * cells + at, V(sum / count));
    }
  });
}

/// The statistics of a call's sets, to scratch: twice, because one pass of the backward reads them while what the other
/// knows is written. Returns (mean | rest | rstd | mean_h | mean_hxhat, cells), behind which (mean | rest | rstd) stand.
template <class Saved>
auto* spread_statistics(const ChannelGrid& grid, Saved& saved) {
  const Index groups = saved.call.groups, size = grid.channels / groups, cells = grid.cells();
  auto* const known = saved.known.data();
  if (size == 1) {
    for (auto* const to : {known, known + 5 * cells}) std::copy_n(saved.statistics.data(), 3 * cells, to);
    return known;
  }
  for (Index k = 0; k < 3; ++k)
    for (Index set = 0; set < grid.samples * groups; ++set) {
      const auto value = saved.statistics.data()[k * grid.samples * groups + set];
      std::fill_n(known + k * cells + set * size, size, value);
      std::fill_n(known + (5 + k) * cells + set * size, size, value);
    }
  return known;
}

/// `pass` with what it knows, and the place for what it keeps.
template <class M, class I, class P, class O, class Known, class... Kept>
auto with_known(const ChannelPass<M, I, P, O>& pass, const Known* known, Kept... kept) {
  return ChannelPass{pass.math, pass.grid, pass.inputs, pass.parameters, pass.outputs, known, kept...};
}

/// The means over group g of sample s, of `count` values, that the writing needs: from the sums of its cells, (g | g_xhat,
/// cells).
template <class Weight, class Saved>
void put_gradient_means(const ChannelGrid& grid, const Weight& weight, const double* sums, double count, Index s,
                        Index g, Saved& saved) {
  using A = typename Saved::Scalar;
  const Index size = grid.channels / saved.call.groups, cells = grid.cells();
  double h = 0, hxhat = 0;
  for (Index c = g * size; c < (g + 1) * size; ++c) {
    double factor = 1;
    if constexpr (!is_none_v<Weight>) factor = static_cast<double>(weight[c]);
    h += factor * sums[s * grid.channels + c];
    hxhat += factor * sums[cells + s * grid.channels + c];
  }
  A* const known = saved.known.data() + s * grid.channels + g * size;
  std::fill_n(known + 3 * cells, size, static_cast<A>(h / count));
  std::fill_n(known + 4 * cells, size, static_cast<A>(hxhat / count));
}

/// How many values group g of sample s had, for means over them.
template <class Saved>
double mean_count(const Saved& saved, Index g, Index s) {
  return std::max(1.0, static_cast<double>(saved.wide_moments(g, s).count));
}

/// A backward on the CPU, from passes without known values.
template <class Device, class SumPass, class WritePass, class Saved, class Dw, class Db>
  requires(!StreamDevice<Device>)
void channel_backward(const Device& device, const SumPass& sum_pass, const WritePass& write_pass, Saved& saved,
                      const Dw& dw, const Db& db, GradientMode mode, double bytes) {
  const ChannelGrid& grid = sum_pass.grid;
  const Index size = grid.channels / saved.call.groups;
  auto* const known = spread_statistics(grid, saved);
  double* const kept = saved.sums.data();  // (g | g_xhat, cells)
  const auto sums = with_known(sum_pass, known + 5 * grid.cells(), kept);
  const auto write = with_known(write_pass, known);
  const auto w = std::get<0>(sum_pass.parameters);
  const auto between = [&](Index s, Index first, Index last) {
    if (size == 1) return mean_gradients(w, kept, saved, known, s, first, last);
    for (Index g = first / size; g < last / size; ++g)
      put_gradient_means(grid, w, kept, mean_count(saved, g, s), s, g, saved);
  };
  channel_passes(device, sums, between, write, size, bytes);
  put_channel_gradients(dw, db, kept, kept + 4 * grid.cells(), grid, mode);
}

/// The arguments of a backward, checked, as passes without known values.
template <class SumPass, class WritePass, class Dw, class Db>
struct ChannelBackwardCall {
  SumPass sums;
  WritePass write;
  Dw dweight;
  Db dbias;
  double bytes;
};

template <class Activation, class Dy, class X, class Residual, class Mask, class Weight, class Bias, class Saved,
          class Dx, class Dresidual, class Dweight, class Dbias>
auto channel_backward_call(const char* function, const Dy& dy, const X& x, const Residual& residual, const Mask& mask,
                           const Weight& weight, const Bias& bias, const Saved& saved, Dx& dx, Dresidual& dresidual,
                           Dweight& dweight, Dbias& dbias, bool over_ranks) {
  static_assert(!is_none_v<Weight> || is_none_v<Dweight>, "evenkeel: there is no weight that dweight could belong to");
  using T = scalar_t<const X>;
  using A = accumulator_t<T>;
  constexpr bool identity = std::is_same_v<Activation, Identity>, adds = !is_none_v<Residual>;
  if (!saved.call.filled) throw_shape_error(function, "saved is empty, expected the one that the forward filled");
  const ChannelSpec spec = saved.call.spec;
  RowArguments arguments(function);
  if (spec.per_sample) arguments.keep_samples(spec.sample_axis);
  const auto x_rows = arguments.reference("x", x, spec.axis);
  const ChannelShape shape = channel_shape(function, arguments, spec);
  const ChannelGrid& grid = shape.grid;
  check_saved<Activation, Weight, Residual, Mask>(function, arguments, shape, scalar_name<T>(), saved, over_ranks);
  if (!identity && saved.call.has_bias == is_none_v<Bias>)
    throw_shape_error(
        function, saved.call.has_bias ? "bias is none, the forward had one" : "there is a bias, the forward had none");
  const auto dy_rows = arguments.input("dy", dy);
  const auto residual_rows = arguments.input("residual", residual);
  const auto mask_rows = arguments.mask("mask", mask);
  const auto w = arguments.parameter("weight", weight, "channels");
  const auto b = arguments.parameter("bias", bias, "channels");
  const auto dw = arguments.parameter("dweight", dweight, "channels");
  const auto db = arguments.parameter("dbias", dbias, "channels");
  const auto dx_rows = arguments.output("dx", dx);
  const auto outputs = [&] {
    if constexpr (adds)
      return std::tuple(shape.cells(dx_rows), shape.cells(arguments.output("dresidual", dresidual)));
    else
      return std::tuple(shape.cells(dx_rows));
  }();

  const auto inputs =
      std::tuple(shape.cells(dy_rows), shape.cells(x_rows), shape.cells(residual_rows), shape.cells(mask_rows));
  const auto parameters = std::tuple(w, b);
  const ChannelPass sums{ChannelGradientSums<A, Activation>{}, grid, inputs, parameters, std::tuple()};
  const ChannelPass write{ChannelBackward<A, Activation, adds, false>{}, grid, inputs, parameters, outputs};
  const double bytes = 5.0 * sizeof(T) * static_cast<double>(grid.cells()) * static_cast<double>(grid.count());
  return ChannelBackwardCall<std::remove_const_t<decltype(sums)>, std::remove_const_t<decltype(write)>,
                             std::remove_const_t<decltype(dw)>, std::remove_const_t<decltype(db)>>{sums, write, dw, db,
                                                                                                   bytes};
}

template <class Activation, class Device, class Dy, class X, class Residual, class Mask, class Weight, class Bias,
          class Saved, class Dx, class Dresidual, class Dweight, class Dbias>
void channel_norm_backward(const char* function, const Device& device, const Dy& dy, const X& x,
                           const Residual& residual, const Mask& mask, const Weight& weight, const Bias& bias,
                           Saved& saved, Dx& dx, Dresidual& dresidual, Dweight& dweight, Dbias& dbias,
                           GradientMode mode) {
  require_device<Device>();
  const auto call = channel_backward_call<Activation>(function, dy, x, residual, mask, weight, bias, saved, dx,
                                                      dresidual, dweight, dbias, false);
  channel_backward(device, call.sums, call.write, saved, call.dweight, call.dbias, mode, call.bytes);
}

}  // namespace EVENKEEL_ISA
}  // namespace detail
}  // namespace evenkeel
