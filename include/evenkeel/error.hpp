/// Errors that evenkeel's host functions throw, before any work is done.
#pragma once

#include <stdexcept>
#include <string>

namespace evenkeel {

/// A wrong shape, axis, option or overlap. The text names the function, the argument, what it got and what it expected.
class ShapeError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// A CUDA call or launch that failed. The text names the function and CUDA's own message.
class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

/// Out of line and never returning, so that checks cost their caller one compare.
[[noreturn]] inline void throw_shape_error(const std::string& function, const std::string& text) {
  throw ShapeError(function + ": " + text);
}

}  // namespace detail
}  // namespace evenkeel
