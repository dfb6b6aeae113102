/// Norms of weights folded into plain weights: the layer that uses the weight then no longer makes it at each step. What
/// WeightNorm::fold and its like do for layers, for loose tensors.
#pragma once

#include "evenkeel/norms/weight_norm.hpp"
#include "evenkeel/norms/weight_standardization.hpp"

namespace evenkeel::inline EVENKEEL_ISA {

/// w = g * v / norm(v), see weight_norm. w may be v. Throws ShapeError before any work.
template <class V, class G, class W>
void fold_weight_norm(const V& v, const G& g, W&& w, const WeightNormOptions& options = {}) {
  WeightNormSaved<accumulator_t<detail::scalar_t<const V>>> saved;
  detail::weight_norm_of("fold_weight_norm", serial, v, g, w, saved, options);
}

/// w_hat = (w - mean)/sqrt(var + eps) for each output unit, see weight_standardization. w_hat may be w. Throws
/// ShapeError before any work.
template <class W, class What>
void fold_weight_standardization(const W& w, What&& w_hat, const WeightStandardizationOptions& options = {}) {
  WeightStandardizationSaved<accumulator_t<detail::scalar_t<const W>>> saved;
  detail::standardize_weight("fold_weight_standardization", serial, w, none, w_hat, saved, detail::Denominator::plain,
                             options.eps, options.axis);
}

/// The same with a gain per output unit, or ek::none, and the fan in the denominator, see scaled_weight_standardization.
template <class W, class Gain, class What>
void fold_scaled_weight_standardization(const W& w, const Gain& gain, What&& w_hat,
                                        const ScaledWeightStandardizationOptions& options = {}) {
  WeightStandardizationSaved<accumulator_t<detail::scalar_t<const W>>> saved;
  detail::standardize_weight("fold_scaled_weight_standardization", serial, w, gain, w_hat, saved,
                             detail::denominator_of(options), detail::resolved(options), options.axis);
}

}  // namespace evenkeel::inline EVENKEEL_ISA
