/// Walks over the elements of tensors of any kind: what is done once, or now and then, and needs no speed.
#pragma once

#include "evenkeel/view.hpp"

#include <Eigen/Core>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// What has values to read: a tensor argument, or an Eigen expression of matrices and arrays.
template <class X>
concept Readable = is_tensor_argument<X> || requires(const X& x) {
  x.derived().rows();
  x.eval();
};

/// A tensor argument as it is, or the values of an expression that has no memory of its own.
template <Readable X>
decltype(auto) evaluated(const X& x) {
  if constexpr (is_tensor_argument<X>)
    return (x);
  else
    return x.eval();
}

/// The layout of a tensor argument, views included: (outer 0, outer 1, length, inner).
template <class X>
Layout places_of(const X& x) {
  if constexpr (is_axis_view<X>) {
    Layout layout;
    layout.rank = 4;
    layout.extent = {x.outer[0], x.outer[1], x.length, x.inner};
    layout.stride = {x.outer_stride[0], x.outer_stride[1], x.stride, x.inner_stride};
    return layout;
  } else {
    return layout_of(x);
  }
}

template <std::size_t N, class F>
void walk(const std::array<Layout, N>& tensors, int level, std::array<Index, N> at, const F& f) {
  const Layout& first = tensors[0];
  if (level == first.rank) return f(at);
  const auto axis = static_cast<std::size_t>(first.row_major ? level : first.rank - 1 - level);
  const bool last = level + 1 == first.rank;
  for (Index i = 0; i < first.extent[axis]; ++i) {
    if (last)
      f(at);
    else
      walk(tensors, level + 1, at, f);
    for (std::size_t n = 0; n < N; ++n) at[n] += tensors[n].stride[axis];
  }
}

/// f(offsets), with the offset of the same element in each of the tensors, which have the same extents. In the storage
/// order of the first.
template <std::size_t N, class F>
void for_each_place(const std::array<Layout, N>& tensors, const F& f) {
  walk(tensors, 0, std::array<Index, N>{}, f);
}

/// The offsets of the elements along some axes, in the order in which these are named, the last one fastest.
inline std::vector<Index> offsets_along(const Layout& layout, const std::vector<int>& axes) {
  std::vector<Index> offsets{0};
  for (const int axis : axes) {
    const auto a = static_cast<std::size_t>(axis);
    std::vector<Index> longer;
    longer.reserve(offsets.size() * static_cast<std::size_t>(layout.extent[a]));
    for (const Index from : offsets)
      for (Index i = 0; i < layout.extent[a]; ++i) longer.push_back(from + i * layout.stride[a]);
    offsets.swap(longer);
  }
  return offsets;
}
inline std::vector<Index> all_offsets(const Layout& layout) {
  std::vector<int> axes;
  for (int a = 0; a < layout.rank; ++a) axes.push_back(a);
  return offsets_along(layout, axes);
}

/// Whether two tensors have an element's memory in common.
template <class T, class U>
bool share_memory(const T* a, const Layout& a_layout, const U* b, const Layout& b_layout) {
  struct Span {
    std::uintptr_t begin, end;
  };
  const auto span = [](const auto* data, const Layout& layout) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    if (layout.size() == 0) return Span{begin, begin};
    Index last = 0;
    for (int k = 0; k < layout.rank; ++k)
      last += (layout.extent[static_cast<std::size_t>(k)] - 1) * layout.stride[static_cast<std::size_t>(k)];
    return Span{begin, begin + static_cast<std::uintptr_t>(last + 1) * sizeof(*data)};
  };
  const Span a_span = span(a, a_layout), b_span = span(b, b_layout);
  if (a_span.end <= b_span.begin || b_span.end <= a_span.begin) return false;
  // Elements may interleave without touching, as a bias that is the last row of a column-major weight does.
  std::vector<bool> taken(a_span.end - a_span.begin);
  for_each_place(std::array{a_layout}, [&](const auto& at) {
    const auto byte = static_cast<std::size_t>(at[0]) * sizeof(T);
    for (std::size_t i = 0; i < sizeof(T); ++i) taken[byte + i] = true;
  });
  bool shared = false;
  for_each_place(std::array{b_layout}, [&](const auto& at) {
    const auto begin = b_span.begin + static_cast<std::uintptr_t>(at[0]) * sizeof(U);
    for (auto byte = begin; byte < begin + sizeof(U); ++byte)
      if (byte >= a_span.begin && byte < a_span.end && taken[byte - a_span.begin]) shared = true;
  });
  return shared;
}

/// A double as the nearest T. A 16-bit T goes by way of float, which is cut off with its last bit set where something
/// was lost: rounded to nearest twice, a value beside the middle of two could go the wrong way.
template <Scalar T>
T round_from_double(double x) {
  if constexpr (is_half_v<T>) {
    float f = static_cast<float>(x);
    if (std::isfinite(x) && static_cast<double>(f) != x) {
      std::uint32_t bits;
      std::memcpy(&bits, &f, sizeof bits);
      if (std::abs(static_cast<double>(f)) > std::abs(x)) --bits;
      bits |= 1u;
      std::memcpy(&f, &bits, sizeof bits);
    }
    return static_cast<T>(f);
  } else {
    return static_cast<T>(x);
  }
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
