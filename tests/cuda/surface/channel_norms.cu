#include "surface/tensors.hpp"

void use_batch_norm(surface::Tensors<Eigen::bfloat16>& t, ek::BatchNorm<float, ek::Relu, ek::CudaStorage>& norm) {
  norm.saved.reserve(t.device, t.x, norm.options());
  norm.forward(t.device, t.x, t.y);
  norm.backward(t.device, t.dy, t.x, t.dx);
}

void use_group_norm(surface::Tensors<float>& t, ek::GroupNorm<float, ek::Identity, ek::CudaStorage>& norm) {
  norm.saved.reserve(t.device, t.x, norm.options());
  norm.forward(t.device, t.x, t.y);
  norm.backward(t.device, t.dy, t.x, t.dx);
}
