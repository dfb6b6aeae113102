// Running statistics, inference and layers over channels on a device, and what their calls ask of CUDA.
#include "cuda/channel_checks.hpp"
#include "support/cuda/launched.hpp"

using namespace cuda_test;

namespace {

using Row3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;
using RowMap = Eigen::TensorMap<Row3>;
using Vector = Eigen::Array<float, Eigen::Dynamic, 1>;
using VectorMap = Eigen::Map<Vector>;

Row3 row_tensor(const Channels& p, const Values& values) {
  Row3 t{Index(p.N), Index(p.C), Index(p.S)};
  for (std::size_t i = 0; i < values.size(); ++i) t.data()[i] = float(values[i]);
  return t;
}
double distance(const Values& a, const float* b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - double(b[i])));
  return worst;
}
Vector vector_of(const Values& values) {
  Vector v(Index(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) v(Index(i)) = float(values[i]);
  return v;
}

// 20 roundings of numbers up to 16: both sides compute in float, in another order.
constexpr double near = 20 * 16 * 6e-8;

}  // namespace

TEST_CASE("running statistics on a device follow as on the CPU", "[cuda][batch_norm]") {
  const ek::CudaStream device(nullptr, {4, 232448, 90});
  const auto follow = [&](Norm norm, std::size_t ghost, ek::RunningOptions options) {
    ek::RunningStatistics<float> cpu(5, options);
    ek::RunningStatistics<float, ek::CudaStorage> cuda(5, options);
    for (std::uint64_t batch = 1; batch <= 3; ++batch) {
      Channels p = channels<float>(4, 5, 6, batch, double(batch));
      p.ghost = ghost;
      const auto spec = spec_of(p, {.norm = norm});
      Row3 x = row_tensor(p, p.x), y = x;
      ek::ChannelNormSaved<float> saved;
      ek::detail::channel_norm<ek::Identity>("test", ek::serial, x, ek::none, ek::none, ek::none, ek::none, y, saved,
                                             spec);
      cpu.update(saved);
      DeviceMemory<float> memory(p.x);
      RowMap map(memory.data(), 4, 5, 6);
      ek::ChannelNormSaved<float, ek::CudaStorage> device_saved;
      device_saved.reserve_for(device, map, spec);
      ek::detail::channel_norm<ek::Identity>("test", device, map, ek::none, ek::none, ek::none, ek::none, map,
                                             device_saved, spec);
      cuda.update(device, device_saved);
      CHECK(cuda.num_batches_tracked == cpu.num_batches_tracked);
      CHECK(distance(DeviceMemory<float>::read(cuda.data(), 10), cpu.data()) < near);
    }
    CHECK(cpu.mean()[0] > 0.1);
  };
  follow(Norm::batch, 4, {});
  follow(Norm::batch, 2, {});
  follow(Norm::batch, 2, {.momentum = ek::Momentum::cumulative()});
  follow(Norm::batch, 4, {.momentum = ek::OldWeight{0.5}, .variance = ek::RunningVariance::biased});
  follow(Norm::instance, 1, {});
  follow(Norm::instance, 1, {.momentum = ek::Momentum::cumulative()});
}

TEST_CASE("a batch in which nothing counts leaves running statistics on a device alone", "[cuda][batch_norm]") {
  const ek::CudaStream device(nullptr, {4, 232448, 90});
  ek::RunningStatistics<float, ek::CudaStorage> running(3);
  const Channels p = channels<float>(2, 3, 4);
  DeviceMemory<float> x(p.x), y(p.size());
  DeviceMemory<unsigned char> mask(Values(8, 0.0));
  ek::BatchNormSaved<float, ek::CudaStorage> saved;
  RowMap x_map(x.data(), 2, 3, 4);
  saved.reserve(device, x_map);
  ek::masked_batch_norm(device, x_map,
                        Eigen::TensorMap<Eigen::Tensor<unsigned char, 2, Eigen::RowMajor>>(mask.data(), 2, 4), ek::none,
                        ek::none, RowMap(y.data(), 2, 3, 4), saved);
  running.update(device, saved);
  CHECK(DeviceMemory<float>::read(running.data(), 6) == Values{0, 0, 0, 1, 1, 1});
}

TEST_CASE("layers in a device's memory do what layers on the CPU do", "[cuda][layers]") {
  const ek::CudaStream device(nullptr, {4, 232448, 90});
  const auto compare = [&](auto& cpu, auto& cuda) {
    for (int step = 1; step <= 5; ++step) {
      const Channels p = channels<float>(4, 6, 8, std::uint64_t(step));
      const Row3 x = row_tensor(p, p.x), dy = row_tensor(p, p.dy);
      Row3 y = x, dx = x;
      DeviceMemory<float> x_memory(p.x), dy_memory(p.dy), y_memory(p.size()), dx_memory(p.size());
      const auto map = [&](DeviceMemory<float>& m) { return RowMap(m.data(), 4, 6, 8); };
      if constexpr (requires { cpu.training; }) cpu.training = cuda.training = step != 4;
      cpu.forward(ek::serial, x, y);
      cuda.saved.reserve(device, map(x_memory), cuda.options());
      cuda.forward(device, map(x_memory), map(y_memory));
      cpu.backward(ek::serial, dy, x, dx);
      cuda.backward(device, map(dy_memory), map(x_memory), map(dx_memory));
      CHECK(distance(y_memory.values(), y.data()) < near);
      CHECK(distance(dx_memory.values(), dx.data()) < near);
      CHECK(distance(DeviceMemory<float>::read(cuda.weight.gradient(), 6), cpu.weight.gradient()) < 32 * near);
      CHECK(distance(DeviceMemory<float>::read(cuda.bias.gradient(), 6), cpu.bias.gradient()) < 32 * near);
    }
  };
  ek::BatchNorm<float> batch(6);
  ek::BatchNorm<float, ek::Identity, ek::CudaStorage> cuda_batch(6);
  compare(batch, cuda_batch);
  ek::GroupNorm<float> group(6, {.groups = 2});
  ek::GroupNorm<float, ek::Identity, ek::CudaStorage> cuda_group(6, {.groups = 2});
  compare(group, cuda_group);
  ek::InstanceNorm<float> instance(6, {}, {}, ek::Affine::weight_and_bias, ek::Tracking::on);
  ek::InstanceNorm<float, ek::Identity, ek::CudaStorage> cuda_instance(6, {}, {}, ek::Affine::weight_and_bias,
                                                                       ek::Tracking::on);
  compare(instance, cuda_instance);
  CHECK(emulator::never_launched("detail/channel_kernels.cuh").empty());
}

TEST_CASE("inference and frozen gradients on a device equal those on the CPU", "[cuda][batch_norm]") {
  const ek::CudaStream device(nullptr, {4, 232448, 90});
  for (int axis : {1, 2})
    for (Index C : {3, 8, 33}) {
      const Index S = 20;
      const Channels p = channels<float>(3, std::size_t(C), std::size_t(S), std::uint64_t(C));
      const auto tensor = [&](const Values& v) {
        Row3 t = axis == 1 ? Row3(3, C, S) : Row3(3, S, C);
        for (std::size_t i = 0; i < v.size(); ++i) t.data()[i] = float(v[i]);
        return t;
      };
      const Row3 x = tensor(p.x), dy = tensor(p.dy);
      Row3 y = x, dx = x;
      const Vector w = vector_of(p.weight), b = vector_of(p.bias);
      Vector dw = Vector::Zero(C), db = dw;
      ek::RunningStatistics<float> cpu(C);
      ek::RunningStatistics<float, ek::CudaStorage> cuda(C);
      for (Index c = 0; c < C; ++c) cpu.mean()[c] = 0.1f * float(c), cpu.var()[c] = 0.5f + float(c % 3);
      std::copy_n(cpu.data(), 2 * C, cuda.mean());
      ek::ChannelNormSaved<float> scratch;
      const ek::BatchNormOptions options{.axis = axis};
      ek::batch_norm_inference(ek::serial, x, w, b, cpu, y, options);
      ek::batch_norm_inference_backward(ek::serial, dy, x, w, b, cpu, scratch, dx, dw, db, options);

      DeviceMemory<float> x_memory(p.x), dy_memory(p.dy), y_memory(p.size()), dx_memory(p.size());
      DeviceMemory<float> weight(p.weight), bias(p.bias), dweight(Values(p.C, 0.0)), dbias(Values(p.C, 0.0));
      const auto map = [&](DeviceMemory<float>& m) { return RowMap(m.data(), x.dimensions()); };
      const auto vector = [&](DeviceMemory<float>& m) { return VectorMap(m.data(), C); };
      ek::BatchNormSaved<float, ek::CudaStorage> device_scratch;
      device_scratch.reserve(device, map(x_memory), options);
      ek::batch_norm_inference(device, map(x_memory), vector(weight), vector(bias), cuda, map(y_memory), options);
      ek::batch_norm_inference_backward(device, map(dy_memory), map(x_memory), vector(weight), vector(bias), cuda,
                                        device_scratch, map(dx_memory), vector(dweight), vector(dbias), options);
      CHECK(distance(y_memory.values(), y.data()) < near);
      CHECK(distance(dx_memory.values(), dx.data()) < near);
      CHECK(distance(dweight.values(), dw.data()) < 16 * near);
      CHECK(distance(dbias.values(), db.data()) < 16 * near);
    }
}

TEST_CASE("channel norms on a device allocate, wait and ask nothing", "[cuda][batch_norm]") {
  const ek::CudaStream device(nullptr, {4, 232448, 90});
  const Channels p = channels<float>(4, 6, 8);
  DeviceMemory<float> x(p.x), dy(p.dy), y(p.size()), dx(p.size()), dw(6), db(6), w(p.weight);
  const auto map = [&](DeviceMemory<float>& m) { return RowMap(m.data(), 4, 6, 8); };
  const auto vector = [&](DeviceMemory<float>& m) { return VectorMap(m.data(), 6); };
  ek::BatchNormSaved<float, ek::CudaStorage> saved;
  ek::RunningStatistics<float, ek::CudaStorage> running(6);
  // Without room nothing is launched, and nothing counts as saved.
  CHECK_THROWS_AS(ek::batch_norm(device, map(x), vector(w), ek::none, map(y), saved), ek::CudaError);
  CHECK_THROWS_AS(ek::batch_norm_backward(device, map(dy), map(x), vector(w), saved, map(dx), vector(dw), vector(db)),
                  ek::ShapeError);
  saved.reserve(device, map(x));
  auto before = emulator::record().calls;
  ek::batch_norm(device, map(x), vector(w), ek::none, map(y), saved);
  running.update(device, saved);
  ek::batch_norm_backward(device, map(dy), map(x), vector(w), saved, map(dx), vector(dw), vector(db));
  ek::batch_norm_inference(device, map(x), vector(w), ek::none, running, map(y));
  ek::batch_norm_inference_backward(device, map(dy), map(x), vector(w), ek::none, running, saved, map(dx), vector(dw),
                                    vector(db));
  auto after = emulator::record().calls;
  CHECK(after["cudaLaunchKernelEx"] == before["cudaLaunchKernelEx"] + 3 + 1 + 3 + 1 + 3);
  before.erase("cudaLaunchKernelEx");
  after.erase("cudaLaunchKernelEx");
  CHECK(after == before);
}

TEST_CASE("channel norms on a device take empty data and refuse one value", "[cuda][batch_norm]") {
  const ek::CudaStream device(nullptr, {4, 232448, 90});
  DeviceMemory<float> memory(Values(6, 3.0)), dw(Values(6, 5.0));
  ek::BatchNormSaved<float, ek::CudaStorage> saved;
  const RowMap one(memory.data(), 1, 6, 1), nothing(memory.data(), 0, 6, 1);
  saved.reserve(device, one);
  CHECK_THROWS_AS(ek::batch_norm(device, one, ek::none, ek::none, RowMap(one), saved), ek::ShapeError);
  ek::batch_norm(device, nothing, VectorMap(memory.data(), 6), ek::none, RowMap(nothing), saved);
  ek::batch_norm_backward(device, nothing, nothing, VectorMap(memory.data(), 6), saved, RowMap(nothing),
                          VectorMap(dw.data(), 6), ek::none, ek::GradientMode::overwrite);
  CHECK(dw.values() == Values(6, 0.0));
  CHECK(memory.values() == Values(6, 3.0));
  ek::GroupNormSaved<float, ek::CudaStorage> groups;
  groups.reserve(device, nothing, {.groups = 2});
  ek::group_norm(device, nothing, ek::none, ek::none, RowMap(nothing), groups, {.groups = 2});
}
