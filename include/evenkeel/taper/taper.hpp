/// When TaperNorm does what: one gate for a whole network. arXiv 2602.10408, section 3.3.
///
///     g(k) = 1 up to step k_w,  (1 + cos(pi * (k - k_w)/(k_t - k_w)))/2 up to step k_t,  0 from there on
#pragma once

#include "evenkeel/device.hpp"
#include "evenkeel/error.hpp"
#include "evenkeel/taper/ema.hpp"

#include <cmath>

namespace evenkeel {

/// The gate as a function of the step. Steps count optimizer updates: the first forward sees step 0.
struct TaperSchedule {
  Index warmup_steps = 0;  ///< k_w: so many steps are trained at gate 1, and calibrated in
  Index end_step = 1;      ///< k_t: from this step on the gate is 0

  /// Throws ShapeError unless 0 <= warmup_steps < end_step.
  void check(const char* function) const {
    if (warmup_steps < 0 || end_step <= warmup_steps)
      detail::throw_shape_error(function, "warmup_steps is ", warmup_steps, " and end_step is ", end_step,
                                ", expected 0 <= warmup_steps < end_step");
  }
  /// g, exactly 1 and 0 at the ends.
  double gate(Index step) const {
    if (step <= warmup_steps) return 1;
    if (step >= end_step) return 0;
    const double part = static_cast<double>(step - warmup_steps) / static_cast<double>(end_step - warmup_steps);
    return 0.5 * (1 + std::cos(3.14159265358979323846 * part));
  }
};

/// What the layers of a Taper are doing.
enum class TaperPhase {
  warmup,    ///< plain norms that average what their factors will be computed from: steps 0 to k_w - 1
  tapering,  ///< the factors are fixed, the gate goes to 0: steps k_w to k_t - 1
  tapered    ///< no statistics any more: from step k_t on
};

/// A Taper as plain numbers, to be saved with a model and restored.
struct TaperState {
  Index step = 0;
};

/// The one gate that all tapered layers and the scale anchor of a network share. They keep its address, so it neither
/// moves nor is copied, and lives as long as they do.
///
///     ek::Taper taper({.warmup_steps = 1000, .end_step = 20000});
///     ek::TaperRmsNorm<float> norm(width, taper);
///     ...
///     optimizer.step();
///     taper.advance();
class Taper {
 public:
  /// `rate` is the weight of the newest batch in the averages of the warmup: the paper has 0.01 for training from the
  /// start, and 0.1 for fine-tuning. Throws ShapeError for an impossible schedule or a rate outside of (0, 1].
  explicit Taper(const TaperSchedule& schedule, double rate = 0.01)
      : schedule_(schedule), rate_(Ema::checked_rate("Taper::Taper", rate)) {
    schedule_.check("Taper::Taper");
  }
  Taper(const Taper&) = delete;
  Taper& operator=(const Taper&) = delete;

  Index step() const { return state_.step; }
  double gate() const { return schedule_.gate(state_.step); }
  TaperPhase phase() const {
    if (state_.step < schedule_.warmup_steps) return TaperPhase::warmup;
    return state_.step < schedule_.end_step ? TaperPhase::tapering : TaperPhase::tapered;
  }
  double rate() const { return rate_; }
  const TaperSchedule& schedule() const { return schedule_; }

  /// After each update of the parameters.
  void advance() { ++state_.step; }

  const TaperState& state() const { return state_; }
  /// Throws StateError for a negative step.
  void restore(const TaperState& state) {
    if (state.step < 0) detail::throw_state_error("Taper::restore", "got step ", state.step, ", expected 0 or more");
    state_ = state;
  }

 private:
  TaperSchedule schedule_;
  double rate_;
  TaperState state_;
};

}  // namespace evenkeel
