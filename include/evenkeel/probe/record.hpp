/// What a probe keeps of one call, and how that is written as a table.
#pragma once

#include "evenkeel/device.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace evenkeel {

/// What was looked at: activations, their gradients, or a parameter with its gradient and update.
enum class ProbeKind { forward, backward, parameter };

constexpr std::string_view name_of(ProbeKind kind) {
  switch (kind) {
    case ProbeKind::forward:
      return "forward";
    case ProbeKind::backward:
      return "backward";
    default:
      return "parameter";
  }
}

/// One call. What was not measured is nan, and an empty field in the table.
struct ProbeRecord {
  static constexpr double unmeasured = std::numeric_limits<double>::quiet_NaN();

  std::int64_t step = 0;
  Index layer = 0;
  std::string point;
  ProbeKind kind = ProbeKind::forward;
  std::int64_t count = 0, nan = 0, inf = 0;              ///< of all tensors of the call
  double mean = unmeasured;                              ///< of the signal, its gradient, or the parameter
  double second_moment = unmeasured;                     ///< of the same
  double largest = unmeasured;                           ///< of the same, in absolute value
  double gradient_norm = unmeasured;                     ///< backward, parameter
  double saturated = unmeasured;                         ///< the share of values that DyT cannot tell apart
  double radial = unmeasured, radial_rows = unmeasured;  ///< see RadialStatistics
  double update_ratio = unmeasured;                      ///< the update's norm over the parameter's

  bool finite() const { return nan == 0 && inf == 0; }
};

namespace detail {

/// The shortest text that reads back as the same number, whatever the locale. Nothing for nan.
inline void write_number(std::ostream& out, double value) {
  if (std::isnan(value)) return;
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  out.write(text.data(), end - text.data());
}
inline void write_number(std::ostream& out, std::int64_t value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  out.write(text.data(), end - text.data());
}

/// A field, in quotes where it needs them.
inline void write_field(std::ostream& out, std::string_view text) {
  if (text.find_first_of(",\"\n") == std::string_view::npos) {
    out << text;
    return;
  }
  out << '"';
  for (const char c : text) {
    if (c == '"') out << '"';
    out << c;
  }
  out << '"';
}

}  // namespace detail

/// Records as comma-separated values, one line each under a line of names.
inline void write_csv(std::ostream& out, const std::vector<ProbeRecord>& records) {
  out << "step,layer,point,kind,count,nan,inf,mean,second_moment,largest,gradient_norm,saturated,radial,radial_rows,"
         "update_ratio\n";
  for (const ProbeRecord& r : records) {
    detail::write_number(out, r.step);
    out << ',';
    detail::write_number(out, std::int64_t{r.layer});
    out << ',';
    detail::write_field(out, r.point);
    out << ',' << name_of(r.kind);
    for (const std::int64_t value : {r.count, r.nan, r.inf}) {
      out << ',';
      detail::write_number(out, value);
    }
    for (const double value :
         {r.mean, r.second_moment, r.largest, r.gradient_norm, r.saturated, r.radial, r.radial_rows, r.update_ratio}) {
      out << ',';
      detail::write_number(out, value);
    }
    out << '\n';
  }
}

/// A gnuplot script that draws the table `csv` into the picture `png`: signal, gradient, update and saturation over
/// layers, at the last step. `gnuplot probe.gnuplot` beside the table makes the picture; a panel without data stays
/// empty.
inline void write_gnuplot(std::ostream& out, std::string_view csv = "probe.csv", std::string_view png = "probe.png") {
  out << "set datafile separator comma\nset terminal pngcairo size 1400,1000\nset output '" << png << "'\ncsv = '"
      << csv
      << "'\nstats csv using 'step' nooutput\nlast = STATS_max\n"
         "at(kind) = (strcol('kind') eq kind && column('step') == last) ? column('layer') : NaN\n"
         "positive(y) = y > 0 ? y : NaN\n"
         "set xlabel 'layer'\nunset key\nset multiplot layout 2,2 title sprintf('step %d', last)\n";
  // `stats` does not run with a logarithmic axis, and `plot` stops the script where it has no point.
  const auto panel = [&](const char* name, const char* title, const char* kind, const char* value, const char* axis) {
    out << "set title '" << title << "'\nstats csv using (at('" << kind << "')):(" << value << ") nooutput name '"
        << name << "'\nif (exists('" << name << "_records')) {\n  " << axis << "\n  plot csv using (at('" << kind
        << "')):(" << value << ") with points pt 7\n  unset logscale\n} else {\n  set multiplot next\n}\n";
  };
  const char* const logarithmic = "set logscale y; set format y '%.0e'";
  panel("SIGNAL", "root mean square of the signal", "forward", "positive(sqrt(column('second_moment')))", logarithmic);
  panel("GRADIENT", "norm of the gradient", "backward", "positive(column('gradient_norm'))", logarithmic);
  panel("UPDATE", "update over parameter", "parameter", "positive(column('update_ratio'))", logarithmic);
  panel("SATURATED", "share of saturated values", "forward", "column('saturated')",
        "set yrange [-0.05:1.05]; set format y '%g'");
  out << "unset multiplot\n";
}

}  // namespace evenkeel
