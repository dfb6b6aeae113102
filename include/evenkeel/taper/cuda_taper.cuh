/// A Taper whose gate also lies in a CUDA device's memory, where a captured graph finds the gate of the step that it is
/// launched in. Include it through evenkeel/cuda.hpp.
#pragma once

#include "evenkeel/cuda_stream.cuh"
#include "evenkeel/detail/taper_gate_math.hpp"
#include "evenkeel/taper/taper.hpp"

#include <type_traits>

namespace evenkeel::inline EVENKEEL_ISA {

/// One for all layers of a network, as Taper is; in the memory of the device that was current when it was made. Layers
/// name it as their Gate:
///
///     ek::CudaTaper taper({.warmup_steps = 1000, .end_step = 20000});
///     ek::TaperRmsNorm<float, ek::CudaStorage, ek::CudaTaper> norm(width, taper);
///     ...
///     cudaGraphLaunch(step, stream);  // captured once after the warmup, when the layers were calibrated
///     taper.advance(device);          // in the same stream
class CudaTaper : public Taper {
 public:
  /// As Taper's. Waits for the device.
  explicit CudaTaper(const TaperSchedule& schedule, double rate = 0.01) : Taper(schedule, rate) {
    memory_.reserve(1);
    const Gates now = gates();
    CudaStorage::write(&now, memory_.data(), 1);
  }

  /// After each update of the parameters: the next step's gate, for what the stream is given afterwards. One copy of 40
  /// bytes into the stream, from memory that CUDA takes over before it returns. Not to be captured itself.
  template <detail::StreamDevice Device>
  void advance(const Device& device) {
    Taper::advance();
    put(device);
  }
  /// Throws StateError for a negative step.
  template <detail::StreamDevice Device>
  void restore(const Device& device, const TaperState& state) {
    Taper::restore(state);
    put(device);
  }

  /// The gate in numbers of A, float or double, in the device's memory.
  template <class A>
  const detail::GateNumbers<A>* numbers() const {
    if constexpr (std::is_same_v<A, double>)
      return &memory_.data()->of_double;
    else
      return &memory_.data()->of_float;
  }

 private:
  struct Gates {
    detail::GateNumbers<float> of_float;
    detail::GateNumbers<double> of_double;
  };
  Gates gates() const { return {detail::GateNumbers<float>::of(gate()), detail::GateNumbers<double>::of(gate())}; }
  template <class Device>
  void put(const Device& device) {
    const Gates now = gates();
    detail::check_cuda(cudaMemcpyAsync(memory_.data(), &now, sizeof now, cudaMemcpyHostToDevice, device.stream()),
                       "CudaTaper", "cudaMemcpyAsync");
  }

  CudaBuffer<Gates> memory_;  // (1)
};

}  // namespace evenkeel::inline EVENKEEL_ISA
