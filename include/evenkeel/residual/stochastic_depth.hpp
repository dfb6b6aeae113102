/// Stochastic depth: in training a sample's branch is dropped with a probability, and what stays is scaled up. G. Huang
/// et al., "Deep Networks with Stochastic Depth", 2016, section 3, with a draw for each sample and the scale in
/// training, so that inference needs none.
///
///     training:   y = x + f(x) * [u >= rate]/(1 - rate),  u uniform in [0, 1)
///     inference:  y = x + f(x)
#pragma once

#include "evenkeel/init/random.hpp"
#include "evenkeel/residual/residual_block.hpp"

#include <cstdint>
#include <tuple>
#include <utility>

namespace evenkeel {

/// Options of StochasticDepth.
struct StochasticDepthOptions {
  double rate = 0;         ///< the probability that a sample's branch is dropped, from 0 to below 1
  std::uint64_t seed = 0;  ///< of the network
  std::uint64_t layer = 0;
  int sample_axis = 0;  ///< the first or the last axis
};

namespace detail {

template <class Device>
  requires(!StreamDevice<Device>)
void draw_uniforms(const Device&, const Uniforms& draws) { draws.stream.fill_uniform(draws.data, draws.count); }

/// All axes but the sample axis.
template <class X>
Axes axes_of_sample(const char* function, const X& x, int sample_axis) {
  const Layout layout = layout_of(x);
  const int named = sample_axis < 0 ? sample_axis + layout.rank : sample_axis;
  if (layout.rank < 2 || (named != 0 && named != layout.rank - 1))
    throw_shape_error(function, "the sample axis is ", sample_axis,
                      ", expected the first or the last of two or more axes (x is ", text(layout), ")");
  Axes axes;
  for (int a = 0; a < layout.rank; ++a)
    if (a != named) axes.axis[static_cast<std::size_t>(axes.count++)] = a;
  return axes;
}

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// y = x + f, or in training x + f * [u >= rate]/(1 - rate). The uniform u is a function of (seed, layer, step, sample)
/// alone: value `sample` of a stream that belongs to the layer's step. What a dropped branch holds does not matter, NaN
/// and infinity included.
template <class T, class Storage = HostStorage>
class StochasticJoin : public Join<T> {
 public:
  static constexpr bool keeps_branch = false;

  /// Throws ShapeError if the rate is not in [0, 1).
  explicit StochasticJoin(const StochasticDepthOptions& options) : options_(options) {
    if (!(options.rate >= 0 && options.rate < 1))
      detail::throw_shape_error("StochasticDepth", "the rate is ", options.rate, ", expected 0 or more and below 1");
  }

  bool training = true;    ///< while false, forward drops nothing
  std::uint64_t step = 0;  ///< of the training, below 2^40: each has its own draws

  const StochasticDepthOptions& options() const { return options_; }

  template <class Device, class X, class F, class Y>
  void join(const Device& device, const X& x, const F& f, Y& y) {
    draws_ = training && options_.rate > 0;
    if (!draws_) return residual_sum(device, x, f, y);
    detail::RowArguments arguments(name);
    const auto rows = arguments.reference("x", x, detail::axes_of_sample(name, x, options_.sample_axis));
    const auto f_rows = arguments.input("f", f);
    const Index samples = arguments.grid().rows();
    uniforms_.ensure(samples);
    draw_uniforms(device, detail::Uniforms{stream(), uniforms_.data(), samples});
    run(device, arguments, rows, f_rows, y);
  }
  /// With the draws of the last forward.
  template <class Device, class Dy, class F, class Df>
  void pull(const Device& device, const Dy& dy, const F&, Df& df) {
    if (!draws_) return detail::scaled_sum(name, device, none, dy, df, none);
    detail::RowArguments arguments(name);
    const auto rows = arguments.reference("dy", dy, detail::axes_of_sample(name, dy, options_.sample_axis));
    run(device, arguments, none, rows, df);
  }
  template <class Device, class X>
  void reserve_join(const Device&, const X& x) {
    detail::RowArguments arguments(name);
    arguments.reference("x", x, detail::axes_of_sample(name, x, options_.sample_axis));
    uniforms_.reserve(arguments.grid().rows());
  }

 private:
  static constexpr const char* name = "StochasticDepth";

  RandomStream stream() const { return {options_.seed, stream_id("stochastic_depth") + (options_.layer << 40) + step}; }
  template <class Device, class X, class F, class Y>
  void run(const Device& device, detail::RowArguments& arguments, const X& x, const F& f, Y& y) {
    detail::require_device<Device>();
    using A = accumulator_t<T>;
    const Eigen::Map<const Eigen::ArrayXf> uniforms(uniforms_.data(), arguments.grid().rows());
    const auto draws = arguments.row_mask("draws", uniforms);
    const auto out = arguments.output("y", y);
    const A scale = static_cast<A>(1 / (1 - options_.rate));
    detail::row_pass(
        device, detail::RowPass{detail::ResidualSum<A, A>{{}, {scale, static_cast<float>(options_.rate)}},
                                arguments.grid(), std::tuple(f, x, none, draws), std::tuple(none), std::tuple(out)});
  }

  StochasticDepthOptions options_;
  bool draws_ = false;
  typename Storage::template Buffer<float> uniforms_;  // (samples)
};

/// T is the scalar of the activations; see ResidualBlock for the sublayer f, and for one behind a norm:
/// ResidualBlock(norm, StochasticJoin<float>(options), f).
///
///     ek::StochasticDepth<float, Attention> block(Attention(width), {.rate = 0.1, .seed = 42, .layer = 3});
///     block.step = 100;           // before each forward of the training
///     block.training = false;     // for inference
template <class T, class Sublayer, class Storage = HostStorage>
class StochasticDepth : public ResidualBlock<None, StochasticJoin<T, Storage>, Sublayer, T, Storage> {
 public:
  StochasticDepth(Sublayer block_sublayer, const StochasticDepthOptions& options)
      : ResidualBlock<None, StochasticJoin<T, Storage>, Sublayer, T, Storage>(none, StochasticJoin<T, Storage>(options),
                                                                              std::move(block_sublayer)) {}
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
