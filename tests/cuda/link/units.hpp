/// What the two units of this program have in common.
#pragma once

#include <vector>

/// The rows of x, (rows, features), normalized by rms_norm: in the unit that nvcc compiles, on the CUDA device.
/// Throws CudaError.
std::vector<float> normalize_on_device(const std::vector<float>& x, int rows, int features);
/// In the unit that the host compiler compiles, by the same function of evenkeel.
std::vector<float> normalize_on_host(const std::vector<float>& x, int rows, int features);

/// Whether this machine has a CUDA device.
bool has_device();
