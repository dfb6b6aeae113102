/// The backward of a row norm from its output: y instead of x is kept, so a forward in place needs no second activation.
///
///     xhat = (y - bias) / weight,  then as in the norm's own backward
///
/// Where the weight is 0, or so small beside the bias that y no longer tells xhat, that formula is wrong, not just
/// inaccurate. The forward keeps xhat for those features; the memory that it takes is rows times their number.
#pragma once

#include "evenkeel/detail/output_math.hpp"
#include "evenkeel/norms/row_norm.hpp"

#include <cmath>
#include <tuple>

namespace evenkeel::detail {

/// Inputs dy, y; parameters weight, bias and inverse, which is 1/weight, or 0 for features whose xhat was kept.
template <class A, class Affine, class Terms, bool Centred>
struct OutputBackward {
  using Scalar = A;
  static constexpr int sums = 2, feature_sums = Terms::count, outputs = 1;
  template <class V>
  struct Known {
    V rstd, kept_hxhat;  // the sum of h * xhat over the features whose xhat was kept
  };
  template <class V>
  using Start = Known<V>;
  template <class V>
  struct Row {
    V rstd, mean_h, mean_hxhat;
  };

  A inv_n;

  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Start<S> start(const Known<S>& known, const S&, const S&) const {
    return known;
  }
  EVENKEEL_MATH template <class V, class S, class W, class B, class I>
  EVENKEEL_HD void accumulate(Values<V, 2>& s, Values<V, Terms::count>& terms, const Start<S>&, const V& dy, const V& y,
                              const W& weight, const B& bias, const I& inverse) const {
    const V xhat = xhat_of(y, bias, inverse);
    const V h = Affine::pull(dy, weight);
    if constexpr (Centred) s[0] += h;
    s[1] += h * xhat;
    Terms::set(terms, dy, xhat);
  }
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD Row<S> finish(const Values<S, 2>& s, const Start<S>& start) const {
    return {start.rstd, s[0] * inv_n, (s[1] + start.kept_hxhat) * inv_n};
  }
  EVENKEEL_MATH template <class V, class S, class W, class B, class I>
  EVENKEEL_HD void write(Values<V, 1>& dx, const Row<S>& row, const V& dy, const V& y, const W& weight, const B& bias,
                         const I& inverse) const {
    dx[0] = gradient(row, Affine::pull(dy, weight), xhat_of(y, bias, inverse));
  }
  EVENKEEL_MATH template <class V, class S>
  EVENKEEL_HD static V gradient(const Row<S>& row, const V& h, const V& xhat) {
    const V centred = h - row.mean_h;
    const V tangent = centred - xhat * row.mean_hxhat;
    return tangent * row.rstd;
  }

 private:
  EVENKEEL_MATH template <class V, class B, class I>
  EVENKEEL_HD static V xhat_of(const V& y, const B& bias, const I& inverse) {
    V scaled = y;
    if constexpr (!is_none_v<B>) scaled = scaled - bias;
    if constexpr (is_none_v<I>)
      return scaled;
    else
      return scaled * inverse;
  }
};

/// Where a backward from the output keeps its numbers beside the rows.
template <class A>
struct OutputParts {
  A* sums;          // of the pass, over the rows
  A* inverse;       // (length)
  A* known;         // (rstd | kept_hxhat, rows)
  A* row_values;    // (rstd | mean_h | mean_hxhat, rows)
  A* kept_dy;       // (kept, rows)
  A* kept_dweight;  // (kept)
  const A* rstd;    // (rows)
  const A* xhat;    // (kept, rows)
  const Index* features;
  Index kept;  // features; on a CUDA device those that there is room for
};

inline namespace EVENKEEL_ISA {

/// What the pass knows of features and rows, and what the kept features add to dweight.
template <class Device, class A, class T, class Feature>
  requires(!StreamDevice<Device>)
void prepare_kept(const Device&, const OutputParts<A>& parts, const RowGrid& grid, const Rows<T>& dy,
                  const Feature& feature) {
  const Index rows = grid.rows();
  for (Index i = 0; i < grid.length; ++i) parts.inverse[i] = 1 / feature.factor(i);
  for (Index r = 0; r < rows; ++r) {
    parts.known[r] = parts.rstd[r];
    parts.known[rows + r] = 0;
  }
  for (Index k = 0; k < parts.kept; ++k) {
    const Index i = parts.features[k];
    parts.inverse[i] = 0;
    double dweight_sum = 0;
    for (Index r = 0; r < rows; ++r) {
      const A gradient = static_cast<A>(*element_at(dy, grid, r, i)), xhat = parts.xhat[k * rows + r];
      parts.kept_dy[k * rows + r] = gradient;
      parts.known[rows + r] += gradient * feature.factor(i) * xhat;
      dweight_sum += static_cast<double>(gradient) * static_cast<double>(xhat);
    }
    parts.kept_dweight[k] = static_cast<A>(dweight_sum);
  }
}
/// Behind the pass: dx of the kept features, and their part of dweight.
template <class Math, bool HasDweight, class Device, class A, class T, class Feature>
  requires(!StreamDevice<Device>)
void finish_kept(const Device&, const OutputParts<A>& parts, const RowGrid& grid, const Rows<T>& dx,
                 const Feature& feature) {
  const Index rows = grid.rows();
  for (Index k = 0; k < parts.kept; ++k) {
    const Index i = parts.features[k];
    if constexpr (HasDweight) parts.sums[i] += parts.kept_dweight[k];
    for (Index r = 0; r < rows; ++r) {
      const typename Math::template Row<A> row{parts.row_values[r], parts.row_values[rows + r],
                                               parts.row_values[2 * rows + r]};
      *element_at(dx, grid, r, i) = static_cast<T>(
          Math::gradient(row, parts.kept_dy[k * rows + r] * feature.factor(i), parts.xhat[k * rows + r]));
    }
  }
}

/// Backward of the norm whose statistics end with rstd, from y.
template <bool Centred, class Device, class Dy, class Y, class Weight, class Bias, class Saved, class Dx, class Dweight,
          class Dbias>
void row_norm_backward_from_output(const char* function, const Device& device, const Dy& dy, const Y& y,
                                   const Weight& weight, const Bias& bias, Saved& saved, Dx& dx, Dweight& dweight,
                                   Dbias& dbias, GradientMode mode) {
  require_device<Device>();
  static_assert(!is_none_v<Weight> || is_none_v<Dweight>, "evenkeel: there is no weight that dweight could belong to");
  using T = scalar_t<const Y>;
  using A = accumulator_t<T>;
  static_assert(std::is_same_v<A, typename Saved::Scalar>,
                "evenkeel: saved must be of the accumulator type of the data: double for double, float for the rest");
  using Terms = ParameterTerms<!is_none_v<Dweight>, !is_none_v<Dbias>>;
  saved.check_filled(function);
  RowArguments arguments(function);
  const auto y_rows = arguments.reference("y", y, saved.call.axis);
  const RowGrid grid = arguments.grid();
  saved.check_output(function, grid.rows(), grid.length, scalar_name<T>(), !is_none_v<Weight>, !is_none_v<Bias>);
  const auto dy_rows = arguments.input("dy", dy);
  const auto w = arguments.parameter("weight", weight);
  const auto b = arguments.parameter("bias", bias);
  const auto dw = arguments.parameter("dweight", dweight);
  const auto db = arguments.parameter("dbias", dbias);
  const auto dx_rows = arguments.output("dx", dx);

  const Index rows = grid.rows(), length = grid.length, kept = saved.kept_features;
  const Index partial = feature_scratch<A, Terms::count>(device, rows, length);
  saved.scratch.ensure(partial + Saved::output_room(rows, length, kept));
  A* const sums = saved.scratch.data();
  A* const inverse = sums + partial;
  A* const known = inverse + length;
  A* const row_values = known + 2 * rows;
  A* const kept_dy = row_values + 3 * rows;
  const OutputParts<A> parts{sums,
                             inverse,
                             known,
                             row_values,
                             kept_dy,
                             kept_dy + kept * rows,
                             saved.field_values(Saved::fields - 1),
                             saved.kept_xhat.data(),
                             saved.kept_index.data(),
                             kept};
  const OutputFeature<A, std::remove_const_t<decltype(w)>, std::remove_const_t<decltype(b)>> feature{
      w, b, A(saved.call.unit_offset)};
  prepare_kept(device, parts, grid, dy_rows, feature);
  const A *const read_known = known, *const read_inverse = inverse;
  FeatureParts of_features{};
  with_affine<Device, T>(w, saved.call.unit_offset, RoundOnce{}, [&](auto affine, const auto& weights) {
    using Math = OutputBackward<A, decltype(affine), Terms, Centred>;
    of_features = row_pass(device,
                           RowPass{Math{A(1) / static_cast<A>(length)}, grid, std::tuple(dy_rows, y_rows),
                                   std::tuple(weights, b, read_inverse), std::tuple(dx_rows), read_known, row_values},
                           sums);
    finish_kept<Math, !is_none_v<Dweight>>(device, parts, grid, dx_rows, feature);
  });
  put_gradients(device, sums, of_features, length, mode, dw, db);
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel::detail
