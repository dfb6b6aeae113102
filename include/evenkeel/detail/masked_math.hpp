/// Any norm over rows of which only some elements count. No Eigen, no CUDA header.
///
/// A mask is above 0 where an element counts. The rest enters no sum, whatever it holds, and its outputs are 0. Sums are
/// divided by the number of elements that count, in a row without any by nothing: all its sums are 0.
#pragma once

#include "evenkeel/detail/vocabulary.hpp"
#include "evenkeel/detail/wrapped_math.hpp"

#include <cstdint>
#include <type_traits>

namespace evenkeel::detail {

/// The sums of Norm, and the count of the row as one sum more.
template <class Norm>
struct MaskedMath : WrappedMath<Norm> {
  static constexpr int of_norm = Norm::sums, sums = of_norm + 1;
  static_assert(of_norm <= 2 && Norm::feature_sums <= 2, "evenkeel: masked maths have at most two sums");

  EVENKEEL_MATH template <class S, class Start>
  EVENKEEL_HD auto finish(const Values<S, sums>& s, const Start& start) const {
    const S inverse = splat<S>(1) / s[of_norm];
    return this->norm.finish(first(s), start, select_less(splat<S>(0), s[of_norm], inverse, s[of_norm]));
  }

 protected:
  EVENKEEL_MATH template <class S>
  EVENKEEL_HD static Values<S, of_norm> first(const Values<S, sums>& s) {
    Values<S, of_norm> f;
    f[0] = s[0];
    if constexpr (of_norm > 1) f[1] = s[1];
    return f;
  }
  /// Adds up what Norm does, where the mask is set.
  EVENKEEL_MATH template <class V, class Start, class... I>
  EVENKEEL_HD void accumulate_set(Values<V, sums>& s, Values<V, Norm::feature_sums>& terms, const V& mask,
                                  const Start& start, const I&... inputs) const {
    Values<V, of_norm> next = first(s);
    this->norm.accumulate(next, terms, start, inputs...);
    const V none_set = splat<V>(0);
    s[0] = select_less(none_set, mask, next[0], s[0]);
    if constexpr (of_norm > 1) s[1] = select_less(none_set, mask, next[1], s[1]);
    s[of_norm] += where(mask, splat<V>(1));
    if constexpr (Norm::feature_sums > 0) terms[0] = where(mask, terms[0]);
    if constexpr (Norm::feature_sums > 1) terms[1] = where(mask, terms[1]);
  }
};

/// Inputs x, mask; parameters and output those of Norm.
template <class Norm>
struct MaskedForward : MaskedMath<Norm> {
  using WrappedMath<Norm>::norm;
  using MaskedMath<Norm>::sums;

  EVENKEEL_MATH template <class Known, class S>
  EVENKEEL_HD auto start(const Known& known, const S& first, const S& mask) const {
    return norm.start(known, where(mask, first));
  }
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD V counts(const V&, const V& mask) const {
    return where(mask, splat<V>(1));
  }
  EVENKEEL_MATH template <class V, class Start, class... P>
  EVENKEEL_HD void accumulate(Values<V, sums>& s, Values<V, 0>& terms, const Start& start, const V& x, const V& mask,
                              const P&... parameters) const {
    this->accumulate_set(s, terms, mask, start, x, parameters...);
  }
  template <class... P>
  static double magnitude(double x, double mask, const P&... parameters) {
    return where(mask, Norm::magnitude(x, parameters...));
  }
  auto careful(double largest, std::int64_t length) const {
    const auto wide = norm.careful(largest, length);
    return MaskedForward<std::remove_const_t<decltype(wide)>>{{{wide}}};
  }
  EVENKEEL_MATH template <class V, class Row, class... P>
  EVENKEEL_HD void write(Values<V, 1>& y, const Row& row, const V& x, const V& mask, const P&... parameters) const {
    norm.write(y, row, x, parameters...);
    y[0] = where(mask, y[0]);
  }
};

/// Inputs dy, x, mask; parameter weight; output dx.
template <class Norm>
struct MaskedBackward : MaskedMath<Norm> {
  using WrappedMath<Norm>::norm;
  using MaskedMath<Norm>::sums;

  EVENKEEL_MATH template <class Known, class S>
  EVENKEEL_HD auto start(const Known& known, const S& dy, const S& x, const S&) const {
    return norm.start(known, dy, x, None{});
  }
  EVENKEEL_MATH template <class V, class Start, class W>
  EVENKEEL_HD void accumulate(Values<V, sums>& s, Values<V, Norm::feature_sums>& terms, const Start& start, const V& dy,
                              const V& x, const V& mask, const W& weight) const {
    this->accumulate_set(s, terms, mask, start, dy, x, None{}, weight);
  }
  template <class W>
  static double magnitude(double dy, double x, double mask, const W& weight) {
    return where(mask, Norm::magnitude(dy, x, None{}, weight));
  }
  auto careful(double largest, std::int64_t length) const {
    const auto wide = norm.careful(largest, length);
    return MaskedBackward<std::remove_const_t<decltype(wide)>>{{{wide}}};
  }
  EVENKEEL_MATH template <class V, class Row, class W>
  EVENKEEL_HD void write(Values<V, 1>& dx, const Row& row, const V& dy, const V& x, const V& mask,
                         const W& weight) const {
    norm.write(dx, row, dy, x, None{}, weight);
    dx[0] = where(mask, dx[0]);
  }
};

}  // namespace evenkeel::detail
