/// RMSNorm: divides each row by its root mean square. B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization",
/// 2019, equation 4, with eps inside the root as in every model since.
///
///     rstd = 1/sqrt(mean(x^2) + eps),  xhat = x * rstd,  y = xhat * weight (+ bias)
///     h = dy * weight,  dx = rstd * (h - xhat * mean(h * xhat)),  dweight = sum over rows of dy * xhat
#pragma once

#include "evenkeel/detail/standardize_math.hpp"
#include "evenkeel/norms/output_backward.hpp"
#include "evenkeel/norms/row_norm.hpp"

#include <tuple>
#include <utility>

namespace evenkeel {
namespace detail {

template <class V>
struct RmsRow {
  V rstd;
};

template <class A, class Affine>
struct RmsForward {
  using Scalar = A;
  static constexpr int sums = 1, feature_sums = 0, outputs = 1;
  template <class V>
  struct Known {};
  template <class V>
  struct Start {};
  template <class V>
  using Row = RmsRow<V>;

  A inv_n, eps;

  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> start(const Known<S>&, const S&) const {
    return {};
  }
  EVENKEEL_MATH template <class V, class S, class W, class B>
  EVENKEEL_HD void accumulate(Values<V, 1>& s, Values<V, 0>&, const Start<S>&, const V& x, const W&, const B&) const {
    s[0] += x * x;
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, 1>& s, const Start<S>& start) const {
    return finish(s, start, inv_n);
  }
  /// Of rows with counts of their own.
  EVENKEEL_MATH template <class S, class N>
  EVENKEEL_HD Row<S> finish(const Values<S, 1>& s, const Start<S>&, const N& inverse_count) const {
    return {inverse_root(S(s[0] * inverse_count + eps))};
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD bool ready(const Start<S>&) const {
    return true;
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD bool settled(const Start<S>&, const Row<S>& row) const {
    return in_range(row.rstd);
  }
  template <class... P>
  EVENKEEL_HD static double magnitude(double x, const P&...) {
    return x;
  }
  auto careful(double largest, std::int64_t length) const {
    const double scale = careful_scale<A>(largest, eps);
    using Wide = RmsForward<double, Affine>;
    return CarefulForward<Wide>{Wide{1 / static_cast<double>(length), eps * scale * scale}, scale};
  }
  Row<double> unscaled(const Row<double>& row, double scale) const { return {row.rstd * scale}; }
  EVENKEEL_MATH template <class V, class S, class W, class B>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row<S>& row, const V& x, const W& weight, const B& bias) const {
    y[0] = Affine::apply(V(x * row.rstd), weight, bias);
  }
};

/// Inputs dy, x and, for a residual stream, dsum, the gradient from the later uses of x; parameter weight; output dx.
template <class A, class Affine, class Terms>
struct RmsBackward {
  using Scalar = A;
  static constexpr int sums = 1, feature_sums = Terms::count, outputs = 1;
  template <class V>
  using Known = RmsRow<V>;
  template <class V>
  using Start = RmsRow<V>;
  template <class V>
  struct Row {
    V rstd, mean_hxhat;
  };

  A inv_n;

  EVENKEEL_MATH template <class S, class R>
  EVENKEEL_HD Start<S> start(const Known<S>& known, const S&, const S&, const R&) const {
    return known;
  }
  EVENKEEL_MATH template <class V, class S, class R, class W>
  EVENKEEL_HD void accumulate(Values<V, 1>& s, Values<V, Terms::count>& terms, const Start<S>& start, const V& dy,
                              const V& x, const R&, const W& weight) const {
    const V xhat = x * start.rstd;
    const V h = Affine::pull(dy, weight);
    s[0] += h * xhat;
    Terms::set(terms, dy, xhat);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, 1>& s, const Start<S>& start) const {
    return finish(s, start, inv_n);
  }
  /// Of rows with counts of their own.
  EVENKEEL_MATH template <class S, class N>
  EVENKEEL_HD Row<S> finish(const Values<S, 1>& s, const Start<S>& start, const N& inverse_count) const {
    return {start.rstd, s[0] * inverse_count};
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD bool ready(const Start<S>& start) const {
    return in_range(start.rstd);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD bool settled(const Start<S>&, const Row<S>& row) const {
    return finite(row.mean_hxhat);
  }
  template <class R, class... P>
  EVENKEEL_HD static double magnitude(double, double x, const R&, const P&...) {
    return x;
  }
  auto careful(double largest, std::int64_t length) const {
    using Wide = RmsBackward<double, Affine, Terms>;
    return CarefulBackward<Wide>{Wide{1 / static_cast<double>(length)}, careful_scale<A>(largest, 0)};
  }
  Known<double> rescaled(const Known<double>& known, double scale) const { return {known.rstd / scale}; }
  EVENKEEL_MATH template <class V, class S, class R, class W>
  EVENKEEL_HD void write(Values<V, 1>& dx, const Row<S>& row, const V& dy, const V& x, const R& dsum,
                         const W& weight) const {
    const V xhat = x * row.rstd;
    const V h = Affine::pull(dy, weight);
    const V tangent = h - xhat * row.mean_hxhat;
    const V scaled = tangent * row.rstd;
    dx[0] = plus(scaled, dsum);
  }
};

/// The names by which the drivers of row norms know RMSNorm.
struct Rms {
  template <class A, class Affine>
  using Forward = RmsForward<A, Affine>;
  template <class A, class Affine, class Terms>
  using Backward = RmsBackward<A, Affine, Terms>;
};

}  // namespace detail

/// Options of rms_norm.
struct RmsNormOptions {
  double eps = 1e-6;         ///< added to the mean square, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = {};            ///< the normalized axis or neighbouring axes
  bool unit_offset = false;  ///< y = xhat * (1 + weight), the sum formed in the accumulator type (Gemma)
  Rounding rounding = Rounding::round_once;
  bool backward_from_output = false;  ///< saved keeps what rms_norm_backward_from_output needs beside y
};

/// Statistics that rms_norm leaves for rms_norm_backward, and scratch. A is the accumulator type of the data.
template <class A, class Storage = HostStorage>
class RmsNormSaved : public detail::SavedRows<A, 1, Storage> {
 public:
  A rstd(Index row) const { return this->field(0, row); }

  /// What forwards keep of x becomes xhat, when the statistics are known.
  void standardize_kept() {
    for (Index k = 0; k < this->kept_features; ++k)
      for (Index r = 0; r < this->rows(); ++r) {
        A& x = this->kept_xhat.data()[k * this->rows() + r];
        x = x * this->field(0, r);
      }
  }
};

namespace detail {

/// RMSNorm as the layer classes know it.
struct RmsLayer {
  using Options = RmsNormOptions;
  template <class A, class Storage>
  using Saved = RmsNormSaved<A, Storage>;
  using Math = Rms;
  static constexpr const char *forward = "RmsNorm::forward", *backward = "RmsNorm::backward",
                              *add_forward = "RmsNorm::add_forward", *add_backward = "RmsNorm::add_backward",
                              *forward_add = "RmsNorm::forward_add";
  static constexpr Affine affine = Affine::weight;
};

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// y = x * rstd * weight + bias, row by row.
///
/// x, y     any shape, the same for both; y may be x itself, then the only backward is from y; partial overlap is an error
/// weight   length values of any scalar type, or ek::none
/// bias     the same
/// saved    receives rstd per row, or ek::none for inference
/// Writes y and saved. Throws ShapeError before any work. The eps stands inside the root.
/// Allocates nothing but what saved lacks. Example: examples/quickstart.cpp.
template <class Device, class X, class Weight, class Bias, class Y, class Saved>
  requires detail::SavedOrNone<Saved, RmsNormSaved, X>
void rms_norm(const Device& device, const X& x, const Weight& weight, const Bias& bias, Y&& y, Saved&& saved,
              const RmsNormOptions& options = {}) {
  detail::row_norm<detail::Rms>("rms_norm", device, x, none, none, weight, bias, none, y, saved, options);
}

/// Without bias: the usual form.
template <class Device, class X, class Weight, class Y, class Saved>
  requires detail::SavedOrNone<Saved, RmsNormSaved, X>
void rms_norm(const Device& device, const X& x, const Weight& weight, Y&& y, Saved&& saved,
              const RmsNormOptions& options = {}) {
  detail::row_norm<detail::Rms>("rms_norm", device, x, none, none, weight, none, none, y, saved, options);
}

/// The residual sum and its norm in one pass: sum = x + residual, y = rms_norm(sum). sum may be x or residual, y may
/// not be sum. The norm sees the sum rounded to the data type, as it is stored.
template <class Device, class X, class Residual, class Weight, class Sum, class Y, class Saved>
  requires detail::SavedOrNone<Saved, RmsNormSaved, X>
void add_rms_norm(const Device& device, const X& x, const Residual& residual, const Weight& weight, Sum&& sum, Y&& y,
                  Saved&& saved, const RmsNormOptions& options = {}) {
  detail::row_norm<detail::Rms>("add_rms_norm", device, x, residual, none, weight, none, sum, y, saved, options);
}

/// The same with sum = x + residual_scale * residual: DeepNorm, where residual is the stream and x the branch.
template <class Device, class X, class Residual, class Weight, class Sum, class Y, class Saved>
  requires detail::SavedOrNone<Saved, RmsNormSaved, X>
void add_rms_norm(const Device& device, const X& x, const Residual& residual, double residual_scale,
                  const Weight& weight, Sum&& sum, Y&& y, Saved&& saved, const RmsNormOptions& options = {}) {
  detail::row_norm<detail::Rms>("add_rms_norm", device, x, detail::Scaled<Residual>{residual, residual_scale}, none,
                                weight, none, sum, y, saved, options);
}

/// The norm and its residual sum in one pass: y = residual + rms_norm(x), rounded once. y may be residual; it may be x,
/// then no backward is possible. The gradients are rms_norm_backward's, and that of residual is dy.
template <class Device, class X, class Residual, class Weight, class Y, class Saved>
  requires detail::SavedOrNone<Saved, RmsNormSaved, X>
void rms_norm_add(const Device& device, const X& x, const Residual& residual, const Weight& weight, Y&& y,
                  Saved&& saved, const RmsNormOptions& options = {}) {
  detail::row_norm<detail::Rms>("rms_norm_add", device, x, residual, none, weight, none, none, y, saved, options);
}

/// The gradients of rms_norm.
///
/// dy, x, dx        the shape of the forward's x; dx may be dy itself
/// weight           the forward's, ek::none where it had none
/// saved            filled by the forward
/// dweight, dbias   length values, or ek::none where they are not wanted; accumulated, or overwritten as `mode` says; apart
///                  from all other arguments
/// Writes dx. Throws ShapeError before any work, also where saved does not belong to x.
template <class Device, class Dy, class X, class Weight, class A, class Storage, class Dx, class Dweight, class Dbias>
  requires(!std::is_same_v<std::remove_cvref_t<Dbias>, GradientMode>)
void rms_norm_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight,
                       RmsNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight, Dbias&& dbias,
                       GradientMode mode = GradientMode::accumulate) {
  detail::row_norm_backward<detail::Rms>("rms_norm_backward", "x", device, dy, none, x, none, weight, saved, dx,
                                         dweight, dbias, mode);
}

/// Without bias: the usual form.
template <class Device, class Dy, class X, class Weight, class A, class Storage, class Dx, class Dweight>
void rms_norm_backward(const Device& device, const Dy& dy, const X& x, const Weight& weight,
                       RmsNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight,
                       GradientMode mode = GradientMode::accumulate) {
  detail::row_norm_backward<detail::Rms>("rms_norm_backward", "x", device, dy, none, x, none, weight, saved, dx,
                                         dweight, none, mode);
}

/// The gradients of add_rms_norm: dx = (gradient through the norm) + dsum, which is the gradient of both x and
/// residual, where it has no scale. dsum is the gradient of sum from its later uses, or ek::none. sum is the forward's.
template <class Device, class Dy, class Dsum, class Sum, class Weight, class A, class Storage, class Dx, class Dweight>
void add_rms_norm_backward(const Device& device, const Dy& dy, const Dsum& dsum, const Sum& sum, const Weight& weight,
                           RmsNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight,
                           GradientMode mode = GradientMode::accumulate) {
  detail::row_norm_backward<detail::Rms>("add_rms_norm_backward", "sum", device, dy, dsum, sum, none, weight, saved, dx,
                                         dweight, none, mode);
}

/// The gradients of rms_norm from its output y: see layer_norm_backward_from_output. bias and dbias may be ek::none.
template <class Device, class Dy, class Y, class Weight, class Bias, class A, class Storage, class Dx, class Dweight,
          class Dbias>
void rms_norm_backward_from_output(const Device& device, const Dy& dy, const Y& y, const Weight& weight,
                                   const Bias& bias, RmsNormSaved<A, Storage>& saved, Dx&& dx, Dweight&& dweight,
                                   Dbias&& dbias, GradientMode mode = GradientMode::accumulate) {
  detail::row_norm_backward_from_output<false>("rms_norm_backward_from_output", device, dy, y, weight, bias, saved, dx,
                                               dweight, dbias, mode);
}

/// RMSNorm with its weight (ones at first; zeros with unit_offset), gradient and saved statistics.
///
///     ek::RmsNorm<float> norm(width);
///     norm.forward(device, x, y);
///     norm.backward(device, dy, x, dx);
template <class T, class Storage = HostStorage>
using RmsNorm = RowNormLayer<T, detail::RmsLayer, Storage>;

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
