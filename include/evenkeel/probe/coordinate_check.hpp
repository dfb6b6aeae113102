/// The coordinate check of muP: does the size of an activation depend on the width of the model? G. Yang et al., "Tensor
/// Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter Transfer", 2022, appendix D.1.
#pragma once

#include "evenkeel/error.hpp"
#include "evenkeel/probe/record.hpp"
#include "evenkeel/probe/signal_statistics.hpp"
#include "evenkeel/probe/verdict.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace evenkeel {

/// What the widths say about one point.
enum class WidthTrend { stable, grows, shrinks, non_finite };

/// How the size of what passes one point goes with the width.
struct WidthFinding {
  std::string point;
  WidthTrend trend = WidthTrend::stable;
  double slope = 0;       ///< of log(mean |x|) over log(width), at the step where it is farthest from 0
  std::int64_t step = 0;  ///< that step
  std::string text;       ///< a sentence
};

/// What all points say together.
struct WidthVerdict {
  std::vector<WidthFinding> findings;  ///< one for each point

  /// No point grows, and all is finite. Shrinking is no fault by itself: under muP the logits of a fresh model do.
  bool passed() const {
    for (const WidthFinding& f : findings)
      if (f.trend == WidthTrend::grows || f.trend == WidthTrend::non_finite) return false;
    return true;
  }
  /// The sentences of all points, one a line.
  std::string text() const {
    std::string all;
    for (const WidthFinding& f : findings) all += f.text + '\n';
    return all;
  }
};

/// Options of CoordinateCheck.
struct CoordinateCheckOptions {
  /// Slopes up to this size are stable. A model that is not parametrized for its width has 0.5 or 1 after some steps.
  double slope = 0.1;
};

inline namespace EVENKEEL_ISA {

/// Trains the same model at several widths for a few steps, with one learning rate, and records points by name. Calls
/// for the same point, width and step, of several seeds or batches, are averaged.
///
///     ek::CoordinateCheck check;
///     for (width : {128, 256, 512, 1024})
///       for (step = 0; step < 4; ++step) { ...; check.record("block.0.out", width, step, x); ... }
///     std::cout << check.verdict().text();
class CoordinateCheck {
 public:
  explicit CoordinateCheck(CoordinateCheckOptions options = {}) : options_(options) {}

  /// Throws ShapeError for a width under 1.
  template <detail::Readable X>
  void record(std::string_view point, Index width, std::int64_t step, const X& x) {
    if (width < 1) detail::throw_shape_error("CoordinateCheck::record", "width is ", width, ", expected 1 or more");
    const SignalStatistics s = signal_statistics(x);
    Mean& mean = points_[std::string(point)][step][width];
    mean.sum += s.nan + s.inf > 0 ? std::numeric_limits<double>::quiet_NaN() : s.mean_absolute;
    ++mean.count;
  }

  /// The mean of |x|. Throws StateError where it was not recorded.
  double mean_absolute(std::string_view point, Index width, std::int64_t step) const {
    const auto& widths = widths_of("CoordinateCheck::mean_absolute", point, step);
    const auto found = widths.find(width);
    if (found == widths.end())
      detail::throw_state_error("CoordinateCheck::mean_absolute", "width ", width, " was not recorded at ",
                                std::string(point), " in step ", step);
    return found->second.value();
  }

  /// The least-squares slope of log(mean |x|) over log(width): 0 where it does not depend on the width, 1 where it grows
  /// in proportion. nan where a mean is 0 or not finite. Throws StateError with fewer than two widths.
  double slope(std::string_view point, std::int64_t step) const {
    return slope_of(point, step, widths_of("CoordinateCheck::slope", point, step));
  }

  /// One finding for each point. Steps at which a point is 0, such as the first one behind a head that starts at 0, say
  /// nothing. Throws StateError where a point has fewer than two widths.
  WidthVerdict verdict() const {
    WidthVerdict verdict;
    for (const auto& [point, steps] : points_) {
      WidthFinding finding;
      finding.point = point;
      for (const auto& [step, widths] : steps) {
        const double slope = slope_of(point, step, widths);
        if (is_finite(widths)) {
          if (std::isnan(slope) || std::abs(slope) < std::abs(finding.slope)) continue;
          finding.slope = slope;
          finding.step = step;
        } else {
          finding.trend = WidthTrend::non_finite;
          finding.step = step;
          break;
        }
      }
      describe(finding);
      verdict.findings.push_back(std::move(finding));
    }
    return verdict;
  }

  /// point,step,width,mean_absolute,records: one line for each width of each step.
  void write_csv(std::ostream& out) const {
    out << "point,step,width,mean_absolute,records\n";
    for (const auto& [point, steps] : points_)
      for (const auto& [step, widths] : steps)
        for (const auto& [width, mean] : widths) {
          detail::write_field(out, point);
          out << ',';
          detail::write_number(out, step);
          out << ',';
          detail::write_number(out, std::int64_t{width});
          out << ',';
          detail::write_number(out, mean.value());
          out << ',';
          detail::write_number(out, mean.count);
          out << '\n';
        }
  }

 private:
  struct Mean {
    double sum = 0;
    std::int64_t count = 0;
    double value() const { return sum / static_cast<double>(count); }
  };
  using Widths = std::map<Index, Mean>;

  const Widths& widths_of(const char* function, std::string_view point, std::int64_t step) const {
    const auto steps = points_.find(std::string(point));
    if (steps != points_.end()) {
      const auto widths = steps->second.find(step);
      if (widths != steps->second.end()) return widths->second;
    }
    detail::throw_state_error(function, "nothing was recorded at ", std::string(point), " in step ", step);
  }

  static bool is_finite(const Widths& widths) {
    for (const auto& [width, mean] : widths)
      if (!std::isfinite(mean.value())) return false;
    return true;
  }

  static double slope_of(std::string_view point, std::int64_t step, const Widths& widths) {
    if (widths.size() < 2)
      detail::throw_state_error("CoordinateCheck::slope", std::string(point), " has one width in step ", step,
                                ", expected two or more");
    double n = 0, x_sum = 0, y_sum = 0;
    for (const auto& [width, mean] : widths) {
      if (!(mean.value() > 0) || !std::isfinite(mean.value())) return std::numeric_limits<double>::quiet_NaN();
      n += 1;
      x_sum += std::log(static_cast<double>(width));
      y_sum += std::log(mean.value());
    }
    double xx = 0, xy = 0;
    for (const auto& [width, mean] : widths) {
      const double x = std::log(static_cast<double>(width)) - x_sum / n, y = std::log(mean.value()) - y_sum / n;
      xx += x * x;
      xy += x * y;
    }
    return xy / xx;
  }

  void describe(WidthFinding& f) const {
    const std::string at = " in step " + std::to_string(f.step);
    if (f.trend == WidthTrend::non_finite) {
      f.text = f.point + ": not finite" + at;
      return;
    }
    f.trend = std::abs(f.slope) <= options_.slope ? WidthTrend::stable
              : f.slope > 0                       ? WidthTrend::grows
                                                  : WidthTrend::shrinks;
    const char* const words = f.trend == WidthTrend::stable  ? "stable"
                              : f.trend == WidthTrend::grows ? "grows with the width"
                                                             : "shrinks with the width";
    f.text = f.point + ": " + words + ", mean |x| ~ width^" + detail::short_number(f.slope) + at;
  }

  CoordinateCheckOptions options_;
  std::map<std::string, std::map<std::int64_t, Widths>> points_;
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
