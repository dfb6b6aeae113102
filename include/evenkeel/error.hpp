/// Errors that evenkeel's host functions throw, before any work is done.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>

namespace evenkeel {

/// A wrong shape, axis, option or overlap. The text names the function, the argument, what it got and what it expected.
class ShapeError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// A call that does not fit the state of its object: calibrated twice, folded while the gate is open; or saved numbers
/// that no run can have left. The text names the function, what it got and what it expected.
class StateError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// A CUDA call or launch that failed. The text names the function and CUDA's own message.
class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An exchange with other ranks that cannot give its result: the call of one of them failed, or the messages do not fit.
/// The rank that failed throws an error of its own, which says why.
class RankError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

inline void append(std::string& text, const std::string& part) { text += part; }
inline void append(std::string& text, const char* part) { text += part; }
template <class Number>
  requires std::is_arithmetic_v<Number>
void append(std::string& text, Number part) { text += std::to_string(part); }

/// "function: parts", one after the other.
template <class... Parts>
std::string error_text(const char* function, const Parts&... parts) {
  std::string text = function;
  text += ": ";
  (append(text, parts), ...);
  return text;
}

/// Throws ShapeError "function: parts". Never returns, so that checks cost their caller one compare.
template <class... Parts>
[[noreturn]] void throw_shape_error(const char* function, const Parts&... parts) {
  throw ShapeError(error_text(function, parts...));
}

/// Throws StateError "function: parts".
template <class... Parts>
[[noreturn]] void throw_state_error(const char* function, const Parts&... parts) {
  throw StateError(error_text(function, parts...));
}

}  // namespace detail
}  // namespace evenkeel
