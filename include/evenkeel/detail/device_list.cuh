/// Lists of values of several types, and loops over constants, for kernels: std::tuple and std::integral_constant are not
/// for device code.
#pragma once

#include "evenkeel/config.hpp"
#include "evenkeel/detail/launch.cuh"

#include <utility>

namespace evenkeel::detail {

/// Values of several types: std::tuple is not for device code.
template <class... T>
struct List;
template <>
struct List<> {};
template <class T, class... Rest>
struct List<T, Rest...> {
  T first;
  List<Rest...> rest;
};

template <int I, class L>
EVENKEEL_HD auto& at(L& list) {
  if constexpr (I == 0)
    return list.first;
  else
    return at<I - 1>(list.rest);
}

inline List<> make_list() { return {}; }
template <class T, class... Rest>
List<T, Rest...> make_list(const T& first, const Rest&... rest) {
  return {first, make_list(rest...)};
}

/// A number as a type: std::integral_constant is not for device code.
template <int I>
struct Constant {
  EVENKEEL_HD constexpr operator int() const { return I; }
};

/// Calls f with the constants 0 .. N-1.
template <int N, class F>
EVENKEEL_DEVICE void each(const F& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) { (f(Constant<I>{}), ...); }
  (std::make_integer_sequence<int, N>{});
}

}  // namespace evenkeel::detail
