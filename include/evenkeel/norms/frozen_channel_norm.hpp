/// BatchNorm and InstanceNorm with running statistics in the place of the data's own: inference, and training with frozen
/// statistics.
#pragma once

#include "evenkeel/norms/channel_norm.hpp"

#include <tuple>

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// The shape of a call that reads running statistics.
template <class Running>
ChannelShape frozen_shape(const char* function, const RowArguments& arguments, const Running& running) {
  const RowGrid rows = arguments.grid();
  if (running.channels() != rows.length)
    throw_shape_error(function, "running has ", running.channels(), " channels, x has ", rows.length, " (",
                      arguments.shape(), ")");
  return {channel_grid(rows, SampleLevel::none), SampleLevel::none, 1, rows.length};
}

/// Forward with running statistics, (mean | var, channels): inference.
template <class Activation, class Device, class X, class Residual, class Mask, class Weight, class Bias, class Running,
          class Y>
void frozen_channel_norm(const char* function, const Device& device, const X& x, const Residual& residual,
                         const Mask& mask, const Weight& weight, const Bias& bias, const Running& running, Y& y,
                         const ChannelSpec& spec) {
  require_device<Device>();
  using T = scalar_t<const X>;
  using A = accumulator_t<T>;
  RowArguments arguments(function);
  const auto x_rows = arguments.reference("x", x, spec.axis);
  const auto residual_rows = arguments.input("residual", residual);
  const auto mask_rows = arguments.mask("mask", mask);
  const auto w = arguments.parameter("weight", weight, "channels");
  const auto b = arguments.parameter("bias", bias, "channels");
  const auto y_rows = arguments.output("y", y);
  const A eps = resolved_eps<A>(function, spec.eps);
  const ChannelShape shape = frozen_shape(function, arguments, running);
  channel_write(device,
                ChannelPass{FrozenForward<A, Activation>{{}, eps}, shape.grid,
                            std::tuple(shape.cells(x_rows), shape.cells(residual_rows), shape.cells(mask_rows)),
                            std::tuple(w, b), std::tuple(shape.cells(y_rows)), running.data()},
                2.0 * sizeof(T) * static_cast<double>(shape.grid.cells()) * static_cast<double>(shape.grid.count()));
}

template <class Activation, class Device, class Dy, class X, class Residual, class Mask, class Weight, class Bias,
          class Running, class Saved, class Dx, class Dresidual, class Dweight, class Dbias>
void frozen_channel_norm_backward(const char* function, const Device& device, const Dy& dy, const X& x,
                                  const Residual& residual, const Mask& mask, const Weight& weight, const Bias& bias,
                                  const Running& running, Saved& scratch, Dx& dx, Dresidual& dresidual,
                                  Dweight& dweight, Dbias& dbias, const ChannelSpec& spec, GradientMode mode) {
  require_device<Device>();
  static_assert(!is_none_v<Weight> || is_none_v<Dweight>, "evenkeel: there is no weight that dweight could belong to");
  using T = scalar_t<const X>;
  using A = accumulator_t<T>;
  constexpr bool adds = !is_none_v<Residual>;
  RowArguments arguments(function);
  const auto x_rows = arguments.reference("x", x, spec.axis);
  const auto dy_rows = arguments.input("dy", dy);
  const auto residual_rows = arguments.input("residual", residual);
  const auto mask_rows = arguments.mask("mask", mask);
  const auto w = arguments.parameter("weight", weight, "channels");
  const auto b = arguments.parameter("bias", bias, "channels");
  const auto dw = arguments.parameter("dweight", dweight, "channels");
  const auto db = arguments.parameter("dbias", dbias, "channels");
  const auto dx_rows = arguments.output("dx", dx);
  const A eps = resolved_eps<A>(function, spec.eps);
  const ChannelShape shape = frozen_shape(function, arguments, running);
  const ChannelGrid& grid = shape.grid;
  const auto outputs = [&] {
    if constexpr (adds)
      return std::tuple(shape.cells(dx_rows), shape.cells(arguments.output("dresidual", dresidual)));
    else
      return std::tuple(shape.cells(dx_rows));
  }();
  const auto inputs =
      std::tuple(shape.cells(dy_rows), shape.cells(x_rows), shape.cells(residual_rows), shape.cells(mask_rows));
  const auto parameters = std::tuple(w, b);
  const double bytes = 3.0 * sizeof(T) * static_cast<double>(grid.cells()) * static_cast<double>(grid.count());
  const ChannelPass write{
      FrozenBackward<A, Activation, adds>{{}, eps}, grid, inputs, parameters, outputs, running.data()};
  if constexpr (is_none_v<Dweight> && is_none_v<Dbias>) {
    channel_write(device, write, bytes);
  } else if constexpr (CpuDevice<Device>) {
    scratch.sums.reserve(4 * grid.cells() + 2 * grid.channels);
    double* const kept = scratch.sums.data();
    channel_sums(device,
                 ChannelPass{FrozenGradientSums<A, Activation>{{}, eps}, grid, inputs, parameters, std::tuple(),
                             running.data(), kept},
                 bytes);
    channel_write(device, write, bytes);
    put_channel_gradients(dw, db, kept, kept + 4 * grid.cells(), grid, mode);
  } else {
    frozen_gradients(
        device,
        ChannelPass{FrozenGradientSums<A, Activation>{{}, eps}, grid, inputs, parameters, std::tuple(), running.data()},
        scratch, dw, db, mode);
    channel_write(device, write, bytes);
  }
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
