/// Weights that are mostly 0, or a copy of their input: sparse, identity, dirac.
///
/// Source of sparse: J. Martens, Deep learning via Hessian-free optimization, ICML 2010, section 5; shares of zeros as
/// in torch.nn.init.sparse_. Source of dirac: S. Zagoruyko, N. Komodakis, DiracNets, 2017, equation 1, as in
/// torch.nn.init.dirac_.
#pragma once

#include "evenkeel/detail/weight_places.hpp"
#include "evenkeel/init/distributions.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace evenkeel {

/// Options of sparse.
struct SparseOptions {
  double sparsity = 0.9;  ///< the share of zeros, from 0 to 1, rounded up to a whole number of them
  double std = 0.01;      ///< of the others
  int axis = 1;           ///< each index of it has that share of zeros: 1 for (out, in) as in torch, every input then
                          ///< feeds the same number of outputs; 0, every output is fed by the same number of inputs
};

/// Options of dirac: what the axes of the kernel mean. All others are its places.
struct DiracOptions {
  Index groups = 1;
  int output = 0;
  int input = 1;
};

inline namespace EVENKEEL_ISA {

/// N(0, std) with ceil(sparsity * n) zeros, at random places, among the n elements of each index of options.axis.
///
/// weight    an Eigen tensor or matrix with two axes or more, of any scalar, storage order and strides; its values are
///           the same in every storage
/// Writes the weight; one without elements is left alone. Allocates. Values and places are functions of the seed and the
/// stream. Throws ShapeError: fewer than two axes, no such axis, a sparsity outside of 0 to 1, a std that is negative or
/// not finite. Example: `ek::sparse(weight, ek::RandomStream(42, "weight"), {.sparsity = 0.95});`
template <class W>
  requires Fillable<W>
void sparse(W&& weight, const RandomStream& stream, const SparseOptions& options = {}) {
  using T = detail::scalar_t<W>;
  const detail::WeightPlaces places("sparse", weight);
  const int axis = places.axis("axis", options.axis);
  detail::require(options.sparsity >= 0 && options.sparsity <= 1, "sparse", "sparsity", options.sparsity,
                  "a share from 0 to 1");
  detail::require(std::isfinite(options.std) && options.std >= 0, "sparse", "std", options.std,
                  "a finite number of at least 0");
  if (places.size() == 0) return;
  const std::vector<Index> offsets = places.offsets_without(axis);
  const std::size_t count = offsets.size();
  // 0.07 * 100 is a little over 7 in double, and 8 is not what was meant.
  const auto zeros =
      static_cast<std::ptrdiff_t>(std::ceil(options.sparsity * static_cast<double>(count) * (1 - 1e-14)));
  std::vector<T> values(count);
  std::vector<double> keys(count);
  std::vector<std::size_t> order(count);
  for (Index unit = 0; unit < places.extent(axis); ++unit) {
    const auto first = static_cast<std::uint64_t>(unit) * count;
    T* const data = weight.data() + unit * places.stride(axis);
    stream.from(first).fill_normal(values.data(), static_cast<Index>(count), 0.0, options.std);
    // The zeros stand where keys are smallest. A block of the stream holds at least two of either, so that keys drawn
    // beyond the values share no block with them.
    const std::uint64_t beyond = 4 * static_cast<std::uint64_t>(places.size());
    stream.from(beyond + first).fill_uniform(keys.data(), static_cast<Index>(count));
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::partial_sort(order.begin(), order.begin() + zeros, order.end(),
                      [&keys](std::size_t a, std::size_t b) { return keys[a] != keys[b] ? keys[a] < keys[b] : a < b; });
    for (std::size_t i = 0; i < count; ++i)
      data[offsets[order[i]]] = static_cast<std::ptrdiff_t>(i) < zeros ? detail::rounded<T>(0) : values[order[i]];
  }
}

/// A matrix with `gain` on its diagonal and 0 elsewhere. It need not be square. Writes the weight. Throws ShapeError where
/// it has not two axes. Example: `ek::identity(recurrent_weight);`
template <class W>
  requires Fillable<W>
void identity(W&& weight, double gain = 1) {
  using T = detail::scalar_t<W>;
  const detail::WeightPlaces places("identity", weight);
  if (places.rank() != 2)
    detail::throw_shape_error("identity", "weight has ", places.rank(), " axes, expected two (", places.shape(),
                              "); dirac is the identity of a convolution");
  detail::clear_weight(places, weight.data());
  for (Index i = 0; i < std::min(places.extent(0), places.extent(1)); ++i)
    weight.data()[i * (places.stride(0) + places.stride(1))] = detail::rounded<T>(gain);
}

/// A convolution that hands its inputs on: in each group output i is input i, at the middle of the kernel (index extent /
/// 2 of every axis of places). Outputs beyond the inputs of a group are 0, inputs beyond its outputs are dropped.
///
/// weight    an Eigen tensor with two axes or more, of any scalar, order and strides: (out, in / groups, places...) in
///           torch's order
/// Writes the weight. Throws ShapeError: fewer than two axes, an axis that is not there or named twice, groups that do not
/// divide the outputs. Example: `ek::dirac(kernel, {.groups = 2});`
template <class W>
  requires Fillable<W>
void dirac(W&& weight, const DiracOptions& options = {}) {
  using T = detail::scalar_t<W>;
  const detail::WeightPlaces places("dirac", weight);
  const int output = places.axis("output", options.output), input = places.axis("input", options.input, output);
  if (options.groups < 1 || places.extent(output) % options.groups != 0)
    detail::throw_shape_error("dirac", "groups is ", options.groups, ", expected a divisor of the ",
                              places.extent(output), " outputs (", places.shape(), ")");
  detail::clear_weight(places, weight.data());
  if (places.size() == 0) return;
  T* const middle = weight.data() + places.center_without(output, input);
  const Index outputs = places.extent(output) / options.groups;
  for (Index group = 0; group < options.groups; ++group)
    for (Index i = 0; i < std::min(outputs, places.extent(input)); ++i)
      middle[(group * outputs + i) * places.stride(output) + i * places.stride(input)] = detail::rounded<T>(1);
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
