/// A recorder for what a signal does on its way through a deep stack, forward and backward, and what an optimizer does to
/// the parameters.
#pragma once

#include "evenkeel/probe/record.hpp"
#include "evenkeel/probe/signal_statistics.hpp"
#include "evenkeel/probe/verdict.hpp"

#include <cmath>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace evenkeel {

/// Options of Probe.
struct ProbeOptions {
  double saturation = 0.99;  ///< |tanh(alpha x)| above this counts as saturated
  ProbeThresholds thresholds = {};
};

inline namespace EVENKEEL_ISA {

/// A trainer calls it at named points. A point's layer places it in the stack, from 0 or from 1, in steps of its own
/// choice; its name, numbers aside, says which series of points it belongs to: "block.3.out" to "block.*.out". Tensors,
/// views and matrix expressions of any scalar in the host's memory are read once, in double, on the calling thread;
/// nothing of them is kept.
///
///     ek::Probe probe;
///     probe.begin_step(step);
///     probe.forward("block.3.out", 3, x);
///     probe.backward("block.3.out", 3, x, dx);
///     probe.parameter("block.3.weight", 3, weight, gradient, update);
///     std::cout << probe.verdict().text();
///     std::ofstream csv("probe.csv");
///     probe.write_csv(csv);
class Probe {
 public:
  explicit Probe(ProbeOptions options = {}) : options_(options) {}

  /// What is recorded from now on belongs to this step; 0 before the first call.
  void begin_step(std::int64_t step) { step_ = step; }

  /// The signal at a point.
  template <detail::Readable X>
  void forward(std::string_view point, Index layer, const X& x) {
    add(point, layer, ProbeKind::forward, signal_statistics(x));
  }

  /// The input of a DyT layer: also the share of values that it squashes to nearly 1, alpha being the layer's.
  template <detail::Readable X>
  void forward_dyt(std::string_view point, Index layer, const X& x, double alpha) {
    const double bound = std::atanh(options_.saturation);
    detail::SignalSums sums;
    std::int64_t saturated = 0;
    detail::for_each_value(x, [&](double value) {
      sums.add(value);
      saturated += std::abs(alpha * value) > bound;
    });
    const SignalStatistics s = sums.statistics();
    add(point, layer, ProbeKind::forward, s).saturated =
        s.count == 0 ? 0 : static_cast<double>(saturated) / static_cast<double>(s.count);
  }

  /// The gradient at a point.
  template <detail::Readable D>
  void backward(std::string_view point, Index layer, const D& dh) {
    const SignalStatistics s = signal_statistics(dh);
    add(point, layer, ProbeKind::backward, s).gradient_norm = s.norm();
  }

  /// The same, with its part along the signal h; see RadialStatistics. `axis` is the one that a norm would reduce.
  /// Throws ShapeError where h and dh do not have one shape.
  template <detail::Readable H, detail::Readable D>
  void backward(std::string_view point, Index layer, const H& h, const D& dh, const Axes& axis = {}) {
    const RadialStatistics s =
        detail::radial_statistics_of("Probe::backward", detail::evaluated(h), detail::evaluated(dh), axis);
    ProbeRecord& record = add(point, layer, ProbeKind::backward, s.gradient);
    record.gradient_norm = s.gradient.norm();
    record.radial = s.radial;
    record.radial_rows = s.radial_rows;
  }

  /// A parameter, its gradient, and what the optimizer is about to add to it, or has added. Each of the latter two may
  /// be ek::none.
  template <detail::Readable V, class G, class U>
  void parameter(std::string_view point, Index layer, const V& value, const G& gradient, const U& update) {
    const SignalStatistics v = signal_statistics(value);
    ProbeRecord& record = add(point, layer, ProbeKind::parameter, v);
    const auto norm = [&](const auto& tensor) {
      const SignalStatistics s = signal_statistics(tensor);
      record.nan += s.nan;
      record.inf += s.inf;
      record.count += s.count;
      return s.norm();
    };
    if constexpr (!is_none_v<G>) record.gradient_norm = norm(gradient);
    if constexpr (!is_none_v<U>) {
      const double size = norm(update);
      record.update_ratio = size == 0 ? 0 : size / v.norm();
    }
  }

  const std::vector<ProbeRecord>& records() const { return records_; }
  /// Forgets all records.
  void clear() { records_.clear(); }

  /// See verdict_of.
  ProbeVerdict verdict() const { return verdict_of(records_, options_.thresholds); }
  /// See evenkeel::write_csv.
  void write_csv(std::ostream& out) const { evenkeel::write_csv(out, records_); }

 private:
  ProbeRecord& add(std::string_view point, Index layer, ProbeKind kind, const SignalStatistics& s) {
    ProbeRecord record;
    record.step = step_;
    record.layer = layer;
    record.point = point;
    record.kind = kind;
    record.count = s.count;
    record.nan = s.nan;
    record.inf = s.inf;
    record.mean = s.mean;
    record.second_moment = s.second_moment;
    record.largest = s.largest;
    return records_.emplace_back(std::move(record));
  }

  ProbeOptions options_;
  std::int64_t step_ = 0;
  std::vector<ProbeRecord> records_;
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
