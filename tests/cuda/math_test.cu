// One text of each norm's math, instantiated with scalars in device code and with packs in host code, in one unit.

#include "evenkeel/norms/batch_norm.hpp"
#include "evenkeel/norms/layer_norm.hpp"
#include "evenkeel/norms/rms_norm.hpp"
#include "support/catch.hpp"

#include <cuda_runtime.h>

#include <cmath>
#include <vector>

namespace ek = evenkeel;

namespace {

using Plain = ek::detail::AffineMath<false, ek::None>;
using Offset = ek::detail::AffineMath<true, ek::None>;
using Terms = ek::detail::ParameterTerms<true, true>;

/// One row, forward, by one thread: the least that a driver does.
template <class Math>
EVENKEEL_HD void forward_row(const Math& math, const float* x, const float* weight, const float* bias, float* y,
                             int n) {
  using namespace ek::detail;
  Values<float, Math::sums> sums{};
  Values<float, 0> terms;
  const auto start = math.start(typename Math::template Known<float>{}, x[0]);
  for (int i = 0; i < n; ++i) math.accumulate(sums, terms, start, x[i], weight[i], bias[i]);
  const auto row = math.finish(sums, start);
  for (int i = 0; i < n; ++i) {
    Values<float, 1> out;
    math.write(out, row, x[i], weight[i], bias[i]);
    y[i] = out[0];
  }
}

template <class Math, class Row>
EVENKEEL_HD void backward_row(const Math& math, const Row& known, const float* dy, const float* x, const float* weight,
                              float* dx, float* dweight, float* dbias, int n) {
  using namespace ek::detail;
  Values<float, Math::sums> sums{};
  const auto start = math.start(known, dy[0], x[0], ek::None{});
  for (int i = 0; i < n; ++i) {
    Values<float, 2> terms;
    math.accumulate(sums, terms, start, dy[i], x[i], ek::None{}, weight[i]);
    dweight[i] += terms[0];
    dbias[i] += terms[1];
  }
  const auto row = math.finish(sums, start);
  for (int i = 0; i < n; ++i) {
    Values<float, 1> out;
    math.write(out, row, dy[i], x[i], ek::None{}, weight[i]);
    dx[i] = out[0];
  }
}

template <class Math>
__global__ void forward_kernel(Math math, const float* x, const float* weight, const float* bias, float* y, int n) {
  forward_row(math, x, weight, bias, y, n);
}

template <class Math, class Row>
__global__ void backward_kernel(Math math, Row known, const float* dy, const float* x, const float* weight, float* dx,
                                float* dweight, float* dbias, int n) {
  backward_row(math, known, dy, x, weight, dx, dweight, dbias, n);
}

/// The vocabulary in device code.
__global__ void vocabulary_kernel(float* v) {
  using namespace ek::detail;
  v[0] = sqrt(v[0]) + exp(v[1]) + tanh(v[2]) + erf(v[3]);
  v[1] = max(min(v[4], v[5]), select_less(v[6], v[7], v[0], splat<float>(2)));
}

template <class Affine>
struct Maths {
  using LayerForward = ek::detail::StandardizeForward<float, Affine>;
  using LayerBackward = ek::detail::StandardizeBackward<float, Affine, Terms>;
  using RmsForward = ek::detail::RmsForward<float, Affine>;
  using RmsBackward = ek::detail::RmsBackward<float, Affine, Terms>;
};

/// Makes the compiler emit the kernels; a machine without a GPU cannot launch them.
template <class Affine>
std::vector<const void*> kernels() {
  using M = Maths<Affine>;
  return {reinterpret_cast<const void*>(&forward_kernel<typename M::LayerForward>),
          reinterpret_cast<const void*>(&forward_kernel<typename M::RmsForward>),
          reinterpret_cast<const void*>(&backward_kernel<typename M::LayerBackward, ek::detail::StandardizeRow<float>>),
          reinterpret_cast<const void*>(&backward_kernel<typename M::RmsBackward, ek::detail::RmsRow<float>>)};
}

constexpr int length = 77;

struct Data {
  Eigen::ArrayXf x = Eigen::ArrayXf::Random(length) + 3.0f, dy = Eigen::ArrayXf::Random(length);
  Eigen::ArrayXf weight = Eigen::ArrayXf::LinSpaced(length, 0.5f, 1.5f),
                 bias = Eigen::ArrayXf::LinSpaced(length, -1, 1);
};

float largest_difference(const Eigen::ArrayXf& a, const Eigen::ArrayXf& b) { return (a - b).abs().maxCoeff(); }

// Scalar and pack code add in different orders: a few units in the last place of values up to 5.
constexpr float tolerance = 5e-6f;

}  // namespace

TEST_CASE("math: device text and host packs give the same LayerNorm", "[cuda]") {
  const Data d;
  Eigen::ArrayXf y(length), dx(length), dweight = Eigen::ArrayXf::Zero(length), dbias = dweight;
  ek::LayerNormSaved<float> saved;
  ek::layer_norm(ek::serial, d.x, d.weight, d.bias, y, saved);
  ek::layer_norm_backward(ek::serial, d.dy, d.x, d.weight, saved, dx, dweight, dbias);

  using M = Maths<Plain>;
  Eigen::ArrayXf y1(length), dx1(length), dweight1 = Eigen::ArrayXf::Zero(length), dbias1 = dweight1;
  forward_row(M::LayerForward{1.0f / length, 1e-5f}, d.x.data(), d.weight.data(), d.bias.data(), y1.data(), length);
  const ek::detail::StandardizeRow<float> row{saved.field(0, 0), saved.field(1, 0), saved.field(2, 0)};
  backward_row(M::LayerBackward{1.0f / length}, row, d.dy.data(), d.x.data(), d.weight.data(), dx1.data(),
               dweight1.data(), dbias1.data(), length);
  CHECK(largest_difference(y, y1) < tolerance);
  CHECK(largest_difference(dx, dx1) < tolerance);
  CHECK(largest_difference(dweight, dweight1) < tolerance);
  CHECK(largest_difference(dbias, dbias1) < tolerance);
}

TEST_CASE("math: device text and host packs give the same RMSNorm with unit offset", "[cuda]") {
  const Data d;
  Eigen::ArrayXf y(length), dx(length), dweight = Eigen::ArrayXf::Zero(length), dbias = dweight;
  ek::RmsNormSaved<float> saved;
  ek::rms_norm(ek::serial, d.x, d.weight, d.bias, y, saved, {.unit_offset = true});
  ek::rms_norm_backward(ek::serial, d.dy, d.x, d.weight, saved, dx, dweight, dbias);

  using M = Maths<Offset>;
  Eigen::ArrayXf y1(length), dx1(length), dweight1 = Eigen::ArrayXf::Zero(length), dbias1 = dweight1;
  forward_row(M::RmsForward{1.0f / length, 1e-6f}, d.x.data(), d.weight.data(), d.bias.data(), y1.data(), length);
  backward_row(M::RmsBackward{1.0f / length}, ek::detail::RmsRow<float>{saved.rstd(0)}, d.dy.data(), d.x.data(),
               d.weight.data(), dx1.data(), dweight1.data(), dbias1.data(), length);
  CHECK(largest_difference(y, y1) < tolerance);
  CHECK(largest_difference(dx, dx1) < tolerance);
  CHECK(largest_difference(dweight, dweight1) < tolerance);
  CHECK(largest_difference(dbias, dbias1) < tolerance);
}

TEST_CASE("math: every kernel is in the program", "[cuda]") {
  for (const void* kernel : kernels<Plain>()) CHECK(kernel != nullptr);
  for (const void* kernel : kernels<Offset>()) CHECK(kernel != nullptr);
  CHECK(reinterpret_cast<const void*>(&vocabulary_kernel) != nullptr);
}

TEST_CASE("math: BatchNorm runs in a unit that nvcc compiles", "[cuda]") {
  const Eigen::ArrayXXf x = Eigen::ArrayXXf::Random(33, 5) + 2.0f;  // (batch, channels), column-major
  Eigen::ArrayXXf y(33, 5);
  ek::BatchNormSaved<float> saved;
  ek::batch_norm(ek::serial, x, ek::none, ek::none, y, saved);
  CHECK(y.colwise().mean().abs().maxCoeff() < 1e-6f);
  CHECK((y.square().colwise().mean() - 1.0f).abs().maxCoeff() < 1e-3f);
}
