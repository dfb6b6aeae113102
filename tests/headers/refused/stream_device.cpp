// refused: this device has a CUDA stream: compile this file with nvcc and include evenkeel/cuda.hpp

#include "evenkeel/norms/rms_norm.hpp"

struct StreamDevice {
  void* stream() const { return nullptr; }
};

void call(const Eigen::ArrayXXf& x, const Eigen::ArrayXf& weight, Eigen::ArrayXXf& y) {
  evenkeel::rms_norm(StreamDevice{}, x, weight, y, evenkeel::none);
}
