#include "surface/tensors.hpp"

template <class T>
void use_gated(surface::Tensors<T>& t, ek::GatedRmsNormSaved<float, ek::CudaStorage>& saved) {
  ek::gated_rms_norm(t.device, t.x, t.z, t.weight, t.y, saved);
  ek::gated_rms_norm_backward(t.device, t.dy, t.x, t.z, t.weight, saved, t.dx, t.dz, t.dweight);
}
template void use_gated(surface::Tensors<float>&, ek::GatedRmsNormSaved<float, ek::CudaStorage>&);
template void use_gated(surface::Tensors<Eigen::bfloat16>&, ek::GatedRmsNormSaved<float, ek::CudaStorage>&);

template <class T>
void use_partial(surface::Tensors<T>& t, ek::PartialRmsNormSaved<float, ek::CudaStorage>& saved) {
  ek::partial_rms_norm(t.device, t.x, t.weight, t.bias, t.y, saved);
  ek::partial_rms_norm_backward(t.device, t.dy, t.x, t.weight, saved, t.dx, t.dweight, t.dbias);
}
template void use_partial(surface::Tensors<float>&, ek::PartialRmsNormSaved<float, ek::CudaStorage>&);
template void use_partial(surface::Tensors<Eigen::bfloat16>&, ek::PartialRmsNormSaved<float, ek::CudaStorage>&);

template <class T>
void use_l2(surface::Tensors<T>& t, ek::L2NormSaved<float, ek::CudaStorage>& saved) {
  ek::l2_norm(t.device, t.x, t.weight, t.y, saved);
  ek::l2_norm_backward(t.device, t.dy, t.x, t.weight, saved, t.dx, t.dweight);
}
template void use_l2(surface::Tensors<float>&, ek::L2NormSaved<float, ek::CudaStorage>&);
template void use_l2(surface::Tensors<Eigen::bfloat16>&, ek::L2NormSaved<float, ek::CudaStorage>&);

void use_qk(surface::Tensors<float>& t, ek::QkL2Norm<float, ek::CudaStorage>& norm) {
  const auto q = ek::heads_view(t.x.data(), 4, 64, 2, 32), dq = ek::heads_view(t.dy.data(), 4, 64, 2, 32);
  norm.reserve(t.device, q, q);
  norm.forward(t.device, q, q, q, q);
  norm.backward(t.device, dq, dq, q, q, dq, dq);
}
