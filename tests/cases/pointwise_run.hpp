// One forward and backward of DyT or Derf over the numbers of a case, on any device and in the arrangements of
// row_run.hpp.
#pragma once

#include "cases/row_run.hpp"
#include "norms/pointwise_checks.hpp"

#include <vector>

namespace cases_test {

using norms_test::DerfUnderTest;
using norms_test::DytUnderTest;

struct PointwiseCase : RowCase {
  double alpha = 0, shift = 0;
};
struct PointwiseResult {
  Values y, dx, dalpha, dshift, dweight, dbias;
};

// Compiled once for each T, in pointwise_run.cpp.
template <class T, class Norm, class Device>
PointwiseResult run_pointwise(const Device& device, const PointwiseCase& c, Arrangement arrangement);

inline void check_same_bits(const PointwiseResult& got, const PointwiseResult& expected) {
  CHECK(bit_difference(got.y, expected.y) == "");
  CHECK(bit_difference(got.dx, expected.dx) == "");
  CHECK(bit_difference(got.dalpha, expected.dalpha) == "");
  CHECK(bit_difference(got.dshift, expected.dshift) == "");
  CHECK(bit_difference(got.dweight, expected.dweight) == "");
  CHECK(bit_difference(got.dbias, expected.dbias) == "");
}

// The results in all arrangements, each the same in ten runs and on every number of threads.
template <class T, class Norm>
std::vector<PointwiseResult> run_pointwise_everywhere(const PointwiseCase& c) {
  std::vector<PointwiseResult> results;
  for (const Arrangement arrangement : arrangements) {
    INFO("arrangement " << int(arrangement));
    results.push_back(run_pointwise<T, Norm>(ek::serial, c, arrangement));
    for (int repetition = 1; repetition < 10; ++repetition)
      check_same_bits(run_pointwise<T, Norm>(ek::serial, c, arrangement), results.back());
    for (const int threads : support::thread_counts)
      check_same_bits(run_pointwise<T, Norm>(support::ThreadPool(threads).device(), c, arrangement), results.back());
    if (arrangement == Arrangement::odd) check_same_bits(results.back(), results.front());
  }
  return results;
}

}  // namespace cases_test
