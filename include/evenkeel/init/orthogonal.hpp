/// Orthogonal initializers: weights that keep the length of what goes through them.
///
///   orthogonal          W = gain * Q, W as a matrix (rows: the output units, columns: all other axes)
///                       QR of a normal matrix, columns of Q times sign(diag R); transposed where rows < columns
///   delta_orthogonal    a convolution that is such a matrix at the middle of its kernel and 0 elsewhere
///
/// The signs make Q uniformly distributed (Haar): without them it depends on a convention of the QR. All is computed in
/// double by Householder's reflections and rounded once, also for float, half and bfloat16; the bits of Q are those of
/// one instruction set, its value is the same everywhere.
///
/// Source: A. Saxe, J. McClelland, S. Ganguli, Exact solutions to the nonlinear dynamics of learning in deep linear
/// neural networks, ICLR 2014; F. Mezzadri, How to generate random matrices from the classical compact groups, Notices
/// of the AMS 54, 2007, section 5; L. Xiao et al., Dynamical isometry and a mean field theory of CNNs, ICML 2018,
/// algorithm 1.
#pragma once

#include "evenkeel/detail/weight_places.hpp"
#include "evenkeel/init/distributions.hpp"

#include <Eigen/Core>
#include <Eigen/QR>

#include <cmath>
#include <cstddef>
#include <type_traits>
#include <vector>

namespace evenkeel {

/// Options of orthogonal.
struct OrthogonalOptions {
  double gain = 1;
  int output = 0;  ///< the axis of the output units, the rows of the matrix; 1 for x W with W of (in, out)
};

/// Options of delta_orthogonal: what the axes of the kernel mean. All others are its places.
struct DeltaOrthogonalOptions {
  double gain = 1;
  int output = 0;
  int input = 1;
};

namespace detail::inline EVENKEEL_ISA {

using DoubleMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic>;

/// The first columns of a Haar-distributed orthogonal matrix, made of a normal one with at least as many rows. A template
/// only so that units that do not call it need not compile a QR.
template <class Matrix>
Matrix haar_columns(const Matrix& normal) {
  const Eigen::HouseholderQR<Matrix> qr(normal);
  Matrix q = Matrix::Identity(normal.rows(), normal.cols());
  q.applyOnTheLeft(qr.householderQ());
  for (Index j = 0; j < q.cols(); ++j)
    if (qr.matrixQR()(j, j) < 0) q.col(j) = -q.col(j);
  return q;
}

/// rows x columns with orthonormal rows or columns. The numbers are drawn row by row, as floats for every T but double.
template <class T, class Source>
DoubleMatrix orthogonal_matrix(const char* function, Index rows, Index columns, Source& source) {
  using Drawn = std::conditional_t<std::is_same_v<T, double>, double, float>;
  Eigen::Matrix<Drawn, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> drawn(rows, columns);
  fill_normal(function, drawn.data(), drawn.size(), 0, 1, source);
  const DoubleMatrix normal = drawn.template cast<double>();
  if (rows >= columns) return haar_columns(normal);
  return haar_columns(DoubleMatrix(normal.transpose())).transpose();
}

inline void require_orthogonal_gain(const char* function, double gain) {
  require(std::isfinite(gain), function, "gain", gain, "a finite number");
}

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// W = gain * Q with orthonormal rows or columns, of which there are fewer: W W^T = gain^2 I where rows <= columns, W^T W
/// = gain^2 I where rows >= columns.
///
/// weight    an Eigen tensor or matrix with two axes or more, of any scalar, storage order and strides: its values are
///           the same in every storage. Rows are the indices of options.output, columns those of all other axes, the last
///           one fastest.
/// source    a RandomStream, from its index 0 on, or a TorchRandom: then these are torch.nn.init.orthogonal_'s weights,
///           up to roundings, for axis 0
/// Writes the weight; one without elements is left alone. Allocates. Throws ShapeError: fewer than two axes, no such
/// axis, a gain that is not finite. Example:
///
///   Eigen::MatrixXf weight(256, 1024);
///   ek::orthogonal(weight, ek::RandomStream(42, "weight"), {.gain = ek::relu_gain});
template <class W, RandomSource Source>
  requires Fillable<W>
void orthogonal(W&& weight, Source&& source, const OrthogonalOptions& options = {}) {
  using T = detail::scalar_t<W>;
  const detail::WeightPlaces places("orthogonal", weight);
  const int output = places.axis("output", options.output);
  detail::require_orthogonal_gain("orthogonal", options.gain);
  if (places.size() == 0) return;
  const std::vector<Index> columns = places.offsets_without(output);
  const auto count = static_cast<Index>(columns.size());
  const auto q = detail::orthogonal_matrix<T>("orthogonal", places.extent(output), count, source);
  T* const data = weight.data();
  for (Index j = 0; j < count; ++j)
    for (Index i = 0; i < q.rows(); ++i)
      data[i * places.stride(output) + columns[static_cast<std::size_t>(j)]] =
          detail::rounded<T>(options.gain * q(i, j));
}

/// A kernel that is 0 but for its middle, index extent / 2 of every axis of places, where it is gain * Q with orthonormal
/// columns: what goes in at a place comes out there, as long as it was.
///
/// weight    an Eigen tensor with options.output and options.input among its axes, of any scalar, order and strides; at
///           least as many outputs as inputs. Two axes alone are a kernel of one place.
/// Writes the weight; one without elements is left alone. Allocates. Throws ShapeError: fewer outputs than inputs, fewer
/// than two axes, an axis that is not there or named twice, a gain that is not finite. Example, torch's layout:
///
///   Eigen::Tensor<float, 4, Eigen::RowMajor> kernel(64, 32, 3, 3);
///   ek::delta_orthogonal(kernel, ek::RandomStream(42, "conv.weight"));
template <class W, RandomSource Source>
  requires Fillable<W>
void delta_orthogonal(W&& weight, Source&& source, const DeltaOrthogonalOptions& options = {}) {
  using T = detail::scalar_t<W>;
  const char* const function = "delta_orthogonal";
  const detail::WeightPlaces places(function, weight);
  const int output = places.axis("output", options.output), input = places.axis("input", options.input, output);
  detail::require_orthogonal_gain(function, options.gain);
  const Index rows = places.extent(output), columns = places.extent(input);
  if (rows < columns)
    detail::throw_shape_error(function, "weight has ", rows, " outputs and ", columns,
                              " inputs, expected at least as many outputs (", places.shape(), ")");
  if (places.size() == 0) return;
  const auto q = detail::orthogonal_matrix<T>(function, rows, columns, source);
  detail::clear_weight(places, weight.data());
  T* const middle = weight.data() + places.center_without(output, input);
  for (Index j = 0; j < columns; ++j)
    for (Index i = 0; i < rows; ++i)
      middle[i * places.stride(output) + j * places.stride(input)] = detail::rounded<T>(options.gain * q(i, j));
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
