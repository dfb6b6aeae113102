#pragma once

// LayerNorm forward written by hand in intrinsics, as fast as we know how: what the library's generic loop is held
// against.

#include <cstddef>

namespace yardstick {

/// Whether this unit was built for an instruction set that the yardstick is written in (AVX2 with FMA, or AVX-512).
bool available();

/// The lengths it takes: multiples of two registers.
std::ptrdiff_t length_step();

/// y = (x - mean) * rstd * weight + bias, (rows, length) each, contiguous; statistics receives three numbers per row.
void layer_norm(const float* x, const float* weight, const float* bias, float* y, std::ptrdiff_t rows,
                std::ptrdiff_t length, float eps, float* statistics);

}  // namespace yardstick
