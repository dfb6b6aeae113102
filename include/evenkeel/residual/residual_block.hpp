/// Residual blocks: a placement of norms times a scale of the branch. Every block of this folder is one of these:
///
///     y = join(x, f(norm(x)))        norm    PreNorm, Sandwich, NfnetBlock          or none
///                                    join    what brings stream and branch together: ConstantJoin, ScalarJoin,
///                                            FeatureJoin, OutputNormJoin, SumNormJoin, StochasticJoin
///
/// and combinations without a name of their own are made the same way.
#pragma once

#include "evenkeel/detail/activation.hpp"
#include "evenkeel/none.hpp"
#include "evenkeel/residual/residual_sum.hpp"

#include <type_traits>
#include <utility>

namespace evenkeel {

namespace detail {

/// The norm of the branch's input, or none.
template <class Norm>
struct BranchInput {
  Norm norm;
};
template <>
struct BranchInput<None> {
  explicit BranchInput(None) {}
};

/// Makes room in what has a reserve() or a `saved`.
template <class Layer, class Device, class X>
void reserve_saved(Layer& layer, const Device& device, const X& x) {
  if constexpr (requires { layer.reserve(device, x); })
    layer.reserve(device, x);
  else if constexpr (requires { layer.saved.reserve(device, x, layer.options().axis); })
    layer.saved.reserve(device, x, layer.options().axis);
}

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// What a join is, and the parts of it that most share. A join J of activations of T offers
///
///     void join(device, x, f, y)             y = the sum of stream x and branch f, or a norm of it; may write to f
///     void pull(device, dy, f, df)           df = the gradient of f; f as join left it; adds parameter gradients
///     void merge(device, dy, df, g, dx)      dx = g + the gradient that comes through the stream
///     void for_each_parameter(f), void reserve_join(device, x)
///     static constexpr bool keeps_branch     whether pull reads f; if not, f is y itself
///     static constexpr bool passes_gradient  whether df is dy itself; then pull is not called
///     static constexpr bool adds_to_stream   whether the gradient through the stream is dy
template <class T>
struct Join {
  using Scalar = T;
  static constexpr bool keeps_branch = true, passes_gradient = false, adds_to_stream = true;

  template <class Device, class Dy, class Df, class G, class Dx>
  void merge(const Device& device, const Dy& dy, const Df&, const G& g, Dx&& dx) {
    residual_sum(device, dy, g, dx);
  }
  template <class Device, class X>
  void reserve_join(const Device&, const X&) {}
  template <class F>
  void for_each_parameter(F&&) {}
};

/// y = x + scale * f, Scale a double, or None for 1.
template <class T, class Scale = None>
struct ConstantJoin : Join<T> {
  static constexpr bool keeps_branch = false, passes_gradient = is_none_v<Scale>;

  [[no_unique_address]] Scale scale;

  ConstantJoin() requires(is_none_v<Scale>) {}
  explicit ConstantJoin(Scale constant) : scale(constant) {}

  template <class Device, class X, class F, class Y>
  void join(const Device& device, const X& x, const F& f, Y& y) {
    detail::scaled_sum("residual_sum", device, x, f, y, constant());
  }
  template <class Device, class Dy, class F, class Df>
  void pull(const Device& device, const Dy& dy, const F&, Df&& df) {
    detail::scaled_sum("residual_sum", device, none, dy, df, constant());
  }

 private:
  auto constant() const {
    if constexpr (is_none_v<Scale>)
      return none;
    else
      return static_cast<accumulator_t<T>>(scale);
  }
};

/// A residual block y = join(x, f(norm(x))).
///
/// Norm is none or a layer with forward(device, x, y) and add_backward(device, dy, dsum, x, dx), as RmsNorm and
/// LayerNorm are. The sublayer f is any type with
///     forward(device, x, y), backward(device, dy, x, dx), for_each_parameter(f)
/// whose y has the shape and scalar of its x. T is the scalar of the activations, Storage where they and the parameters
/// lie; with another storage than the host's, reserve(device, x) comes before the first forward.
///
///     ek::ResidualBlock block(ek::RmsNorm<float>(width), ek::FeatureJoin<float>(width, 1e-5), Attention(width));
///     block.forward(device, x, y);
///     block.backward(device, dy, x, dx);
template <class Norm, class BlockJoin, class Sublayer, class T = typename BlockJoin::Scalar,
          class Storage = HostStorage>
class ResidualBlock : public detail::BranchInput<Norm>, public BlockJoin {
  static constexpr bool has_norm = !is_none_v<Norm>;
  static_assert(!has_norm || BlockJoin::adds_to_stream,
                "evenkeel: a join that changes the stream takes no norm before the branch");

 public:
  ResidualBlock(Norm block_norm, BlockJoin block_join, Sublayer block_sublayer)
      : detail::BranchInput<Norm>{std::move(block_norm)},
        BlockJoin(std::move(block_join)),
        sublayer(std::move(block_sublayer)) {}

  /// y may not be x: the backward needs x.
  template <class Device, class X, class Y>
  void forward(const Device& device, const X& x, Y&& y) {
    detail::require_apart("ResidualBlock::forward", x, y);
    const auto branch = [&](const auto& input) {
      if constexpr (BlockJoin::keeps_branch) {
        auto f = branch_.like(x);
        sublayer.forward(device, input, f);
        this->join(device, x, f, y);
      } else {
        sublayer.forward(device, input, y);
        this->join(device, x, y, y);
      }
    };
    if constexpr (has_norm) {
      auto normed = normed_.like(x);
      this->norm.forward(device, x, normed);
      branch(normed);
    } else {
      branch(x);
    }
  }

  /// dx is written and may be dy, parameter gradients are accumulated. x is the forward's. Once for each forward.
  template <class Device, class Dy, class X, class Dx>
  void backward(const Device& device, const Dy& dy, const X& x, Dx&& dx) {
    auto f = branch_.like(x);
    const auto branch = [&](const auto& df) {
      auto& g = f;  // the gradient of the branch's input, not yet in dx, which may be dy
      if constexpr (has_norm) {
        sublayer.backward(device, df, normed_.like(x), g);
        this->norm.add_backward(device, g, dy, x, dx);
      } else {
        sublayer.backward(device, df, x, g);
        this->merge(device, dy, df, g, dx);
      }
    };
    if constexpr (BlockJoin::passes_gradient) {
      branch(dy);
    } else {
      auto df = dbranch_.like(x);
      this->pull(device, dy, f, df);
      branch(df);
    }
  }

  template <class F>
  void for_each_parameter(F&& f) {
    if constexpr (has_norm) this->norm.for_each_parameter(f);
    sublayer.for_each_parameter(f);
    BlockJoin::for_each_parameter(f);
  }

  /// Makes room for a forward and a backward over x in the block itself, not in its sublayer.
  template <class Device, class X>
  void reserve(const Device& device, const X& x) {
    branch_.reserve(x);
    if constexpr (!BlockJoin::passes_gradient) dbranch_.reserve(x);
    if constexpr (has_norm) {
      normed_.reserve(x);
      detail::reserve_saved(this->norm, device, x);
    }
    this->reserve_join(device, x);
  }

  Sublayer sublayer;

 private:
  detail::Activation<T, Storage> normed_, branch_, dbranch_;  // (the shape of x)
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
