#pragma once

#include "nn/matrix.hpp"

#include <cmath>

namespace nn {

/// Rotary positions: the pair (x[j], x[j + half]) of a query or key at position p turns by p * 10000^(-j/half), so that
/// their scalar product depends on the distance of the two positions alone.
/// Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021, equation 15.
template <class T>
class RotaryPositions {
 public:
  RotaryPositions(Index context, Index head_width)
      : cosine_(context, head_width / 2), sine_(context, head_width / 2) {  // (context, head_width / 2)
    const Index half = head_width / 2;
    for (Index position = 0; position < context; ++position) {
      for (Index j = 0; j < half; ++j) {
        const double angle = double(position) * std::pow(10000.0, -double(j) / double(half));
        cosine_(position, j) = T(std::cos(angle));
        sine_(position, j) = T(std::sin(angle));
      }
    }
  }

  /// x (tokens, head_width), in place; its first row is the token at position `start`.
  void rotate(Output<T> x, Index start = 0) const { turn(x, start, T(1)); }

  /// The gradient of a rotation is the rotation back.
  void rotate_back(Output<T> dx) const { turn(dx, 0, T(-1)); }

 private:
  void turn(Output<T>& x, Index start, T direction) const {
    const Index half = cosine_.cols();
    for (Index row = 0; row < x.rows(); ++row) {
      T* first = &x(row, 0);
      T* second = first + half;
      const T* cosine = &cosine_(start + row, 0);
      const T* sine = &sine_(start + row, 0);
      for (Index j = 0; j < half; ++j) {
        const T a = first[j], b = second[j], s = direction * sine[j];
        first[j] = a * cosine[j] - b * s;
        second[j] = a * s + b * cosine[j];
      }
    }
  }

  Matrix<T> cosine_, sine_;
};

}  // namespace nn
