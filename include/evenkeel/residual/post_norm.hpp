/// Post-norm residual block: y = norm(x + f(x)). A. Vaswani et al., "Attention Is All You Need", 2017, section 3.1.
#pragma once

#include "evenkeel/residual/residual_block.hpp"

#include <utility>

namespace evenkeel::inline EVENKEEL_ISA {

/// y = norm(stream_scale * x + f), Scale a double, or None for 1. The sum and its norm are one pass over the data.
template <class Norm, class Scale = None>
struct SumNormJoin : Join<typename Norm::Scalar> {
  static constexpr bool adds_to_stream = false;

  Norm norm;
  [[no_unique_address]] Scale stream_scale;

  explicit SumNormJoin(Norm join_norm) requires(is_none_v<Scale>) : norm(std::move(join_norm)) {}
  SumNormJoin(Norm join_norm, Scale scale) : norm(std::move(join_norm)), stream_scale(scale) {}

  template <class Device, class X, class F, class Y>
  void join(const Device& device, const X& x, F& f, Y& y) {
    if constexpr (is_none_v<Scale>)
      norm.add_forward(device, f, x, f, y);  // f becomes the sum, which is what the backward needs
    else
      norm.add_forward(device, f, x, stream_scale, f, y);
  }
  template <class Device, class Dy, class Sum, class Df>
  void pull(const Device& device, const Dy& dy, const Sum& sum, Df& df) {
    norm.add_backward(device, dy, none, sum, df);
  }
  template <class Device, class Dy, class Df, class G, class Dx>
  void merge(const Device& device, const Dy&, const Df& df, const G& g, Dx&& dx) {
    if constexpr (is_none_v<Scale>)
      residual_sum(device, g, df, dx);
    else
      residual_sum(device, g, df, dx, static_cast<accumulator_t<typename Norm::Scalar>>(stream_scale));
  }
  template <class F>
  void for_each_parameter(F&& f) {
    norm.for_each_parameter(f);
  }
  template <class Device, class X>
  void reserve_join(const Device& device, const X& x) {
    detail::reserve_saved(norm, device, x);
  }
};

/// Composes a norm layer and a sublayer f, as PreNorm does.
///
///     ek::PostNorm block(ek::LayerNorm<float>(width), Attention(width));
template <class Norm, class Sublayer, class T = typename Norm::Scalar, class Storage = HostStorage>
class PostNorm : public ResidualBlock<None, SumNormJoin<Norm>, Sublayer, T, Storage> {
 public:
  PostNorm(Norm block_norm, Sublayer block_sublayer)
      : ResidualBlock<None, SumNormJoin<Norm>, Sublayer, T, Storage>(none, SumNormJoin<Norm>(std::move(block_norm)),
                                                                     std::move(block_sublayer)) {}
};

}  // namespace evenkeel::inline EVENKEEL_ISA
