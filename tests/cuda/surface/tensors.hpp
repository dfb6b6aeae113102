/// What the units of this folder call functions with. They are compiled for their kernels, and never run.
#pragma once

#include "evenkeel/cuda.hpp"

namespace ek = evenkeel;

namespace surface {

template <class T>
using Matrix = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
template <class T>
using Vector = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;

/// Data of T, parameters of P.
template <class T, class P = float>
struct Tensors {
  ek::CudaStream device{nullptr, ek::CudaFacts{}};
  Matrix<T> x, y, z, dy, dx, dz;           // (rows, features)
  Vector<P> weight, bias, dweight, dbias;  // (features)
  P *alpha, *shift, *dalpha, *dshift;
  Matrix<P> scale, offset, dscale, doffset;  // (samples, features)
};

}  // namespace surface
