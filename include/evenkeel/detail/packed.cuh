/// Neighbouring elements in a thread's registers, as they lie in memory: halves stay two to a register until they are
/// used. See Elements in launch.cuh for elements that are values of their own.
#pragma once

#include "evenkeel/detail/launch.cuh"

#include <cstdint>
#include <type_traits>

namespace evenkeel::detail {

template <class T>
inline constexpr bool is_device_half_v = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;

/// N elements of T. The functions take constants for i.
template <class T, int N>
struct Packed {
  using Whole = Elements<T, N>;
  using Word = typename Whole::Word;
  using Piece = std::conditional_t<(sizeof(T) * N > 2), unsigned, unsigned short>;
  static constexpr int pieces = static_cast<int>(sizeof(T) * N / sizeof(Piece));
  static constexpr int pieces_per_word = static_cast<int>(sizeof(Word) / sizeof(Piece));

  Piece piece[pieces];

  template <class A>
  EVENKEEL_DEVICE A value(int i) const {
    if constexpr (sizeof(T) < sizeof(Piece) && std::is_same_v<T, __nv_bfloat16>) {
      // A bfloat16 is the upper half of a float.
      const unsigned bits = i % 2 == 0 ? piece[i / 2] << 16 : piece[i / 2] & 0xffff0000u;
      float wide;
      memcpy(&wide, &bits, sizeof(wide));
      return static_cast<A>(wide);
    } else {
      T element;
      if constexpr (sizeof(T) < sizeof(Piece)) {
        const auto bits = static_cast<unsigned short>(piece[i / 2] >> (i % 2 * 16));
        memcpy(&element, &bits, sizeof(T));
      } else {
        memcpy(&element, piece + i * static_cast<int>(sizeof(T) / sizeof(Piece)), sizeof(T));
      }
      return to<A>(element);
    }
  }

  /// values[i], rounded to T.
  template <class A>
  static EVENKEEL_DEVICE Packed of(const A (&values)[N]) {
    Packed packed;
    if constexpr (is_device_half_v<T> && std::is_same_v<A, float> && N > 1) {
#pragma unroll
      for (int i = 0; i < N; i += 2) packed.piece[i / 2] = packed_pair<T>(values[i], values[i + 1]);
    } else {
      T rounded[N];
#pragma unroll
      for (int i = 0; i < N; ++i) rounded[i] = to<T>(values[i]);
      memcpy(packed.piece, rounded, sizeof(packed.piece));
    }
    return packed;
  }

  /// Reads global memory. The address must be a multiple of Elements<T, N>::alignment. Constant: no thread writes there
  /// while the kernel runs.
  template <bool Constant = false>
  static EVENKEEL_DEVICE Packed load(const T* from) {
    Packed packed;
#pragma unroll
    for (int k = 0; k < Whole::words; ++k) {
      const Word* const at = reinterpret_cast<const Word*>(from) + k;
      Word word;
      if constexpr (Constant)
        word = load_constant_word(at);
      else
        word = *at;
      memcpy(packed.piece + k * pieces_per_word, &word, sizeof(Word));
    }
    return packed;
  }
  EVENKEEL_DEVICE void store(T* to) const {
#pragma unroll
    for (int k = 0; k < Whole::words; ++k) {
      Word word;
      memcpy(&word, piece + k * pieces_per_word, sizeof(Word));
      store_word(reinterpret_cast<Word*>(to) + k, word);
    }
  }
};

}  // namespace evenkeel::detail
