// One case of cases.json: a fault from a public bug report with its exact right values.
//
// What a check wants is named by its JSON pointer: c.values("/inputs/x"), c.number("/params/eps"). A case remembers
// what was read of it, and unread() names the rest: a value that no check looks at is a hole in the test.
#pragma once

#include "support/catch.hpp"
#include "support/json.hpp"

#include <Eigen/Core>

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace cases_test {

using Values = std::vector<double>;
using Shape = std::vector<Eigen::Index>;

/// Numbers in row-major order.
struct Tensor {
  Shape shape;
  Values values;
};

struct Limit {
  double rtol = 0, atol = 0;
};

class Case {
 public:
  explicit Case(const support::Json& json) : json_(&json) {}

  std::string id() const;
  std::string title() const;
  std::string op() const;

  bool has(const std::string& pointer) const;
  /// A nested array, an object with shape and values, one with a formula, or a number, which is a tensor without axes.
  Tensor tensor(const std::string& pointer) const;
  Values values(const std::string& pointer) const { return tensor(pointer).values; }
  double number(const std::string& pointer) const;
  std::string text(const std::string& pointer) const;
  bool boolean(const std::string& pointer) const;
  bool is_null(const std::string& pointer) const;
  bool is_text(const std::string& pointer) const;
  /// Entries of an array, or members of an object.
  std::size_t size(const std::string& pointer) const;
  std::vector<std::string> keys(const std::string& pointer) const;

  /// The types to run, as `tol` names them.
  std::vector<std::string> types() const;
  /// rtol and atol of a result in a type: its own ones (dgamma_rtol, "dbeta": "exact") or the type's.
  Limit limit(const std::string& type, const std::string& result) const;
  /// Whether in this type only y is to be checked.
  bool y_only(const std::string& type) const;

  /// Pointers of all that was not read of params, inputs, expected.
  std::vector<std::string> unread() const;

 private:
  const support::Json* json_;
  mutable std::vector<std::string> read_;
  const support::Json& at(const std::string& pointer) const;
};

template <class T>
struct Type {
  using Scalar = T;
};

/// What of the double `values` is in a tensor of T.
template <class T>
double as(double value) {
  return static_cast<double>(static_cast<T>(value));
}

/// The distance from 1 to the next number of T. Eigen 3.4 has a wrong one for half.
template <class T>
constexpr double epsilon_of() {
  if constexpr (std::is_same_v<T, Eigen::half>)
    return 0x1p-10;
  else if constexpr (std::is_same_v<T, Eigen::bfloat16>)
    return 0x1p-7;
  else
    return std::numeric_limits<T>::epsilon();
}

template <class T>
constexpr const char* type_name() {
  if constexpr (std::is_same_v<T, double>)
    return "float64";
  else if constexpr (std::is_same_v<T, float>)
    return "float32";
  else if constexpr (std::is_same_v<T, Eigen::bfloat16>)
    return "bfloat16";
  else
    return "float16";
}

/// Calls f(Type<T>, name) with each T of the case's tolerances. A check of cases that name no 16-bit type says
/// for_each_type<double, float>, and is not compiled for the others.
template <class... T, class F>
void for_each_type(const Case& c, const F& f) {
  if constexpr (sizeof...(T) == 0) {
    for_each_type<double, float, Eigen::bfloat16, Eigen::half>(c, f);
  } else {
    for (const std::string& name : c.types()) {
      INFO("in " << name);
      const bool known = ((name == type_name<T>() && (f(Type<T>{}, name), true)) || ...);
      if (!known) FAIL_CHECK("this check is not compiled for " << name);
    }
  }
}

/// Empty where |got - expected| <= atol + rtol * |expected| everywhere (nan is equal to nan), or the worst place.
std::string difference(const Values& got, const Values& expected, const Limit& limit);
/// Empty where all values are the same bit for bit, or the first place where they are not.
std::string bit_difference(const Values& got, const Values& expected);

}  // namespace cases_test
