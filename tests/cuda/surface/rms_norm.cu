#include "surface/tensors.hpp"

using Saved = ek::RmsNormSaved<float, ek::CudaStorage>;

template <class T>
void use_rms_norm(surface::Tensors<T, T>& t, Saved& saved) {
  ek::rms_norm(t.device, t.x, t.weight, t.y, saved);
  ek::rms_norm_backward(t.device, t.dy, t.x, t.weight, saved, t.dx, t.dweight);
  ek::add_rms_norm(t.device, t.x, t.z, t.weight, t.z, t.y, saved);
  ek::add_rms_norm_backward(t.device, t.dy, t.dz, t.z, t.weight, saved, t.dx, t.dweight);
}
template void use_rms_norm(surface::Tensors<float, float>&, Saved&);
template void use_rms_norm(surface::Tensors<Eigen::bfloat16, Eigen::bfloat16>&, Saved&);

void use_layer(surface::Tensors<float>& t, ek::RmsNorm<float, ek::CudaStorage>& norm) {
  norm.saved.reserve(t.device, t.x);
  norm.forward(t.device, t.x, t.y);
  norm.backward(t.device, t.dy, t.x, t.dx);
}

void use_qk(surface::Tensors<float>& t, ek::QkNorm<float, ek::RmsNorm<float, ek::CudaStorage>>& norm) {
  const auto q = ek::heads_view(t.x.data(), 4, 64, 2, 32), dq = ek::heads_view(t.dy.data(), 4, 64, 2, 32);
  norm.reserve(t.device, q, q);
  norm.forward(t.device, q, q, q, q);
  norm.backward(t.device, dq, dq, q, q, dq, dq);
}
