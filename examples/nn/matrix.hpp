#pragma once

#include "evenkeel/device.hpp"

#include <Eigen/Core>

namespace nn {

namespace ek = evenkeel;
using ek::Index;

/// Activations are (tokens, width), tokens = batch * context: one token's numbers lie side by side.
template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// What modules read and write: a Matrix, a Map or a block of rows, without a copy and without a template per
/// expression.
template <class T>
using Input = Eigen::Ref<const Matrix<T>>;
template <class T>
using Output = Eigen::Ref<Matrix<T>>;

}  // namespace nn
