#pragma once

#include <chrono>
#include <utility>

namespace nn {

/// Adds up the time between start and stop, in seconds.
class Stopwatch {
 public:
  template <class F>
  void time(F&& f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  double seconds() const { return seconds_; }

 private:
  double seconds_ = 0;
};

/// A norm whose work is added to a stopwatch, which must outlive it; otherwise it is the norm itself.
template <class Norm>
class TimedNorm {
 public:
  using Scalar = typename Norm::Scalar;

  TimedNorm(Stopwatch& stopwatch, Norm norm) : stopwatch_(&stopwatch), norm_(std::move(norm)) {}

  template <class... Arguments>
  void forward(Arguments&&... arguments) {
    stopwatch_->time([&] { norm_.forward(std::forward<Arguments>(arguments)...); });
  }
  template <class... Arguments>
  void backward(Arguments&&... arguments) {
    stopwatch_->time([&] { norm_.backward(std::forward<Arguments>(arguments)...); });
  }
  template <class... Arguments>
  void add_forward(Arguments&&... arguments) {
    stopwatch_->time([&] { norm_.add_forward(std::forward<Arguments>(arguments)...); });
  }
  template <class... Arguments>
  void add_backward(Arguments&&... arguments) {
    stopwatch_->time([&] { norm_.add_backward(std::forward<Arguments>(arguments)...); });
  }
  template <class F>
  void for_each_parameter(F&& f) {
    norm_.for_each_parameter(f);
  }
  Norm& norm() { return norm_; }
  /// For norms that have them.
  auto linear_map() const requires requires(const Norm& norm) { norm.linear_map(); }
  { return norm_.linear_map(); }

 private:
  Stopwatch* stopwatch_;
  Norm norm_;
};

}  // namespace nn
