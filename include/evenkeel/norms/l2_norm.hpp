/// L2 norm: divides each row by its Euclidean length. The one norm whose eps stands outside the root: a length below
/// eps is taken for eps, as in torch's functional.normalize.
///
///     scale = 1/max(norm(x), eps),  xhat = x * scale,  y = xhat * weight (+ bias)
///     h = dy * weight,  dx = scale * (h - xhat * sum(h * xhat)), without the second term where the length was clamped
///     dweight = sum over rows of dy * xhat
///
/// Squares that leave the range of the accumulator type are no reason for a wrong length: such a row is summed once
/// more, times a power of two.
#pragma once

#include "evenkeel/norms/row_norm.hpp"

#include <limits>
#include <type_traits>
#include <utility>

namespace evenkeel {
namespace detail {

/// What a row is multiplied by, in two factors: one number could leave the range where xhat does not.
template <class V>
struct L2Row {
  V power;    // of two, 1 but for rows whose squares would leave the range
  V inverse;  // 1/max(norm(x * power), eps * power), and 0 where that is 1/0
  V radial;   // 1 where the row was divided by its own length, 0 where by eps

  EVENKEEL_MATH template <class X>
  EVENKEEL_HD X xhat(const X& x) const {
    const X scaled = x * power;
    return scaled * inverse;
  }
};

template <class A>
constexpr A power_of_two(int exponent) {
  A power = 1;
  for (; exponent > 0; --exponent) power *= 2;
  for (; exponent < 0; ++exponent) power /= 2;
  return power;
}

template <class A, class Affine>
struct L2Forward {
  using Scalar = A;
  static constexpr int sums = 1, feature_sums = 0, outputs = 1;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {
    V power;
  };
  template <class V>
  using Row = L2Row<V>;

  A inv_n, eps;  // a length is no mean: inv_n, which the driver sets, has no use

  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> start(const Known<S>&, const S&) const {
    return {splat<S>(1)};
  }
  EVENKEEL_MATH template <class V, class S, class W, class B>
  EVENKEEL_HD void accumulate(Values<V, 1>& s, Values<V, 0>&, const Start<S>& start, const V& x, const W&,
                              const B&) const {
    const V scaled = x * start.power;
    s[0] += scaled * scaled;
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, 1>& s, const Start<S>& start) const {
    // An overflow, or the NaN that the mask of a row's tail makes of it, is led past the root to restart. A row that
    // has started over and still has no sum holds an infinity or a NaN itself.
    constexpr A largest = std::numeric_limits<A>::max();
    const S most = select_less(start.power, splat<S>(1), s[0], splat<S>(largest));
    const S norm = sqrt(min(most, s[0]));
    const S least = start.power * eps;
    const S divisor = max(norm, least);
    const S inverse = splat<S>(1) / divisor;
    return {start.power, select_less(splat<S>(0), divisor, inverse, divisor),
            select_less(least, norm, splat<S>(1), splat<S>(0))};
  }
  /// Lengths whose squares come near the ends of the range start over with another power. Below the lower of these
  /// bounds an eps beyond it decides anyway, and the padding of a pack, which is 0, need not start over.
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> restart(const Start<S>& start, const Row<S>& row) const {
    constexpr int range = std::numeric_limits<A>::max_exponent;
    constexpr A shrink = power_of_two<A>(-range / 8 * 5), grow = power_of_two<A>(range / 8 * 6);
    constexpr A long_row = power_of_two<A>(1 - range / 2), short_row = power_of_two<A>(range / 8 * 3);  // inverses
    constexpr A largest = std::numeric_limits<A>::max();
    const A clamped = eps > 0 ? 1 / eps : largest;
    const S inverse = select_less(row.radial, splat<S>(A(0.5)), splat<S>(clamped), row.inverse);
    const S power = select_less(splat<S>(short_row), inverse, splat<S>(grow), start.power);
    return {select_less(row.inverse, S(row.radial * long_row), splat<S>(shrink), power)};
  }
  EVENKEEL_MATH template <class V, class S, class W, class B>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row<S>& row, const V& x, const W& weight, const B& bias) const {
    y[0] = Affine::apply(row.xhat(x), weight, bias);
  }
};

/// Inputs dy, x and, for a residual stream, dsum, the gradient from the later uses of x; parameter weight; output dx.
template <class A, class Affine, class Terms>
struct L2Backward {
  using Scalar = A;
  static constexpr int sums = 1, feature_sums = Terms::count, outputs = 1;
  template <class V>
  using Known = L2Row<V>;
  template <class V>
  using Start = L2Row<V>;
  template <class V>
  struct Row {
    L2Row<V> known;
    V scale, sum_hxhat;
  };

  A inv_n;

  EVENKEEL_MATH template <class S, class R>
  EVENKEEL_HD Start<S> start(const Known<S>& known, const S&, const S&, const R&) const {
    return known;
  }
  EVENKEEL_MATH template <class V, class S, class R, class W>
  EVENKEEL_HD void accumulate(Values<V, 1>& s, Values<V, Terms::count>& terms, const Start<S>& start, const V& dy,
                              const V& x, const R&, const W& weight) const {
    const V xhat = start.xhat(x);
    const V h = Affine::pull(dy, weight);
    s[0] += h * xhat;
    Terms::set(terms, dy, xhat);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, 1>& s, const Start<S>& start) const {
    return {start, start.power * start.inverse, s[0] * start.radial};
  }
  EVENKEEL_MATH template <class V, class S, class R, class W>
  EVENKEEL_HD void write(Values<V, 1>& dx, const Row<S>& row, const V& dy, const V& x, const R& dsum,
                         const W& weight) const {
    const V xhat = row.known.xhat(x);
    const V h = Affine::pull(dy, weight);
    const V tangent = h - xhat * row.sum_hxhat;
    const V scaled = tangent * row.scale;
    dx[0] = plus(scaled, dsum);
  }
};

/// The names by which the drivers of row norms know the L2 norm.
struct L2 {
  template <class A, class Affine>
  using Forward = L2Forward<A, Affine>;
  template <class A, class Affine, class Terms>
  using Backward = L2Backward<A, Affine, Terms>;
};

}  // namespace detail

/// Options of l2_norm.
struct L2NormOptions {
  double eps = 1e-12;        ///< the least length, outside the root; at least 0, or ek::machine_epsilon
  Axes axis = {};            ///< the normalized axis or neighbouring axes
  bool unit_offset = false;  ///< y = xhat * (1 + weight), the sum formed in the accumulator type
  Rounding rounding = Rounding::round_once;
};

/// What l2_norm leaves for l2_norm_backward, and scratch. A is the accumulator type of the data.
template <class A, class Storage = HostStorage>
class L2NormSaved : public detail::SavedRows<A, 3, Storage> {
 public:
  /// 1/max(norm, eps)
  A scale(Index row) const { return this->field(0, row) * this->field(1, row); }
  /// Whether the row's length was not above eps.
  bool clamped(Index row) const { return this->field(2, row) == A(0); }
};

namespace detail {

/// The L2 norm as the layer classes know it.
struct L2Layer {
  using Options = L2NormOptions;
  template <class A, class Storage>
  using Saved = L2NormSaved<A, Storage>;
  using Math = L2;
  static constexpr const char *forward = "L2Norm::forward", *backward = "L2Norm::backward",
                              *add_forward = "L2Norm::add_forward", *add_backward = "L2Norm::add_backward",
                              *forward_add = "L2Norm::forward_add";
  static constexpr Affine affine = Affine::weight;
};

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// y = x / max(norm(x), eps) * weight + bias, row by row.
///
/// x, y     any shape, the same for both; y may be x itself, then no backward is possible; partial overlap is an error
/// weight   length values of any scalar type, or ek::none
/// bias     the same
/// saved    receives the scale per row, or ek::none for inference
/// Writes y and saved. Throws ShapeError before any work. The eps stands outside the root; with eps = 0 a zero row
/// gives y = bias and dx = 0. Allocates nothing but what saved lacks. Example: tests/norms/l2_norm_test.cpp.
template <class Device, class X, class Weight, class Bias, class Y, class Saved>
  requires detail::SavedOrNone<Saved, L2NormSaved, X>
void l2_norm(const Device& device, const X& x, const Weight& weight, const Bias& bias, Y&& y, Saved&& saved,
             const L2NormOptions& options = {}) {
  detail::row_norm<detail::L2>("l2_norm", device, x, none, none, weight, bias, none, y, saved, options);
}

/// Without bias: the usual form.
template <class Device, class X, class Weight, class Y, class Saved>
  requires detail::SavedOrNone<Saved, L2NormSaved, X>
void l2_norm(const Device& device, const X& x, const Weight& weight, Y&& y, Saved&& saved,
             const L2NormOptions& options = {}) {
  detail::row_norm<detail::L2>("l2_norm", device, x, none, none, weight, none, none, y, saved, options);
}

/// The gradients of l2_norm.
///
/// dy, x, dx        the shape of the forward's x; dx may be dy itself
/// weight           the forward's, ek::none where it had none
/// saved            filled by the forward
/// dweight, dbias   length values, or ek::none where they are not wanted; accumulated, or overwritten as `mode` says
/// Writes dx. Throws ShapeError before any work, also where saved does not belong to x.
template <class Device, class Dy, class X, class Weight, class A, class Storage, class Dx, class Dweight, class Dbias>
  requires(!std::is_same_v<std::remove_cvref_t<Dbias>, GradientMode>)
void l2_norm_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight,
                      L2NormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight, Dbias&& dbias,
                      GradientMode mode = GradientMode::accumulate) {
  detail::row_norm_backward<detail::L2>("l2_norm_backward", "x", device, dy, none, x, none, weight, saved, dx, dweight,
                                        dbias, mode);
}

/// Without bias: the usual form.
template <class Device, class Dy, class X, class Weight, class A, class Storage, class Dx, class Dweight>
void l2_norm_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight,
                      L2NormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight,
                      GradientMode mode = GradientMode::accumulate) {
  detail::row_norm_backward<detail::L2>("l2_norm_backward", "x", device, dy, none, x, none, weight, saved, dx, dweight,
                                        none, mode);
}

/// The L2 norm with its weight (ones at first; zeros with unit_offset), gradient and saved statistics.
///
///     ek::L2Norm<float> norm(width);
///     norm.forward(device, x, y);
///     norm.backward(device, dy, x, dx);
template <class T, class Storage = HostStorage>
using L2Norm = RowNormLayer<T, detail::L2Layer, Storage>;

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
