/// ReZero residual block: y = x + alpha * f(x), one learned scalar alpha that starts at 0. T. Bachlechner et al.,
/// "ReZero is All You Need", 2020, equation 1. SkipInit is the same block: S. De, S. Smith, "Batch Normalization Biases
/// Residual Blocks Towards the Identity Function in Deep Networks", 2020.
#pragma once

#include "evenkeel/parameter.hpp"
#include "evenkeel/residual/residual_block.hpp"

#include <utility>

namespace evenkeel::inline EVENKEEL_ISA {

/// y = x + alpha * f with a learned scalar, "alpha", of type T, exempt from weight decay.
template <class T, class Storage = HostStorage>
struct ScalarJoin : Join<T> {
  Parameter<T, Storage> alpha{"alpha", 1, false};

  explicit ScalarJoin(double start = 0) : start_(start) { reset(); }

  /// Gives alpha its start value again.
  void reset() { alpha.fill(static_cast<T>(start_)); }

  template <class Device, class X, class F, class Y>
  void join(const Device& device, const X& x, const F& f, Y& y) {
    detail::scaled_sum("residual_sum", device, x, f, y, none, alpha.value());
  }
  template <class Device, class Dy, class F, class Df>
  void pull(const Device& device, const Dy& dy, const F& f, Df& df) {
    detail::require_device<Device>();
    detail::RowArguments arguments("ScalarJoin::pull");
    const auto dy_rows = arguments.reference("dy", dy, detail::contiguous_axis<Dy>());
    const auto f_rows = arguments.input("f", f);
    const auto out = arguments.output("df", df);
    const Index rows = arguments.grid().rows();
    row_sums_.ensure(rows);
    const auto alpha_rows = detail::one_for_all<T>(alpha.value());
    detail::row_pass(device, detail::RowPass{detail::ResidualSumBackward<A, None, true, false>{}, arguments.grid(),
                                             std::tuple(dy_rows, f_rows, alpha_rows, none), std::tuple(none),
                                             std::tuple(out), none, row_sums_.data()});
    const A* const shares = row_sums_.data();
    detail::put_total(device, shares, rows, GradientMode::accumulate, alpha.gradient());
  }
  template <class F>
  void for_each_parameter(F&& f) {
    f(alpha.ref());
  }
  template <class Device, class X>
  void reserve_join(const Device&, const X& x) {
    detail::RowArguments arguments("reserve");
    arguments.reference("x", x, detail::contiguous_axis<X>());
    row_sums_.reserve(arguments.grid().rows());
  }

 private:
  using A = accumulator_t<T>;
  double start_;
  typename Storage::template Buffer<A> row_sums_;  // (rows)
};

/// T is the scalar of the activations and of alpha; see ResidualBlock for the sublayer f.
///
///     ek::ReZero<float, Attention> block(Attention(width));
template <class T, class Sublayer, class Storage = HostStorage>
class ReZero : public ResidualBlock<None, ScalarJoin<T, Storage>, Sublayer, T, Storage> {
 public:
  explicit ReZero(Sublayer block_sublayer)
      : ResidualBlock<None, ScalarJoin<T, Storage>, Sublayer, T, Storage>(none, ScalarJoin<T, Storage>(),
                                                                          std::move(block_sublayer)) {}
};

/// SkipInit: ReZero under the name that it has where it stands in for the batch norms of a branch.
template <class T, class Sublayer, class Storage = HostStorage>
using SkipInit = ReZero<T, Sublayer, Storage>;

}  // namespace evenkeel::inline EVENKEEL_ISA
