// One forward and backward of a norm of weights over given numbers, on tensors of 1 to 4 axes in both storage orders,
// with every output full of NaN before.
#pragma once

#include "cases/case.hpp"
#include "norms/norm_under_test.hpp"
#include "support/devices.hpp"

#include <optional>
#include <vector>

namespace cases_test {

namespace ek = evenkeel;

struct WeightCase {
  Shape shape;
  Values v, dw, g;          // v, dw in row-major order; dw and, for some norms, g may be empty
  std::optional<int> axis;  // that keeps its norms; none: one norm for the whole weight
};
struct WeightResult {
  Values w, dv, dg;
};

struct SpectralCase {
  Shape shape;
  Values w, dw_hat, u, v;  // w, dw_hat in row-major order; dw_hat may be empty
  int iterations = 1;
  int axis = 0;  // that counts the rows of the matrix; 1 for weights of two axes only
};
struct SpectralResult {
  Values w_hat, dw, u, v;
  double sigma = 0;
};

enum class WeightStandardizationKind { plain, scaled, scaled_added };

enum class Order { row_major, column_major };
inline constexpr Order orders[] = {Order::row_major, Order::column_major};

// Compiled once for each T, in weight_run.cpp.
template <class T, class Device>
WeightResult run_weight_norm(const Device& device, const WeightCase& c, Order order);
template <class T, class Device>
SpectralResult run_spectral_norm(const Device& device, const SpectralCase& c, Order order);
template <class T, class Device>
WeightResult run_standardization(const Device& device, const WeightCase& c, WeightStandardizationKind kind, double eps,
                                 Order order);
// The same numbers by the layer, in row-major order, with double or float parameters.
template <class T>
WeightResult run_weight_norm_layer(const WeightCase& c);
template <class T>
SpectralResult run_spectral_norm_layer(const SpectralCase& c);

// A vector of n ones with one norm and g = 1: the norm, and the least and the largest w.
struct OnesResult {
  double norm, least, most;
};
template <class T>
OnesResult run_weight_norm_of_ones(const Eigen::ThreadPoolDevice& device, Eigen::Index n, Eigen::Index repetitions);

inline void check_same_bits(const WeightResult& got, const WeightResult& expected) {
  CHECK(bit_difference(got.w, expected.w) == "");
  CHECK(bit_difference(got.dv, expected.dv) == "");
  CHECK(bit_difference(got.dg, expected.dg) == "");
}
inline void check_same_bits(const SpectralResult& got, const SpectralResult& expected) {
  CHECK(bit_difference(got.w_hat, expected.w_hat) == "");
  CHECK(bit_difference(got.dw, expected.dw) == "");
  CHECK(bit_difference(got.u, expected.u) == "");
  CHECK(bit_difference(got.v, expected.v) == "");
  CHECK(got.sigma == expected.sigma);
}

// run(device, order) in both storage orders, each the same in ten runs and on every number of threads.
template <class Run>
auto run_weights_everywhere(const Run& run) {
  std::vector<decltype(run(ek::serial, Order::row_major))> results;
  for (const Order order : orders) {
    INFO("order " << int(order));
    results.push_back(run(ek::serial, order));
    for (int repetition = 1; repetition < 10; ++repetition) check_same_bits(run(ek::serial, order), results.back());
    for (const int threads : support::thread_counts)
      check_same_bits(run(support::ThreadPool(threads).device(), order), results.back());
  }
  return results;
}

}  // namespace cases_test
