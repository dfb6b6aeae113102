#pragma once

/// Normalizes on the CUDA device, in the unit that nvcc compiles. Without a device the refusal is what is expected. Returns
/// the program's exit status.
#if defined(WITH_CUDA)
int run_on_device();
#else
inline int run_on_device() { return 0; }
#endif
