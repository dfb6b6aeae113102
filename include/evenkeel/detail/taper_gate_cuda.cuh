/// Gradients of parameters on a CUDA device where the gate lies in its memory.
#pragma once

#include "evenkeel/cuda_stream.cuh"
#include "evenkeel/detail/row_kernels.cuh"
#include "evenkeel/detail/row_math.hpp"
#include "evenkeel/detail/taper_gate_math.hpp"

#include <cstdint>

namespace evenkeel::detail {

/// gradient_kernel where the gate is in that range, and zeros to overwrite what the range leaves nothing of.
template <class A, class Gradients, class Zeros>
__global__ void __launch_bounds__(256)
    range_gradient_kernel(const GateNumbers<A>* gate, GateRange range, const A* sums, std::int64_t parts, int count,
                          std::int64_t pitch, std::int64_t length, Gradients gradients, Zeros zeros, bool accumulates) {
  if (gate != nullptr && gate->range != range) return;
  EVENKEEL_SHARED(A, shared, 256);
  gradient_step(sums, parts, count, pitch, length, gradients, accumulates, shared);
  if (!accumulates) gradient_step(sums, 0, 1, pitch, length, zeros, false, shared);
}

inline namespace EVENKEEL_ISA {

/// put_gradients and put_zeros of a pass that ran in that range of the gate.
template <GateRange Range, StreamDevice Device, class Gate, class A, class Zero, class... G>
  requires(Gate::in_memory)
void put_range_gradients(const Device& device, const Gate& gate, const A* scratch, const FeatureParts& parts,
                         Index length, GradientMode mode, Zero zero, G... gradients) {
  if constexpr ((is_none_v<Zero> && ... && is_none_v<G>)) return;
  const auto list = make_list(device_pointer(gradients)...);
  const auto zeros = make_list(device_pointer(zero));
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(quotient_up(length, 32));
  shape.block = 256;
  launch(&range_gradient_kernel<A, std::remove_const_t<decltype(list)>, std::remove_const_t<decltype(zeros)>>, shape,
         device.stream(), gate.memory, Range, scratch, static_cast<std::int64_t>(parts.count), parts.terms,
         static_cast<std::int64_t>(parts.pitch), static_cast<std::int64_t>(length), list, zeros,
         mode == GradientMode::accumulate);
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel::detail
