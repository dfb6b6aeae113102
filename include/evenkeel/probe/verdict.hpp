/// What the records of a probe say about a stack, in words.
#pragma once

#include "evenkeel/probe/record.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace evenkeel {

/// What can be wrong with a stack: see Finding.
enum class Condition { exploding, vanishing, diluted, missing_final_norm, non_finite };

/// The condition in words.
constexpr const char* name_of(Condition condition) {
  switch (condition) {
    case Condition::exploding:
      return "exploding";
    case Condition::vanishing:
      return "vanishing";
    case Condition::diluted:
      return "diluted deep layers";
    case Condition::missing_final_norm:
      return "missing final norm";
    default:
      return "non-finite";
  }
}

/// Where a stack stops being healthy.
struct ProbeThresholds {
  /// exploding, vanishing: the size of the signal (its root mean square), or of the gradient (its norm, read from the
  /// last layer to the first), changes by this factor or more per layer, from some layer on to the end, also over the
  /// second half of that way ...
  double gain = 1.05;
  /// ... and by this factor in all. A sum of independent branches, which grows with the root of the depth, does one or
  /// the other, not both.
  double growth = 10;
  /// exploding, vanishing as well: it changes by this factor from the first layer to the last, however slowly. The sum of
  /// branches would need a million layers for it.
  double total = 1000;
  /// diluted: the second moment of a signal that does not explode grows by this factor from the second recorded layer
  /// on. What a block adds, if it is of the size that the first ones have, is less than this part of what it is added
  /// to. The first layer does not count: it may be an embedding of another scale.
  double dilution = 10;
  /// missing final norm: RadialStatistics::radial_rows at the last layer of a series that has it measured at two layers
  /// or more is above this. Behind a norm it is near 0, without one near 1; where a norm's eps is as large as the squares that
  /// it is added to, something is left (0.3 behind LayerNorm with eps 1e-5 and inputs of 0.005).
  double radial = 0.2;
};

/// One thing that is wrong.
struct Finding {
  Condition condition{};
  ProbeKind kind = ProbeKind::forward;
  std::string series;     ///< the points' common name, numbers replaced by *
  Index layer = 0;        ///< where it starts
  std::int64_t step = 0;  ///< of the records that say so
  double amount = 0;      ///< factor in all, dilution, radial part, or number of values that are not finite
  std::string text;       ///< a sentence
};

/// Nothing found is healthy.
struct ProbeVerdict {
  std::vector<Finding> findings;

  bool healthy() const { return findings.empty(); }
  const Finding* find(Condition condition, ProbeKind kind = ProbeKind::forward) const {
    for (const Finding& f : findings)
      if (f.condition == condition && f.kind == kind) return &f;
    return nullptr;
  }
  /// One line for each finding, or "healthy".
  std::string text() const {
    if (healthy()) return "healthy\n";
    std::string all;
    for (const Finding& f : findings) all += f.text + '\n';
    return all;
  }
};

namespace detail {

/// "block.3.out" and "block.12.out" are points of one series, "block.*.out".
inline std::string series_of(const std::string& point) {
  std::string series;
  for (std::size_t i = 0; i < point.size(); ++i) {
    if (point[i] < '0' || point[i] > '9')
      series += point[i];
    else if (series.empty() || series.back() != '*' || point[i - 1] < '0' || point[i - 1] > '9')
      series += '*';
  }
  return series;
}

/// Three digits that mean something.
inline std::string short_number(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.3g", value);
  return text.data();
}

struct Series {
  ProbeKind kind;
  std::string name;
  std::int64_t step = 0;
  std::map<Index, const ProbeRecord*> layers;  // at the last step; of several records the last
};

inline std::vector<Series> all_series(const std::vector<ProbeRecord>& records) {
  std::vector<Series> all;
  std::map<std::pair<ProbeKind, std::string>, std::size_t> places;
  for (const ProbeRecord& r : records) {
    const auto [place, is_new] = places.try_emplace({r.kind, series_of(r.point)}, all.size());
    if (is_new) all.push_back({r.kind, place->first.second, r.step, {}});
    Series& series = all[place->second];
    if (r.step != series.step) {
      series.layers.clear();
      series.step = r.step;
    }
    series.layers[r.layer] = &r;
  }
  return all;
}

/// The place from which on sizes grow by `gain` or more per layer, and by `growth` in all, or 0 where they grow by
/// `total`; sizes.size() if there is none.
inline std::size_t growing_from(const std::vector<double>& sizes, const ProbeThresholds& limits) {
  const std::size_t n = sizes.size();
  const auto grows = [&](std::size_t from, std::size_t to) {
    return sizes[to] >= sizes[from] * std::pow(limits.gain, static_cast<double>(to - from));
  };
  for (std::size_t from = 0; from + 3 < n; ++from) {
    if (!(sizes[from] > 0) || !std::isfinite(sizes[from]) || !(sizes[n - 1] >= limits.growth * sizes[from])) continue;
    bool all = grows(from + (n - 1 - from) / 2, n - 1);
    for (std::size_t to = from + 1; all && to < n; ++to) all = grows(from, to);
    if (all) return from;
  }
  return n > 3 && sizes[0] > 0 && sizes[n - 1] >= limits.total * sizes[0] ? 0 : n;
}

inline void judge_growth(const Series& series, const ProbeThresholds& limits, std::vector<Finding>& findings) {
  // In the direction in which the signal or the gradient goes, up to where it is not finite any more.
  std::vector<const ProbeRecord*> way;
  for (const auto& [layer, record] : series.layers) way.push_back(record);
  if (series.kind == ProbeKind::backward) std::reverse(way.begin(), way.end());
  std::vector<Index> layers;
  std::vector<double> sizes, inverse;
  for (const ProbeRecord* const record : way) {
    const double size = series.kind == ProbeKind::forward ? std::sqrt(record->second_moment) : record->gradient_norm;
    if (!record->finite() || !std::isfinite(size)) break;
    layers.push_back(record->layer);
    sizes.push_back(size);
  }
  for (const double size : sizes) inverse.push_back(1 / size);
  const char* const what = series.kind == ProbeKind::forward ? "signal" : "gradient";
  const std::size_t n = sizes.size();
  for (const Condition condition : {Condition::exploding, Condition::vanishing}) {
    const bool explodes = condition == Condition::exploding;
    const std::size_t from = growing_from(explodes ? sizes : inverse, limits);
    if (from == n) continue;
    const double factor = sizes[n - 1] / sizes[from], gain = std::pow(factor, 1 / static_cast<double>(n - 1 - from));
    findings.push_back({condition, series.kind, series.name, layers[from], series.step, factor,
                        std::string(name_of(condition)) + ": the " + what + " at " + series.name + " changes by " +
                            short_number(gain) + " per layer from layer " + std::to_string(layers[from]) + " to " +
                            std::to_string(layers[n - 1]) + ", " + short_number(factor) + " times in all"});
    return;
  }
  if (series.kind == ProbeKind::backward || n < 4) return;
  const auto moment = [&](std::size_t i) { return sizes[i] * sizes[i]; };
  if (!(moment(1) > 0) || !(moment(n - 1) >= limits.dilution * moment(1))) return;
  std::size_t from = n - 1;
  while (from > 2 && moment(from - 1) >= limits.dilution * moment(1)) --from;
  const double factor = moment(n - 1) / moment(1);
  findings.push_back({Condition::diluted, series.kind, series.name, layers[from], series.step, factor,
                      "diluted deep layers: the second moment at " + series.name + " grows " + short_number(factor) +
                          " times after layer " + std::to_string(layers[1]) + ", " + short_number(limits.dilution) +
                          " times by layer " + std::to_string(layers[from]) +
                          ": what deeper layers add is small beside it"});
}

inline void judge_final_norm(const Series& series, const ProbeThresholds& limits, std::vector<Finding>& findings) {
  int measured = 0;
  const ProbeRecord* last = nullptr;
  for (const auto& [layer, record] : series.layers)
    if (!std::isnan(record->radial_rows)) ++measured, last = record;
  if (measured < 2 || !(last->radial_rows > limits.radial)) return;
  findings.push_back({Condition::missing_final_norm, series.kind, series.name, last->layer, last->step,
                      last->radial_rows,
                      "missing final norm: the gradient at " + last->point + ", layer " + std::to_string(last->layer) +
                          ", has a part of " + short_number(last->radial_rows) +
                          " along the signal, where a norm behind it would leave 0"});
}

inline void judge_finite(const std::vector<ProbeRecord>& records, std::vector<Finding>& findings) {
  const auto bad = [](const ProbeRecord& r) { return !r.finite(); };
  const auto first = std::find_if(records.begin(), records.end(), bad);
  if (first == records.end()) return;
  const auto later = std::count_if(first + 1, records.end(), bad);
  findings.push_back({Condition::non_finite, first->kind, series_of(first->point), first->layer, first->step,
                      static_cast<double>(first->nan + first->inf),
                      "non-finite: " + std::to_string(first->nan) + " nan and " + std::to_string(first->inf) +
                          " inf of " + std::to_string(first->count) + " values first seen " +
                          std::string(name_of(first->kind)) + " at " + first->point + ", layer " +
                          std::to_string(first->layer) + ", step " + std::to_string(first->step) + "; in " +
                          std::to_string(later) + " records after it"});
}

}  // namespace detail

/// Judges records. Values that are not finite are looked for in all of them, the rest at the last step of each series.
inline ProbeVerdict verdict_of(const std::vector<ProbeRecord>& records, const ProbeThresholds& thresholds = {}) {
  ProbeVerdict verdict;
  detail::judge_finite(records, verdict.findings);
  for (const detail::Series& series : detail::all_series(records)) {
    if (series.kind == ProbeKind::parameter) continue;
    detail::judge_growth(series, thresholds, verdict.findings);
    if (series.kind == ProbeKind::backward) detail::judge_final_norm(series, thresholds, verdict.findings);
  }
  return verdict;
}

}  // namespace evenkeel
