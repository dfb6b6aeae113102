// What the checks of all golden cases have in common: types, rounding, and the comparison with torch and the exact
// result.
#pragma once

#include "cases/case.hpp"
#include "evenkeel/scalar.hpp"
#include "golden/golden.hpp"
#include "support/tolerance.hpp"

#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <type_traits>

namespace golden {

namespace ek = evenkeel;
using cases_test::Type, cases_test::as, cases_test::epsilon_of;

// The largest |got - expected| in units of what is allowed; INFO for the caller's CHECK names the place.
struct Worst {
  double error = 0;
  std::size_t place = 0;
};
template <class F>
Worst worst_error(const Values& got, const Values& expected, const F& allowed) {
  if (got.size() != expected.size()) return {INFINITY, 0};
  Worst worst;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - expected[i]) / allowed(i);
    if (!(error <= worst.error)) worst = {error, i};
  }
  return worst;
}

// A result of the library against torch's, and against the exact one, whose magnitude both of their errors go by.
//
// Both sides round in the accumulator type. In a 16-bit type torch also rounds the statistics that its backward starts
// from and some sums, each by half of that type's epsilon of the magnitude; the library rounds once, at the store, so
// it is held to the exact result beside.
//
// `roundings` counts those halves in torch's 16-bit result: two but where its formula is made of more operations.
// TorchType is the type in which torch has the result, where that is narrower than the library's.
template <class T, class TorchType = T>
void expect(const char* name, const Values& got, const Values& torch, const Values& exact, const Values& magnitude,
            std::size_t summed, double roundings = 2) {
  INFO(name);
  using A = ek::accumulator_t<T>;
  const double narrow = std::is_same_v<T, A> ? 0 : epsilon_of<T>();
  const double torch_narrow = std::is_same_v<TorchType, ek::accumulator_t<TorchType>> ? 0 : epsilon_of<TorchType>();
  const Worst to_torch = worst_error(got, torch, [&](std::size_t i) {
    return 2 * support::tolerance(summed, magnitude[i], epsilon_of<A>()) + roundings / 2 * torch_narrow * magnitude[i];
  });
  REQUIRE(got.size() == torch.size());
  REQUIRE(got.size() == exact.size());
  if (got.empty()) return;
  INFO("at " << to_torch.place << ": got " << got.at(to_torch.place) << ", torch has " << torch.at(to_torch.place)
             << ", exact is " << exact.at(to_torch.place));
  CHECK(to_torch.error <= 1);
  const Worst to_exact = worst_error(got, exact, [&](std::size_t i) {
    return support::tolerance(summed, magnitude[i], epsilon_of<A>()) + narrow / 2 * std::abs(exact[i]);
  });
  INFO("at " << to_exact.place << ": got " << got.at(to_exact.place) << ", exact is " << exact.at(to_exact.place));
  CHECK(to_exact.error <= 1);
}

template <class T>
Values rounded(Values values) {
  for (double& v : values) v = as<T>(v);
  return values;
}

// Calls f(Type<T>, Type<P>, results) for each type of the case, T being that of the data and P that of the parameters.
template <class F>
void for_each_result(const Case& c, const F& f) {
  for (const auto& [name, results] : c.results) {
    INFO("in " << name);
    const bool wide = c.float32_parameters.at(name);
    if (name == "float64")
      f(Type<double>{}, Type<double>{}, results);
    else if (name == "float32")
      f(Type<float>{}, Type<float>{}, results);
    else if (name == "bfloat16" && wide)
      f(Type<Eigen::bfloat16>{}, Type<float>{}, results);
    else if (name == "bfloat16")
      f(Type<Eigen::bfloat16>{}, Type<Eigen::bfloat16>{}, results);
    else if (name == "float16" && wide)
      f(Type<Eigen::half>{}, Type<float>{}, results);
    else if (name == "float16")
      f(Type<Eigen::half>{}, Type<Eigen::half>{}, results);
    else
      FAIL_CHECK("no such type: " << name);
  }
}

using Check = void (*)(const Case&);
using Table = std::map<std::string, Check>;

void add_row_norms(Table& table);
void add_channel_norms(Table& table);
void add_module_steps(Table& table);
void add_weight_norms(Table& table);
void add_pointwise_norms(Table& table);

}  // namespace golden
