#pragma once

// The same library call in two units that are built for different instruction sets.

#include "evenkeel/norms/layer_norm.hpp"

#include <vector>

namespace isa {

struct Result {
  const char* name;  // of the instruction set
  std::vector<float> y;
};

inline constexpr evenkeel::Index rows = 5, length = 77;

Result native(const std::vector<float>& x);
Result baseline(const std::vector<float>& x);

}  // namespace isa

#define EVENKEEL_ISA_TEXT2(name) #name
#define EVENKEEL_ISA_TEXT(name) EVENKEEL_ISA_TEXT2(name)
#define EVENKEEL_ISA_UNIT(unit)                                                                      \
  isa::Result isa::unit(const std::vector<float>& x) {                                               \
    Result result{EVENKEEL_ISA_TEXT(EVENKEEL_ISA), std::vector<float>(x.size())};                    \
    const evenkeel::AxisView<const float> in{                                                        \
        .data = x.data(), .outer = {1, rows}, .outer_stride = {0, length}, .length = length};        \
    const evenkeel::AxisView<float> out{                                                             \
        .data = result.y.data(), .outer = {1, rows}, .outer_stride = {0, length}, .length = length}; \
    evenkeel::layer_norm(evenkeel::serial, in, evenkeel::none, evenkeel::none, out, evenkeel::none); \
    return result;                                                                                   \
  }
