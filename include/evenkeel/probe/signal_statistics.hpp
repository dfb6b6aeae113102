/// What one look at a tensor tells about a signal.
#pragma once

#include "evenkeel/detail/arguments.hpp"
#include "evenkeel/detail/places.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace evenkeel {

/// Statistics of the finite values of a tensor, in double, and how many others there were.
struct SignalStatistics {
  std::int64_t count = 0;  ///< all values
  std::int64_t nan = 0, inf = 0;
  double mean = 0;
  double second_moment = 0;  ///< the mean of squares
  double largest = 0;        ///< the largest absolute value
  double mean_absolute = 0;

  std::int64_t finite() const { return count - nan - inf; }
  double root_mean_square() const { return std::sqrt(second_moment); }
  double norm() const { return std::sqrt(second_moment * static_cast<double>(finite())); }
};

/// How much of a gradient points along the signal that it belongs to. Behind a norm that all of the signal goes through
/// nothing does; without one, a loss of logits pushes the signal outwards (its gradient along it is negative).
struct RadialStatistics {
  SignalStatistics gradient;
  double radial = 0;  ///< <dh, h> / (|dh| |h|), over all rows; 0 where one of them is 0
  /// sqrt(features) times the root mean square, over rows, of the same quotient of one row: near 1 for directions that
  /// have nothing to do with each other, 0 behind a norm, sqrt(features) where they are parallel.
  double radial_rows = 0;
};

namespace detail::inline EVENKEEL_ISA {

/// Plain sums: squares of all floats have room in double, and means are not subtracted from each other.
struct SignalSums {
  SignalStatistics seen;
  double sum = 0, squares = 0, absolute = 0;

  void add(double x) {
    ++seen.count;
    if (std::isnan(x)) {
      ++seen.nan;
    } else if (std::isinf(x)) {
      ++seen.inf;
    } else {
      sum += x;
      squares += x * x;
      absolute += std::abs(x);
      seen.largest = std::max(seen.largest, std::abs(x));
    }
  }
  SignalStatistics statistics() const {
    SignalStatistics s = seen;
    if (s.finite() == 0) return s;
    const auto n = static_cast<double>(s.finite());
    s.mean = sum / n;
    s.second_moment = squares / n;
    s.mean_absolute = absolute / n;
    return s;
  }
};

/// f(value as double), in storage order.
template <Readable X, class F>
void for_each_value(const X& x, const F& f) {
  const auto& values = evaluated(x);
  const auto* const data = data_of(values);
  for_each_place(std::array{places_of(values)}, [&](const auto& at) { f(static_cast<double>(data[at[0]])); });
}

template <class H, class D>
RadialStatistics radial_statistics_of(const char* function, const H& h, const D& dh, const Axes& axis) {
  RowArguments arguments(function);
  const auto h_rows = arguments.reference("h", h, axis);
  const auto d_rows = arguments.input("dh", dh);
  const RowGrid grid = arguments.grid();
  SignalSums sums;
  double dot = 0, h_squares = 0, d_squares = 0, rows = 0, quotients = 0;
  for (Index r = 0; r < grid.rows(); ++r) {
    double row_dot = 0, row_h = 0, row_d = 0;
    for (Index i = 0; i < grid.length; ++i) {
      const auto x = static_cast<double>(*element_at(h_rows, grid, r, i)),
                 dx = static_cast<double>(*element_at(d_rows, grid, r, i));
      sums.add(dx);
      row_dot += dx * x;
      row_h += x * x;
      row_d += dx * dx;
    }
    const double product = row_h * row_d;
    // A row of padding has no direction, and one that is not finite is counted by `sums`.
    if (!(product > 0) || !std::isfinite(product)) continue;
    dot += row_dot;
    h_squares += row_h;
    d_squares += row_d;
    quotients += row_dot / product * row_dot;
    rows += 1;
  }
  RadialStatistics result{sums.statistics()};
  if (rows == 0) return result;
  result.radial = dot / (std::sqrt(h_squares) * std::sqrt(d_squares));
  result.radial_rows = std::sqrt(quotients / rows * static_cast<double>(grid.length));
  return result;
}

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// The statistics of any tensor, view or matrix expression, of any scalar, in one pass.
template <detail::Readable X>
SignalStatistics signal_statistics(const X& x) {
  detail::SignalSums sums;
  detail::for_each_value(x, [&](double value) { sums.add(value); });
  return sums.statistics();
}

/// The statistics of a gradient dh and its part along h. Tensors of one shape, rows as a norm over `axis` sees them.
/// Throws ShapeError where they are not.
template <detail::Readable H, detail::Readable D>
RadialStatistics radial_statistics(const H& h, const D& dh, const Axes& axis = {}) {
  return detail::radial_statistics_of("radial_statistics", detail::evaluated(h), detail::evaluated(dh), axis);
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
