// What golden.json holds: numbers that PyTorch computed. make_golden.py says what the names mean.
#pragma once

#include <Eigen/Core>

#include <map>
#include <string>
#include <vector>

namespace golden {

using Values = std::vector<double>;
using Named = std::map<std::string, Values>;

struct Case {
  std::string op;
  std::vector<Eigen::Index> shape;
  std::map<std::string, double> options;  // without those that are null in the file
  std::string layout;
  Named inputs;                          // float32 numbers
  std::map<std::string, Named> results;  // by type
  std::map<std::string, bool> float32_parameters;

  bool has_input(const std::string& name) const { return inputs.count(name) > 0; }
  /// Of the inputs; empty where there is none.
  Values input(const std::string& name) const { return has_input(name) ? inputs.at(name) : Values(); }
  double option(const std::string& name, double without) const {
    return options.count(name) ? options.at(name) : without;
  }
  /// The shape, op and options, for messages.
  std::string text() const;
};

/// All of golden.json, read once. Throws where it cannot be read.
const std::vector<Case>& cases();
/// The PyTorch that made it.
std::string torch_version();

/// Standard normal rows without parameters.
struct Standard {
  int rows, features;
  Values x, layer_norm, rms_norm;
};
const Standard& standard_normal();

}  // namespace golden
