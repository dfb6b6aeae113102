/// QK-norm: queries and keys are normalized before their product, so that attention logits stay bounded. Three modes:
///
///     per head     RMSNorm or LayerNorm of each head's features, one weight for all heads (Qwen3, Gemma 3); M.
///     Dehghani
///                  et al., "Scaling Vision Transformers to 22 Billion Parameters", 2023, section 2
///     full width   RMSNorm or LayerNorm of all heads' features together (OLMo 2)
///     L2           q = scale * q/norm(q), k = k/norm(k), a learned scale in place of 1/sqrt(features); A. Henry,
///                  P. R. Dachapally, S. Pawar, Y. Chen, "Query-Key Normalization for Transformers", 2020, equations
///                  2-4
///
/// Nothing here is math of its own: rms_norm, layer_norm and l2_norm run on views of the heads.
#pragma once

#include "evenkeel/detail/for_each_value.hpp"
#include "evenkeel/norms/l2_norm.hpp"
#include "evenkeel/norms/layer_norm.hpp"
#include "evenkeel/norms/rms_norm.hpp"

#include <cmath>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

namespace evenkeel {

/// What QkNorm normalizes together.
enum class QkNormMode { per_head, full_width };

/// The heads of an attention layer. Keys may have fewer of them (grouped queries).
struct QkHeads {
  Index queries = 1, keys = 1;
  Index features = 0;  ///< of one head
};

/// A view of (rows, heads, features) whose heads follow each other, `row_stride` elements from one row to the next: the
/// queries, keys or values of a fused buffer.
///
///     auto q = ek::heads_view(qkv, tokens, 3 * width, heads, features);          // qkv (tokens, 3 * width)
///     auto k = ek::heads_view(qkv + width, tokens, 3 * width, heads, features);
template <class T>
AxisView<T> heads_view(T* data, Index rows, Index row_stride, Index heads, Index features) {
  return {.data = data, .outer = {rows, heads}, .outer_stride = {row_stride, features}, .length = features};
}

/// Where the learned scale of L2 mode starts: log2(length^2 - length), `length` the sequence length that 97.5% of the
/// training sequences do not exceed (Henry et al., section 3.1).
inline double qk_scale_start(double length) { return std::log2(length * length - length); }

namespace detail {

inline void check_heads(const char* function, const char* name, const AxisView<const void>& x, Index heads,
                        Index features) {
  if (x.outer[1] != heads || x.length != features || x.inner != 1)
    throw_shape_error(function, name, " is a view of ", x.outer[0], " rows of ", x.outer[1], " heads of ", x.length,
                      " features, inner ", x.inner, ", expected ", heads, " heads of ", features, " features, inner 1");
}

/// Checks an input and an output of the shape (rows, heads, features), and how they overlap.
template <class X, class Y>
void check_heads_pair(const char* function, const char* x_name, const X& x, const char* y_name, const Y& y, Index heads,
                      Index features) {
  static_assert(is_axis_view<X> && is_axis_view<Y>,
                "evenkeel: queries and keys are AxisViews of rows x heads x features; heads_view makes one");
  check_heads(function, x_name, view_as<const void>(x, x.data), heads, features);
  RowArguments arguments(function);
  arguments.reference(x_name, x, {});
  Y out = y;
  arguments.output(y_name, out);
}

/// All heads of a row as one row.
template <class T>
AxisView<T> full_width(const char* function, const char* name, const AxisView<T>& x) {
  if (x.outer[1] > 1 && x.outer_stride[1] != x.length * x.stride)
    throw_shape_error(function, name, " has heads ", x.outer_stride[1], " apart, expected ", x.length * x.stride,
                      ": over the full width they follow each other");
  return {.data = x.data,
          .outer = {1, x.outer[0]},
          .outer_stride = {0, x.outer_stride[0]},
          .length = x.outer[1] * x.length,
          .stride = x.stride};
}

/// The rows of one head.
template <class T>
AxisView<T> one_head(const AxisView<T>& x, Index head) {
  return {.data = x.data + head * x.outer_stride[1],
          .outer = {1, x.outer[0]},
          .outer_stride = {0, x.outer_stride[0]},
          .length = x.length,
          .stride = x.stride};
}

}  // namespace detail

inline namespace EVENKEEL_ISA {

/// Norms of queries and keys with their weights, in the modes per head and full width. Norm is RmsNorm<T> or
/// LayerNorm<T>; its options, its choice of parameters and its storage are taken over.
///
///     ek::QkNorm<float> norm(ek::QkNormMode::per_head, {.queries = 16, .keys = 4, .features = 128});
///     norm.forward(device, q, k, q_out, k_out);
///     norm.backward(device, dq_out, dk_out, q, k, dq, dk);
///
/// All tensors are AxisViews of rows x heads x features with any strides, those of queries in one shape, those of keys
/// in another. Outputs may be their inputs (dq may be dq_out); a forward in place leaves nothing for a backward, so
/// training reads q and k from the fused buffer and writes q_out and k_out elsewhere. Throws ShapeError before any work
/// on queries or on keys. Full width needs heads that follow each other in memory.
template <class T, class Norm = RmsNorm<T>>
class QkNorm {
 public:
  using Scalar = T;
  using Options = typename Norm::Options;

  explicit QkNorm(QkNormMode mode, const QkHeads& heads, const Options& options = {})
      : q_norm(width(mode, heads.queries, heads), options),
        k_norm(width(mode, heads.keys, heads), options),
        mode_(mode),
        heads_(heads) {}
  QkNorm(QkNormMode mode, const QkHeads& heads, const Options& options, Affine affine)
      : q_norm(width(mode, heads.queries, heads), options, affine),
        k_norm(width(mode, heads.keys, heads), options, affine),
        mode_(mode),
        heads_(heads) {}

  /// Makes room in what the norms save, so that neither forward nor backward allocates; on a CUDA device they must not.
  template <class Device, class Q, class K>
  void reserve(const Device& device, const Q& q, const K& k) {
    q_norm.saved.reserve(device, rows_of("QkNorm::reserve", "q", q));
    k_norm.saved.reserve(device, rows_of("QkNorm::reserve", "k", k));
  }

  template <class Device, class Q, class K, class Qout, class Kout>
  void forward(const Device& device, const Q& q, const K& k, const Qout& q_out, const Kout& k_out) {
    constexpr const char* function = "QkNorm::forward";
    detail::check_heads_pair(function, "q", q, "q_out", q_out, heads_.queries, heads_.features);
    detail::check_heads_pair(function, "k", k, "k_out", k_out, heads_.keys, heads_.features);
    const auto q_rows = rows_of(function, "q", q);
    const auto k_rows = rows_of(function, "k", k);
    auto q_out_rows = rows_of(function, "q_out", q_out);
    auto k_out_rows = rows_of(function, "k_out", k_out);
    q_norm.forward(device, q_rows, q_out_rows);
    k_norm.forward(device, k_rows, k_out_rows);
  }

  /// dq and dk are written, the gradients of the parameters are accumulated. q and k are the forward's.
  template <class Device, class DqOut, class DkOut, class Q, class K, class Dq, class Dk>
  void backward(const Device& device, const DqOut& dq_out, const DkOut& dk_out, const Q& q, const K& k, const Dq& dq,
                const Dk& dk, GradientMode mode = GradientMode::accumulate) {
    constexpr const char* function = "QkNorm::backward";
    detail::check_heads_pair(function, "q", q, "dq", dq, heads_.queries, heads_.features);
    detail::check_heads_pair(function, "k", k, "dk", dk, heads_.keys, heads_.features);
    detail::check_heads_pair(function, "dq_out", dq_out, "dq", dq, heads_.queries, heads_.features);
    detail::check_heads_pair(function, "dk_out", dk_out, "dk", dk, heads_.keys, heads_.features);
    const auto q_rows = rows_of(function, "q", q);
    const auto k_rows = rows_of(function, "k", k);
    const auto dq_out_rows = rows_of(function, "dq_out", dq_out);
    const auto dk_out_rows = rows_of(function, "dk_out", dk_out);
    auto dq_rows = rows_of(function, "dq", dq);
    auto dk_rows = rows_of(function, "dk", dk);
    q_norm.backward(device, dq_out_rows, q_rows, dq_rows, mode);
    k_norm.backward(device, dk_out_rows, k_rows, dk_rows, mode);
  }

  /// Calls f(ParameterRef<T>) for q_norm.weight, k_norm.weight, and biases where the norms have them.
  template <class F>
  void for_each_parameter(F&& f) {
    q_norm.for_each_parameter([&](ParameterRef<T> p) {
      p.name = p.name == "bias" ? "q_norm.bias" : "q_norm.weight";
      f(p);
    });
    k_norm.for_each_parameter([&](ParameterRef<T> p) {
      p.name = p.name == "bias" ? "k_norm.bias" : "k_norm.weight";
      f(p);
    });
  }

  QkNormMode mode() const { return mode_; }
  const QkHeads& heads() const { return heads_; }

  Norm q_norm;  // of features values, or of heads * features
  Norm k_norm;

 private:
  static Index width(QkNormMode mode, Index count, const QkHeads& heads) {
    if (count < 1) detail::throw_shape_error("QkNorm::QkNorm", "there are ", count, " heads, expected 1 or more");
    return mode == QkNormMode::per_head ? heads.features : count * heads.features;
  }
  template <class X>
  AxisView<X> rows_of(const char* function, const char* name, const AxisView<X>& x) const {
    return mode_ == QkNormMode::per_head ? x : detail::full_width(function, name, x);
  }

  QkNormMode mode_;
  QkHeads heads_;
};

/// Options of QkL2Norm.
struct QkL2NormOptions {
  double eps = 1e-12;           ///< the least length, outside the root
  bool scale_per_head = false;  ///< one scale for each head of the queries in place of one for all
};

/// L2 norms of queries and keys, and the learned scale of the queries. The logits are the products as they stand: no
/// 1/sqrt(features).
///
///     ek::QkL2Norm<float> norm(heads, ek::qk_scale_start(512));
///     norm.forward(device, q, k, q_out, k_out);
///     norm.backward(device, dq_out, dk_out, q, k, dq, dk);
///
/// Tensors, aliasing and errors are those of QkNorm. Heads of their own scale take one pass each over the queries.
template <class T, class Storage = HostStorage>
class QkL2Norm {
 public:
  using Scalar = T;
  using Options = QkL2NormOptions;

  QkL2Norm(const QkHeads& heads, double scale_start, const Options& options = {})
      : scale("scale", options.scale_per_head ? heads.queries : 1, false),
        q_saved(static_cast<std::size_t>(options.scale_per_head ? heads.queries : 1)),
        options_(options),
        heads_(heads) {
    scale.fill(static_cast<T>(scale_start));
    expanded_.reserve(heads.features);
    dexpanded_.reserve(heads.features);
  }

  /// Makes room in what is saved, so that neither forward nor backward allocates; on a CUDA device they must not.
  template <class Device, class Q, class K>
  void reserve(const Device& device, const Q& q, const K& k) {
    for (Index g = 0; g < scale.size(); ++g) q_saved[static_cast<std::size_t>(g)].reserve(device, group(q, g));
    k_saved.reserve(device, k);
  }

  template <class Device, class Q, class K, class Qout, class Kout>
  void forward(const Device& device, const Q& q, const K& k, const Qout& q_out, const Kout& k_out) {
    constexpr const char* function = "QkL2Norm::forward";
    detail::check_heads_pair(function, "q", q, "q_out", q_out, heads_.queries, heads_.features);
    detail::check_heads_pair(function, "k", k, "k_out", k_out, heads_.keys, heads_.features);
    for (Index g = 0; g < scale.size(); ++g)
      l2_norm(device, group(q, g), expanded(device, g), group(q_out, g), q_saved[static_cast<std::size_t>(g)],
              {.eps = options_.eps});
    l2_norm(device, k, none, Kout(k_out), k_saved, {.eps = options_.eps});
  }

  /// dq and dk are written, the gradient of scale is accumulated. q and k are the forward's.
  template <class Device, class DqOut, class DkOut, class Q, class K, class Dq, class Dk>
  void backward(const Device& device, const DqOut& dq_out, const DkOut& dk_out, const Q& q, const K& k, const Dq& dq,
                const Dk& dk, GradientMode mode = GradientMode::accumulate) {
    constexpr const char* function = "QkL2Norm::backward";
    detail::check_heads_pair(function, "q", q, "dq", dq, heads_.queries, heads_.features);
    detail::check_heads_pair(function, "k", k, "dk", dk, heads_.keys, heads_.features);
    detail::check_heads_pair(function, "dq_out", dq_out, "dq", dq, heads_.queries, heads_.features);
    detail::check_heads_pair(function, "dk_out", dk_out, "dk", dk, heads_.keys, heads_.features);
    Expanded dweight(dexpanded_.data(), heads_.features);
    for (Index g = 0; g < scale.size(); ++g) {
      l2_norm_backward(device, group(dq_out, g), group(q, g), expanded(device, g), q_saved[static_cast<std::size_t>(g)],
                       group(dq, g), dweight, GradientMode::overwrite);
      detail::put_total(device, static_cast<const A*>(dexpanded_.data()), heads_.features, mode, scale.gradient() + g);
    }
    l2_norm_backward(device, dk_out, k, none, k_saved, Dk(dk), none);
  }

  template <class F>
  void for_each_parameter(F&& f) {
    f(scale.ref());
  }

  const QkHeads& heads() const { return heads_; }
  const Options& options() const { return options_; }

  Parameter<T, Storage> scale;  // (1), or (heads of the queries)
  std::vector<L2NormSaved<accumulator_t<T>, Storage>> q_saved;
  L2NormSaved<accumulator_t<T>, Storage> k_saved;

 private:
  using A = accumulator_t<T>;
  using Expanded = Eigen::Map<Eigen::Array<A, Eigen::Dynamic, 1>>;

  /// The queries that scale g belongs to.
  template <class X>
  AxisView<X> group(const AxisView<X>& x, Index g) const {
    return scale.size() == 1 ? x : detail::one_head(x, g);
  }
  /// Scale g as a weight.
  template <class Device>
  Expanded expanded(const Device& device, Index g) {
    const auto* const from = detail::driver_pointer<Device>(std::as_const(scale).value() + g);
    using From = std::remove_cvref_t<decltype(*from)>;
    detail::for_each_value(device, heads_.features, detail::RepeatValue<From, A>{from, expanded_.data()});
    return Expanded(expanded_.data(), heads_.features);
  }

  Options options_;
  QkHeads heads_;
  typename Storage::template Buffer<A> expanded_, dexpanded_;  // (features)
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
