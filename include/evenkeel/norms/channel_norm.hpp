/// What BatchNorm, GroupNorm and InstanceNorm have in common: from checked arguments to passes over channels.
#pragma once

#include "evenkeel/detail/arguments.hpp"
#include "evenkeel/detail/channel_cpu.hpp"
#include "evenkeel/detail/channel_norm_math.hpp"
#include "evenkeel/distributed/communicator.hpp"
#include "evenkeel/moments.hpp"
#include "evenkeel/norms/channel_saved.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <numeric>
#include <string_view>
#include <tuple>

namespace evenkeel {
namespace detail {
inline namespace EVENKEEL_ISA {

template <class Saved, class X>
concept ChannelSavedOf = std::same_as<typename Saved::Scalar, accumulator_t<scalar_t<const X>>>;

/// The statistics of group `g` of sample `s`, from its cells' moments, to `saved` and to its channels' known values.
template <bool Local, class Pass, class Saved>
void settle_group(const Pass& pass, Saved& saved, double eps, Index s, Index g) {
  using A = typename Saved::Scalar;
  const ChannelGrid& grid = pass.grid;
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
    saved.statistics.data()[(k * grid.samples + s) * saved.call.groups + g] = values[k];
    std::fill_n(saved.known.data() + (k * grid.samples + s) * grid.channels + g * size, size, values[k]);
  }
}

/// Throws, before anything is written, where a mean would be taken over one value.
inline void check_count(const char* function, const RowArguments& arguments, const char* unit, std::int64_t count) {
  if (count == 1)
    throw_shape_error(function, "x has 1 value per ", unit, ", expected 2 or more in training (", arguments.shape(),
                      ")");
}

/// The exchange between the statistics and their use: each channel's moments become those of all ranks' data, merged in
/// the order of the ranks, so every rank has the same bits.
template <Communicator C>
void exchange_moments(C& communicator, double* kept, double* gathered, Index channels) {
  communicator.all_gather(kept, gathered, 4 * channels);
  for (Index c = 0; c < channels; ++c) {
    Moments<double> all;
    for (int rank = 0; rank < communicator.size(); ++rank) {
      const double* const m = gathered + rank * 4 * channels + c;
      all = merge(all, Moments<double>{static_cast<std::int64_t>(m[0]), m[channels], m[2 * channels], m[3 * channels]});
    }
    const double merged[4] = {static_cast<double>(all.count), all.shift, all.delta, all.M2};
    for (Index k = 0; k < 4; ++k) kept[k * channels + c] = merged[k];
  }
}

/// Forward with the statistics of the data: of this rank's, or of all ranks' together.
template <class Activation, class Device, class X, class Residual, class Mask, class Weight, class Bias, class Y,
          class Saved, Communicator C = LocalCommunicator>
void channel_norm(const char* function, const Device& device, const X& x, const Residual& residual, const Mask& mask,
                  const Weight& weight, const Bias& bias, Y& y, Saved& saved, const ChannelSpec& spec,
                  C&& communicator = {}) {
  require_device<Device>();
  static_assert(ActivationFunction<Activation>);
  using T = scalar_t<const X>;
  using A = accumulator_t<T>;
  RowArguments arguments(function);
  if (spec.per_sample) arguments.keep_samples(spec.sample_axis);
  const auto x_rows = arguments.reference("x", x, spec.axis);
  const auto residual_rows = arguments.input("residual", residual);
  const auto mask_rows = arguments.mask("mask", mask);
  const auto w = arguments.parameter("weight", weight, "channels");
  const auto b = arguments.parameter("bias", bias, "channels");
  const auto y_rows = arguments.output("y", y);
  const double eps = resolved_eps<A>(function, spec.eps);
  const ChannelShape shape = channel_shape(function, arguments, spec);
  const ChannelGrid& grid = shape.grid;
  const Index size = grid.channels / shape.groups;
  constexpr bool masked = !is_none_v<Mask>, local = is_local_v<C>, counted_here = !masked && local;
  if (!local && spec.per_sample)
    throw_shape_error(function, "statistics over ranks and over ghost batches exclude each other");
  if (counted_here) check_count(function, arguments, spec.unit, grid.count() * size);

  // A call that throws changes nothing but scratch.
  if constexpr (CpuDevice<Device>)
    saved.sums.reserve(4 * (local ? 1 : communicator.size() + 1) * grid.cells() + 2 * grid.channels);
  double* const kept = saved.sums.data();  // (count | shift | delta | M2, cells)
  const ChannelPass sums{ChannelMoments<A, masked>{grid.count()},
                         grid,
                         std::tuple(shape.cells(x_rows), shape.cells(mask_rows)),
                         std::tuple(),
                         std::tuple(),
                         none,
                         kept};
  const double bytes = 3.0 * sizeof(T) * static_cast<double>(grid.cells()) * static_cast<double>(grid.count());
  if constexpr (CpuDevice<Device> && !counted_here) {
    channel_sums(device, sums, bytes);
    if constexpr (!local) exchange_moments(communicator, kept, kept + 4 * grid.cells(), grid.channels);
    for (Index set = 0; set < grid.samples * shape.groups; ++set) {
      const double* const counts = kept + set * size;
      check_count(function, arguments, spec.unit,
                  static_cast<std::int64_t>(std::accumulate(counts, counts + size, 0.0)));
    }
  }
  saved.begin(device, {spec, grid, shape.groups, scalar_name<T>(), &activation_tag<Activation>, !is_none_v<Weight>,
                       !is_none_v<Bias>, !is_none_v<Residual>, masked,
                       grid.cells() * grid.count() > 0 && static_cast<const void*>(y_rows.data) == x_rows.data, true});
  const A* const known = saved.known.data();  // (mean | rest | rstd, cells)
  const ChannelPass write{ChannelForward<A, Activation>{},
                          grid,
                          std::tuple(shape.cells(x_rows), shape.cells(residual_rows), shape.cells(mask_rows)),
                          std::tuple(w, b),
                          std::tuple(shape.cells(y_rows)),
                          known};
  if constexpr (CpuDevice<Device>) {
    const auto between = [&](Index s, Index first, Index last) {
      for (Index g = first / size; g < last / size; ++g) settle_group<local>(sums, saved, eps, s, g);
    };
    if constexpr (!counted_here) {
      for (Index s = 0; s < grid.samples; ++s) between(s, 0, grid.channels);
      channel_write(device, write, bytes);
    } else {
      channel_passes(device, sums, between, write, size, bytes);
    }
  } else {
    channel_forward(device, sums, write, saved, eps, communicator);
  }
}

/// Throws unless `saved` was filled by a forward over data like these.
template <class Activation, class Weight, class Residual, class Mask, class Saved>
void check_saved(const char* function, const RowArguments& arguments, const ChannelShape& shape, const char* scalar,
                 const Saved& saved) {
  const ChannelCall& call = saved.call;
  if (call.grid.channels != shape.grid.channels || call.grid.samples != shape.grid.samples ||
      call.grid.count() != shape.grid.count())
    throw_shape_error(function, "saved holds ", call.grid.samples, " x ", call.grid.channels, " channels of ",
                      call.grid.count(), " values, ", arguments.shape());
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
  for (Index k = 0; k < 2; ++k)
    for (Index c = 0; c < grid.channels; ++c) {
      double sum = 0;
      for (Index s = 0; s < grid.samples; ++s) sum += cells[(k * grid.samples + s) * grid.channels + c];
      sums[k * grid.channels + c] = sum;
    }
  put_gradient(dw, sums + grid.channels, grid.channels, mode);
  put_gradient(db, sums, grid.channels, mode);
}

/// A backward on the CPU, from passes without known values. Parameter gradients stay this rank's own: a trainer averages
/// those of all parameters.
template <class Device, class SumPass, class WritePass, class Saved, class Dw, class Db, Communicator C>
  requires(!StreamDevice<Device>)
void channel_backward(const Device& device, const SumPass& sum_pass, const WritePass& write_pass, Saved& saved,
                      const Dw& dw, const Db& db, GradientMode mode, C& communicator) {
  using A = typename Saved::Scalar;
  const ChannelGrid& grid = sum_pass.grid;
  const Index groups = saved.call.groups, size = grid.channels / groups, cells = grid.cells();
  A* const known = saved.known.data();  // (mean | rest | rstd | mean_h | mean_hxhat, cells), then (mean | rest | rstd)
  A* const statistics = known + 5 * cells;
  for (Index k = 0; k < 3; ++k)
    for (Index set = 0; set < grid.samples * groups; ++set) {
      const A value = saved.statistics.data()[k * grid.samples * groups + set];
      std::fill_n(known + k * cells + set * size, size, value);
      std::fill_n(statistics + k * cells + set * size, size, value);
    }
  double* const kept = saved.sums.data();  // (g | g_xhat, cells)
  const A *const read_statistics = statistics, *const read_known = known;
  const ChannelPass sums{sum_pass.math,   grid, sum_pass.inputs, sum_pass.parameters, sum_pass.outputs,
                         read_statistics, kept};
  const ChannelPass write{write_pass.math,    grid,      write_pass.inputs, write_pass.parameters,
                          write_pass.outputs, read_known};
  const auto w = std::get<0>(sum_pass.parameters);
  const auto between = [&](Index s, Index first, Index last) {
    for (Index g = first / size; g < last / size; ++g) {
      double h = 0, hxhat = 0;
      for (Index c = g * size; c < (g + 1) * size; ++c) {
        double factor = 1;
        if constexpr (!is_none_v<decltype(w)>) factor = static_cast<double>(w[c]);
        h += factor * kept[s * grid.channels + c];
        hxhat += factor * kept[cells + s * grid.channels + c];
      }
      const double count = std::max(1.0, static_cast<double>(saved.wide_moments(g, s).count));
      std::fill_n(known + 3 * cells + s * grid.channels + g * size, size, static_cast<A>(h / count));
      std::fill_n(known + 4 * cells + s * grid.channels + g * size, size, static_cast<A>(hxhat / count));
    }
  };
  using T = std::remove_const_t<std::remove_pointer_t<decltype(std::get<1>(sum_pass.inputs).data)>>;
  const double bytes = 5.0 * sizeof(T) * static_cast<double>(cells) * static_cast<double>(grid.count());
  double* const over_samples = saved.sums.data() + 4 * cells;
  if constexpr (is_local_v<C>) {
    channel_passes(device, sums, between, write, size, bytes);
    put_channel_gradients(dw, db, kept, over_samples, grid, mode);
  } else {
    channel_sums(device, sums, bytes);
    put_channel_gradients(dw, db, kept, over_samples, grid, mode);
    communicator.all_reduce_sum(kept, 2 * cells);
    between(0, 0, grid.channels);
    channel_write(device, write, bytes);
  }
}

template <class Activation, class Device, class Dy, class X, class Residual, class Mask, class Weight, class Bias,
          class Saved, class Dx, class Dresidual, class Dweight, class Dbias, Communicator C = LocalCommunicator>
void channel_norm_backward(const char* function, const Device& device, const Dy& dy, const X& x,
                           const Residual& residual, const Mask& mask, const Weight& weight, const Bias& bias,
                           Saved& saved, Dx& dx, Dresidual& dresidual, Dweight& dweight, Dbias& dbias,
                           GradientMode mode, C&& communicator = {}) {
  require_device<Device>();
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
  check_saved<Activation, Weight, Residual, Mask>(function, arguments, shape, scalar_name<T>(), saved);
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
  channel_backward(device, ChannelPass{ChannelGradientSums<A, Activation>{}, grid, inputs, parameters, std::tuple()},
                   ChannelPass{ChannelBackward<A, Activation, adds, false>{}, grid, inputs, parameters, outputs}, saved,
                   dw, db, mode, communicator);
}

}  // namespace EVENKEEL_ISA
}  // namespace detail
}  // namespace evenkeel
