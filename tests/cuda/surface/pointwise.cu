#include "surface/tensors.hpp"

template <class T>
void use_dyt(surface::Tensors<T>& t, ek::DytSaved<float, ek::CudaStorage>& saved) {
  ek::dyt(t.device, t.x, t.alpha, t.weight, t.bias, t.y, saved);
  ek::dyt_backward(t.device, t.dy, t.x, t.alpha, t.weight, saved, t.dx, t.dalpha, t.dweight, t.dbias);
}
template void use_dyt(surface::Tensors<float>&, ek::DytSaved<float, ek::CudaStorage>&);
template void use_dyt(surface::Tensors<Eigen::bfloat16>&, ek::DytSaved<float, ek::CudaStorage>&);

template <class T>
void use_derf(surface::Tensors<T>& t, ek::DerfSaved<float, ek::CudaStorage>& saved) {
  ek::derf(t.device, t.x, t.alpha, t.shift, t.weight, t.bias, t.y, saved);
  ek::derf_backward(t.device, t.dy, t.x, t.alpha, t.shift, t.weight, saved, t.dx, t.dalpha, t.dshift, t.dweight,
                    t.dbias);
}
template void use_derf(surface::Tensors<float>&, ek::DerfSaved<float, ek::CudaStorage>&);
template void use_derf(surface::Tensors<Eigen::bfloat16>&, ek::DerfSaved<float, ek::CudaStorage>&);

template <class T>
void use_sums_and_random_numbers(surface::Tensors<T>& t, ek::CudaRandom& random) {
  ek::residual_sum(t.device, t.x, t.z, t.y, 0.5f);
  ek::normal(t.x, 0, 1, random);
  ek::uniform(t.x, -1, 1, random);
  ek::truncated_normal(t.x, random);
}
template void use_sums_and_random_numbers(surface::Tensors<float>&, ek::CudaRandom&);
template void use_sums_and_random_numbers(surface::Tensors<Eigen::bfloat16>&, ek::CudaRandom&);
