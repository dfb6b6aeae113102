#include "surface/tensors.hpp"

using Saved = ek::LayerNormSaved<float, ek::CudaStorage>;

template <class T>
void use_layer_norm(surface::Tensors<T>& t, Saved& saved) {
  ek::layer_norm(t.device, t.x, t.weight, t.bias, t.y, saved);
  ek::layer_norm_backward(t.device, t.dy, t.x, t.weight, saved, t.dx, t.dweight, t.dbias);
  ek::add_layer_norm(t.device, t.x, t.z, t.weight, t.bias, t.z, t.y, saved);
  ek::add_layer_norm_backward(t.device, t.dy, t.dz, t.z, t.weight, saved, t.dx, t.dweight, t.dbias);
}
template void use_layer_norm(surface::Tensors<float>&, Saved&);
template void use_layer_norm(surface::Tensors<Eigen::bfloat16>&, Saved&);

void use_layer(surface::Tensors<float>& t, ek::LayerNorm<float, ek::CudaStorage>& norm) {
  norm.saved.reserve(t.device, t.x);
  norm.forward(t.device, t.x, t.y);
  norm.backward(t.device, t.dy, t.x, t.dx);
}

void use_output(surface::Tensors<float>& t, Saved& saved) {
  saved.reserve_from_output(t.device, t.x, 8);
  ek::layer_norm(t.device, t.x, t.weight, t.bias, t.x, saved, {.backward_from_output = true});
  ek::layer_norm_backward_from_output(t.device, t.dy, t.x, t.weight, t.bias, saved, t.dy, t.dweight, t.dbias);
}
