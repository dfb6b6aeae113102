/// How far apart two ways to compute the same lie: a model before and after a fold, say.
#pragma once

#include "evenkeel/detail/places.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <limits>

namespace evenkeel {

/// The largest difference between two tensors.
struct Difference {
  double absolute = 0;  ///< infinite where one has a nan or an infinity that the other has not
  double largest = 0;   ///< the largest finite absolute value in the first
  /// In units of the largest value: near the scalar's epsilon where both are the same but for rounding.
  double relative() const { return absolute == 0 ? 0 : absolute / largest; }
};

inline namespace EVENKEEL_ISA {

/// The largest difference between y and z: tensors, or expressions of matrices, of the same extents, of any scalars and
/// storage orders. Throws ShapeError where their extents differ.
template <detail::Readable Y, detail::Readable Z>
Difference largest_difference(const Y& y, const Z& z) {
  const auto& a = detail::evaluated(y);
  const auto& b = detail::evaluated(z);
  const detail::Layout a_layout = detail::places_of(a), b_layout = detail::places_of(b);
  if (!detail::same_extents(a_layout, b_layout))
    detail::throw_shape_error("largest_difference", "y is ", detail::text(a_layout), ", z is ", detail::text(b_layout));
  Difference difference;
  detail::for_each_place(std::array{a_layout, b_layout}, [&](const auto& at) {
    const auto p = static_cast<double>(detail::data_of(a)[at[0]]), q = static_cast<double>(detail::data_of(b)[at[1]]);
    if (std::isfinite(p)) difference.largest = std::max(difference.largest, std::abs(p));
    if (p == q || (std::isnan(p) && std::isnan(q))) return;
    const double apart = std::abs(p - q);
    difference.absolute =
        std::max(difference.absolute, std::isfinite(apart) ? apart : std::numeric_limits<double>::infinity());
  });
  return difference;
}

/// The same of two functions of one batch: f(x) and g(x) return the tensors. A model is folded in a copy, or its outputs
/// are kept from before:
///
///     const ek::Difference d = ek::largest_difference(trained, folded, x);      // two lambdas
///     if (d.relative() > 1e-5) ...
template <class F, class G, class X>
  requires std::invocable<const F&, const X&> && std::invocable<const G&, const X&> Difference
  largest_difference(const F& f, const G& g, const X& x) {
    return largest_difference(f(x), g(x));
  }

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
