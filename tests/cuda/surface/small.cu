// The part of the surface that is compiled for every architecture.

#include "surface/tensors.hpp"

void use_layer_norm(surface::Tensors<Eigen::bfloat16>& t, ek::LayerNormSaved<float, ek::CudaStorage>& saved) {
  ek::layer_norm(t.device, t.x, t.weight, t.bias, t.y, saved);
  ek::layer_norm_backward(t.device, t.dy, t.x, t.weight, saved, t.dx, t.dweight, t.dbias);
}

void use_rms_norm(surface::Tensors<Eigen::bfloat16, Eigen::bfloat16>& t,
                  ek::RmsNormSaved<float, ek::CudaStorage>& saved) {
  ek::rms_norm(t.device, t.x, t.weight, t.y, saved);
  ek::rms_norm_backward(t.device, t.dy, t.x, t.weight, saved, t.dx, t.dweight);
}
