/// An average of a stream of numbers in which old ones fade, and which is right from the first number on: D. P. Kingma,
/// J. Ba, "Adam", 2015, section 3.
///
///     average = (1 - rate) * average + rate * x,  value = average / (1 - (1 - rate)^t)
///
/// The rate is the weight of the NEW number, as everywhere in evenkeel.
#pragma once

#include "evenkeel/device.hpp"
#include "evenkeel/error.hpp"

#include <cmath>

namespace evenkeel {

/// An Ema as plain numbers, to be saved with a model and restored.
struct EmaState {
  double sum = 0;     ///< the weighted sum of what was added
  double weight = 0;  ///< the sum of its weights, 1 - (1 - rate)^t
  Index count = 0;    ///< t, the numbers added
};

/// The average. `ek::Ema ema(0.01); ema.add(loss); ema.value();`
class Ema {
 public:
  /// Throws ShapeError unless 0 < rate <= 1.
  explicit Ema(double rate = 0.01) : rate_(checked_rate("Ema::Ema", rate)) {}

  /// Throws StateError if x is not finite: one such number would stay in the average for good.
  void add(double x) {
    if (!std::isfinite(x)) detail::throw_state_error("Ema::add", "got ", x, ", expected a finite number");
    state_.sum = (1 - rate_) * state_.sum + rate_ * x;
    state_.weight = (1 - rate_) * state_.weight + rate_;
    ++state_.count;
  }
  /// The bias-corrected average. Throws StateError if nothing was added.
  double value() const {
    if (empty()) detail::throw_state_error("Ema::value", "got no numbers yet, expected 1 or more");
    return state_.sum / state_.weight;
  }
  bool empty() const { return state_.count == 0; }
  Index count() const { return state_.count; }
  double rate() const { return rate_; }

  const EmaState& state() const { return state_; }
  /// Throws StateError for numbers that no stream leaves.
  void restore(const EmaState& state) {
    const bool fresh = state.count == 0 && state.weight == 0 && state.sum == 0;
    const bool some = state.count > 0 && state.weight > 0 && state.weight <= 1 + 1e-9 && std::isfinite(state.sum);
    if (!fresh && !some)
      detail::throw_state_error("Ema::restore", "got sum ", state.sum, ", weight ", state.weight, ", count ",
                                state.count, ", expected a finite sum and a weight from 0 to 1 that is 0 with count 0");
    state_ = state;
  }

  /// The rate itself, where it is one.
  static double checked_rate(const char* function, double rate) {
    if (!(rate > 0 && rate <= 1))
      detail::throw_shape_error(function, "the rate is ", rate, ", expected more than 0 and at most 1");
    return rate;
  }

 private:
  double rate_;
  EmaState state_;
};

}  // namespace evenkeel
