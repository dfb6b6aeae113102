/// The gate of TaperNorm, as the host knows it or as it lies in a device's memory, and what runs in which of its ranges.
/// No Eigen, no CUDA header.
///
/// The host chooses the one math that a gate of its own asks for. A gate in memory may change after the call, in a
/// captured graph: all three maths are put into the stream, and each looks whether it is its turn. So the numbers are
/// those of the same kernels, bit for bit at both ends.
#pragma once

#include "evenkeel/config.hpp"

#include <type_traits>

namespace evenkeel::detail {

enum class GateRange {
  one,      ///< the plain norm
  between,  ///< norm and scaling
  zero      ///< the scaling alone
};

/// A gate in numbers of A.
template <class A>
struct GateNumbers {
  GateRange range;
  A gate, rest;  // g and 1 - g

  static GateNumbers of(double gate) {
    const A number = static_cast<A>(gate);
    const GateRange range = gate == 1 ? GateRange::one : number > 0 ? GateRange::between : GateRange::zero;
    return {range, number, static_cast<A>(1 - gate)};
  }
};

/// A math that runs where a gate in memory is in its range. Without memory the gate is 1.
template <class Math, GateRange Range>
struct GateRangeMath : Math {
  using A = typename Math::Scalar;

  const GateNumbers<A>* memory;
  A share, factor;  // what g and 1 - g are multiplied by

  /// Kernels ask first: takes the gate from memory, and says whether there is anything to do.
  EVENKEEL_HD bool begin() {
    if (memory == nullptr) return Range == GateRange::one;
    if (memory->range != Range) return false;
    if constexpr (Range == GateRange::between) set(*this, memory->gate * share, memory->rest * factor);
    return true;
  }

 private:
  template <class Taper>
  static EVENKEEL_HD void set(Taper& taper, A gate, A scale) {
    if constexpr (requires { taper.gate; })
      taper.gate = gate, taper.scale = scale;
    else
      set(taper.norm, gate, scale);  // of a wrapped one
  }
};

/// The gate and the factor of a call, which the host knows. `flows` is false for rows whose gradients are 0.
template <class A>
struct HostGate {
  static constexpr bool in_memory = false;
  double gate, factor;
  bool flows = true;

  A gate_number() const { return flows ? static_cast<A>(gate) : A(0); }
  A scale_number() const { return flows ? static_cast<A>((1 - gate) * factor) : A(0); }
  /// Calls f with the range as a constant.
  template <class F>
  void in_ranges(const F& f) const {
    switch (GateNumbers<A>::of(gate).range) {
      case GateRange::one:
        return f(std::integral_constant<GateRange, GateRange::one>{});
      case GateRange::between:
        return f(std::integral_constant<GateRange, GateRange::between>{});
      case GateRange::zero:
        return f(std::integral_constant<GateRange, GateRange::zero>{});
    }
  }
  template <GateRange Range, class Math>
  const Math& in_turn(const Math& math) const {
    return math;
  }
};

/// The same of a gate in memory.
template <class A>
struct MemoryGate {
  static constexpr bool in_memory = true;
  const GateNumbers<A>* memory;  // null: gate 1
  double factor;
  bool flows = true;

  A gate_number() const { return A(0); }  // until the kernel reads it
  A scale_number() const { return flows ? static_cast<A>(factor) : A(0); }
  /// Calls f with each range that the gate may be in.
  template <class F>
  void in_ranges(const F& f) const {
    f(std::integral_constant<GateRange, GateRange::one>{});
    if (memory == nullptr) return;
    f(std::integral_constant<GateRange, GateRange::between>{});
    f(std::integral_constant<GateRange, GateRange::zero>{});
  }
  template <GateRange Range, class Math>
  GateRangeMath<Math, Range> in_turn(const Math& math) const {
    return {math, memory, A(flows), scale_number()};
  }
};

/// A gate that is 0 for good: one math.
template <class A>
struct ClosedGate : HostGate<A> {
  template <class F>
  void in_ranges(const F& f) const {
    f(std::integral_constant<GateRange, GateRange::zero>{});
  }
};

/// Where a call has its gate from: its options, a device's memory, or nowhere since it is 0. Whether it may calibrate.
struct GateOfHost {
  static constexpr bool calibrates = true;
  template <class A>
  HostGate<A> of_call(double gate, double factor, bool flows) const {
    return {gate, factor, flows};
  }
};
template <class A>
struct GateOfMemory {
  static constexpr bool calibrates = true;
  const GateNumbers<A>* memory;  // null: gate 1
  template <class Accumulator>
  MemoryGate<Accumulator> of_call(double, double factor, bool flows) const {
    static_assert(std::is_same_v<A, Accumulator>);
    return {memory, factor, flows};
  }
};
struct GateOfNothing {
  static constexpr bool calibrates = false;
  template <class A>
  ClosedGate<A> of_call(double, double factor, bool flows) const {
    return {{0, factor, flows}};
  }
};

}  // namespace evenkeel::detail
