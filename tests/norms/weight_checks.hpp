// Weights of every rank, order and axis, and the comparison with weight_reference.hpp.
#pragma once

#include "norms/norm_under_test.hpp"
#include "support/devices.hpp"
#include "support/gradient_check.hpp"
#include "support/weight_reference.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

namespace weights_test {

using namespace norms_test;
using reference::Weighed;

// The slab of `extents` along `axis`, as Order lays it out.
template <std::size_t Rank>
Slab slab_along(std::array<std::size_t, Rank> extents, int axis, bool row_major) {
  std::vector<std::size_t> memory(extents.begin(), extents.end());
  auto a = std::size_t(axis);
  if (!row_major) {
    std::reverse(memory.begin(), memory.end());
    a = Rank - 1 - a;
  }
  return reference::slab(memory, a, a);
}

inline Slab whole_of(const Slab& s) { return {1, 1, s.size()}; }

// f(tensor of these extents, axis, slab) for both orders, every axis, counted from both ends.
template <class T, std::size_t Rank, class F>
void for_each_axis(std::array<std::size_t, Rank> extents, const F& f) {
  Eigen::array<Eigen::Index, Rank> dimensions;
  std::copy(extents.begin(), extents.end(), dimensions.begin());
  for (int axis = -int(Rank); axis < int(Rank); ++axis) {
    const int from_front = axis < 0 ? axis + int(Rank) : axis;
    INFO("rank " << Rank << ", axis " << axis);
    f(Eigen::Tensor<T, int(Rank), Eigen::RowMajor>(dimensions), axis, slab_along(extents, from_front, true));
    f(Eigen::Tensor<T, int(Rank)>(dimensions), axis, slab_along(extents, from_front, false));
  }
}

template <class T, class F>
void for_each_weight(const F& f) {
  for_each_axis<T, 1>({7}, f);
  for_each_axis<T, 2>({5, 9}, f);
  for_each_axis<T, 2>({33, 17}, f);
  for_each_axis<T, 2>({1, 64}, f);
  for_each_axis<T, 3>({6, 1, 5}, f);
  for_each_axis<T, 3>({16, 3, 7}, f);
  for_each_axis<T, 4>({4, 3, 5, 2}, f);
  for (const auto& [rows, cols] : {std::pair{3, 4}, std::pair{31, 65}}) {
    const std::array<std::size_t, 2> extents{std::size_t(rows), std::size_t(cols)};
    for (int axis : {0, 1}) {
      f(RowMatrix<T>(rows, cols), axis, slab_along(extents, axis, true));
      f(ColMatrix<T>(rows, cols), axis, slab_along(extents, axis, false));
    }
  }
}

template <class X>
X filled(X like, const Values& memory) {
  for (std::size_t i = 0; i < memory.size(); ++i) like.data()[i] = static_cast<typename X::Scalar>(memory[i]);
  return like;
}

template <class T>
double own_epsilon() {
  if constexpr (std::is_same_v<T, Eigen::half>) return 0x1p-10;  // Eigen 3.4 says 2^-13
  return double(std::numeric_limits<T>::epsilon());
}

// The largest error in units of what is allowed: everything is computed in double and rounded once to T, whose smallest
// step below its normal numbers is `least`.
template <class T>
double worst(const Values& got, const Weighed& expected, std::size_t summed) {
  if (got.size() != expected.value.size()) return INFINITY;
  double most = 0;
  const double least = double(std::numeric_limits<T>::denorm_min());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - expected.value[i]);
    if (error == 0) continue;
    if (!(error < INFINITY)) return INFINITY;
    // 0.51: on its way from double a 16-bit number is a float.
    const double allowed = support::tolerance(summed, expected.magnitude[i], own_epsilon<double>()) +
                           0.51 * own_epsilon<T>() * std::abs(expected.value[i]) + least;
    most = std::max(most, error / allowed);
  }
  return most;
}

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const ek::ShapeError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace weights_test
