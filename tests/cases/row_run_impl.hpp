// The function template of row_run.hpp, and a macro that compiles it for all types of one norm.
#pragma once

#include "cases/row_run.hpp"

namespace cases_test {

template <class T, class Norm, class Device>
RowResult run(const Device& device, const RowCase& c, Arrangement arrangement) {
  using norms_test::values_of, norms_test::vector_of;
  RowResult result;
  Memory<T> x(c, arrangement, c.x), y(c, arrangement);
  const auto weight = vector_of<T>(c.weight), bias = vector_of<T>(c.bias);
  typename Norm::template Saved<ek::accumulator_t<T>> saved;
  norms_test::Vector<T> dweight = norms_test::Vector<T>::Constant(c.length, norms_test::nan_of<T>()), dbias = dweight;
  const auto both_ways = [&](const auto& w, const auto& b, auto&& dw, auto&& db) {
    Norm::forward(device, x.map(), w, b, y.map(), saved, options_of<Norm>(c));
    if (c.dy.empty() && c.rows > 0) return;
    Memory<T> dy(c, arrangement, c.dy), dx(c, arrangement);
    Norm::backward(device, dy.map(), x.map(), w, saved, dx.map(), dw, db, ek::GradientMode::overwrite);
    result.dx = dx.values();
    result.dweight = values_of(dw);
    result.dbias = values_of(db);
  };
  if (c.weight.empty() && c.bias.empty())
    both_ways(ek::none, ek::none, ek::none, ek::none);
  else if (c.bias.empty())
    both_ways(weight, ek::none, dweight, ek::none);
  else if constexpr (Norm::centred) {
    if (c.weight.empty())
      both_ways(ek::none, bias, ek::none, dbias);
    else
      both_ways(weight, bias, dweight, dbias);
  }
  result.y = y.values();
  for (Eigen::Index r = 0; r < saved.rows(); ++r) {
    if constexpr (requires { saved.rstd(r); }) result.rstd.push_back(static_cast<double>(saved.rstd(r)));
    if constexpr (Norm::centred) result.mean.push_back(static_cast<double>(saved.mean(r)));
  }
  return result;
}

}  // namespace cases_test

#define CASES_TEST_RUN(T, Norm)                                                                                  \
  template cases_test::RowResult cases_test::run<T, Norm>(const evenkeel::Serial&, const RowCase&, Arrangement); \
  template cases_test::RowResult cases_test::run<T, Norm>(const Eigen::ThreadPoolDevice&, const RowCase&, Arrangement)
