/// Small fixed lists of values, and structs whose members are all of one type. No Eigen, no CUDA header.
#pragma once

#include "evenkeel/config.hpp"

#include <type_traits>

namespace evenkeel::detail {

/// N values of V, indexed by constants: a loop over them would send packs to memory.
template <class V, int N>
struct Values {
  V value[N];
  EVENKEEL_HD V& operator[](int i) { return value[i]; }
  EVENKEEL_HD const V& operator[](int i) const { return value[i]; }
};
template <class V>
struct Values<V, 0> {
  V& operator[](int) const;  // of no value, so never defined: it stands in expansions over none of them
};

/// A parameter to which a driver adds `offset` as it loads it: what AffineMath<true> does, decided at run time.
template <class T, class A>
struct OffsetParameter {
  T* data;
  A offset;
};

/// An input of a pass on a CUDA device that is one number in its memory, the same for all rows and elements.
template <class T>
struct OneValue {
  T* data;
};

/// Whether a row starts from the mean of its first few elements in place of the first: where the start is a shift, that
/// lies nearer to the row's mean.
template <class M>
inline constexpr bool averages_shift = [] {
  if constexpr (requires { M::averages_shift; })
    return M::averages_shift;
  else
    return false;
}();

/// Number of members of the struct R<V>, all of which are V.
template <template <class> class R>
inline constexpr int field_count = std::is_empty_v<R<char>> ? 0 : static_cast<int>(sizeof(R<char>));

/// Calls f(k, member k) for each member of r: the bridge between structs with names and rows of numbers in memory.
EVENKEEL_MATH template <template <class> class R, class V, class F>
EVENKEEL_HD void for_each_field(R<V>& r, F&& f) {
  constexpr int count = field_count<R>;
  static_assert(count <= 6, "evenkeel: rows keep at most 6 values");
  if constexpr (count == 1) {
    auto& [a] = r;
    f(0, a);
  } else if constexpr (count == 2) {
    auto& [a, b] = r;
    f(0, a), f(1, b);
  } else if constexpr (count == 3) {
    auto& [a, b, c] = r;
    f(0, a), f(1, b), f(2, c);
  } else if constexpr (count == 4) {
    auto& [a, b, c, d] = r;
    f(0, a), f(1, b), f(2, c), f(3, d);
  } else if constexpr (count == 5) {
    auto& [a, b, c, d, e] = r;
    f(0, a), f(1, b), f(2, c), f(3, d), f(4, e);
  } else if constexpr (count == 6) {
    auto& [a, b, c, d, e, g] = r;
    f(0, a), f(1, b), f(2, c), f(3, d), f(4, e), f(5, g);
  }
}

}  // namespace evenkeel::detail
