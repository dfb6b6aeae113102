/// A layer that remembers what was folded into it.
#pragma once

#include "evenkeel/fold/fold.hpp"

#include <array>
#include <string>
#include <tuple>
#include <utility>

namespace evenkeel::inline EVENKEEL_ISA {

/// Weight and bias of a linear or convolution layer for folds in place, with the two mistakes that no shape shows: a
/// second fold of the same norm, and a fold into a weight that another layer reads too. It refers to tensors that
/// outlive it; maps and blocks that are passed as temporaries are kept by value.
///
///     ek::FoldTarget q("layer.0.q", wq, bq, torch_axes), k(...), v(...);
///     ek::fold_into_next(ek::affine_map(norm), q, k, v);         // all of them or, where one is refused, none
template <class W, class B>
class FoldTarget {
 public:
  /// bias may be ek::none. Throws ShapeError where axes or sizes do not fit.
  FoldTarget(std::string target_name, W&& weight, B&& bias, FoldOptions options)
      : name(std::move(target_name)),
        weight_(std::forward<W>(weight)),
        bias_(std::forward<B>(bias)),
        options_(std::move(options)) {
    detail::weight_fold("FoldTarget", weight_, bias_, weight_, bias_, options_.axes);
  }

  std::string name;               ///< for messages
  bool tied = false;              ///< another layer reads this weight, as a head may be tied to the embedding
  bool has_bias = !is_none_v<B>;  ///< false: the bias is room for one only, which a fold creates

  /// Whether a norm before the layer, or behind it, was folded into it.
  bool holds_norm_before() const { return holds_norm_before_; }
  bool holds_norm_behind() const { return holds_norm_behind_; }
  /// The weight has been written anew.
  void reset() { holds_norm_before_ = holds_norm_behind_ = false; }

  auto& weight() { return weight_; }
  auto& bias() { return bias_; }

  // What fold_into_next and fold_into_previous do, in two steps: all is checked before anything is written.
  auto prepare_next(const AffineMap& map) {
    const char* const function = "fold_into_next";
    require_state(function, holds_norm_before_);
    return ready(detail::fold_of_next(function, map, weight_, bias_, weight_, bias_, options_));
  }
  auto prepare_previous(const AffineMap& map) {
    const char* const function = "fold_into_previous";
    require_state(function, holds_norm_behind_);
    return ready(detail::fold_of_previous(function, map, weight_, bias_, weight_, bias_, options_));
  }
  template <class Fold>
  void apply_next(const AffineMap& map, const Fold& fold) {
    fold.apply_to_next(map);
    holds_norm_before_ = true;
    has_bias = !is_none_v<B>;
  }
  template <class Fold>
  void apply_previous(const AffineMap& map, const Fold& fold) {
    fold.apply_to_previous(map);
    holds_norm_behind_ = true;
    has_bias = !is_none_v<B>;
  }

 private:
  void require_state(const char* function, bool folded) const {
    if (folded)
      detail::throw_state_error(function, name, " holds a folded norm already, expected a weight without one");
    if (tied)
      detail::throw_state_error(function, name,
                                " is tied to another layer, which would read the folded weight, expected a weight of "
                                "its own");
  }
  template <class Fold>
  Fold ready(Fold fold) const {
    if (!has_bias) fold.bias_from = nullptr;
    return fold;
  }

  W weight_;
  B bias_;
  FoldOptions options_;
  bool holds_norm_before_ = false, holds_norm_behind_ = false;
};
template <class W, class B>
FoldTarget(std::string, W&&, B&&, FoldOptions) -> FoldTarget<W, B>;

}  // namespace evenkeel::inline EVENKEEL_ISA

namespace evenkeel {
namespace detail::inline EVENKEEL_ISA {

template <class... Targets>
void require_different(const char* function, Targets&... targets) {
  const std::array<const void*, sizeof...(Targets)> weights{static_cast<const void*>(data_of(targets.weight()))...};
  const std::array<const std::string*, sizeof...(Targets)> names{&targets.name...};
  for (std::size_t i = 0; i < weights.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (weights[i] == weights[j])
        throw_state_error(function, *names[i], " has the weight of ", *names[j], ", expected one of its own");
}

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// The norm's map goes into all layers that read the norm's output, in place. Throws ShapeError, or StateError for a
/// target that is tied, or holds a norm already; nothing has been written then, in none of them.
template <class W, class B, class... Ws, class... Bs>
void fold_into_next(const AffineMap& map, FoldTarget<W, B>& target, FoldTarget<Ws, Bs>&... more) {
  detail::require_different("fold_into_next", target, more...);
  const std::tuple folds(target.prepare_next(map), more.prepare_next(map)...);
  std::apply(
      [&](const auto& first, const auto&... others) {
        target.apply_next(map, first);
        (more.apply_next(map, others), ...);
      },
      folds);
}

/// The norm's map goes into the layer before it, in place. Throws as fold_into_next does.
template <class W, class B>
void fold_into_previous(const AffineMap& map, FoldTarget<W, B>& target) {
  target.apply_previous(map, target.prepare_previous(map));
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
