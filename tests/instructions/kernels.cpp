// Calls one kernel so many times: instructions.sh counts what one more call costs.
//
//   kernels_O2 <kernel> <calls>
#include "evenkeel/norms/batch_norm.hpp"
#include "evenkeel/norms/layer_norm.hpp"
#include "evenkeel/norms/rms_norm.hpp"

#include <Eigen/Core>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ek = evenkeel;

namespace {

using Matrix = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct Data {
  Matrix x = Matrix::Random(64, 768), y = x, dy = Matrix::Random(64, 768);
  Eigen::ArrayXf weight = Eigen::ArrayXf::LinSpaced(768, 0.5f, 1.5f), bias = weight - 1, dweight = weight, dbias = bias;
  ek::LayerNormSaved<float> layer;
  ek::RmsNormSaved<float> rms;
  ek::BatchNormSaved<float> batch;
};

template <class F>
bool repeat(const char* wanted, const char* name, long calls, const F& kernel) {
  if (std::strcmp(wanted, name) != 0) return false;
  for (long i = 0; i < calls; ++i) kernel();
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const long calls = std::atol(argv[2]);
  Data d;
  ek::layer_norm(ek::serial, d.x, d.weight, d.bias, d.y, d.layer);
  ek::rms_norm(ek::serial, d.x, d.weight, d.y, d.rms);
  ek::batch_norm(ek::serial, d.x, d.weight, d.bias, d.y, d.batch);
  const auto is = [&](const char* name, const auto& kernel) { return repeat(argv[1], name, calls, kernel); };
  const bool found =
      is("layer_norm", [&] { ek::layer_norm(ek::serial, d.x, d.weight, d.bias, d.y, d.layer); }) ||
      is("layer_norm_backward",
         [&] { ek::layer_norm_backward(ek::serial, d.dy, d.x, d.weight, d.layer, d.y, d.dweight, d.dbias); }) ||
      is("rms_norm", [&] { ek::rms_norm(ek::serial, d.x, d.weight, d.y, d.rms); }) ||
      is("rms_norm_backward", [&] { ek::rms_norm_backward(ek::serial, d.dy, d.x, d.weight, d.rms, d.y, d.dweight); }) ||
      is("batch_norm", [&] { ek::batch_norm(ek::serial, d.x, d.weight, d.bias, d.y, d.batch); }) ||
      is("batch_norm_backward",
         [&] { ek::batch_norm_backward(ek::serial, d.dy, d.x, d.weight, d.batch, d.y, d.dweight, d.dbias); });
  if (!found) std::fprintf(stderr, "kernels: no kernel '%s'\n", argv[1]);
  return found ? 0 : 2;
}
