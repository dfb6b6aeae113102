// One normalization layer, forward, backward and one parameter update, on all cores.
#include "evenkeel/evenkeel.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <cstdio>
#include <thread>

int main() {
  Eigen::ThreadPool pool(int(std::thread::hardware_concurrency()));
  // [quickstart]
  namespace ek = evenkeel;
  const ek::Index batch = 8, time = 64, features = 256;
  const Eigen::ThreadPoolDevice device(&pool, pool.NumThreads());  // or ek::serial, or an Eigen::DefaultDevice

  Eigen::Tensor<float, 3, Eigen::RowMajor> x(batch, time, features), target(batch, time, features);
  Eigen::Tensor<float, 3, Eigen::RowMajor> y(batch, time, features), dy(batch, time, features),
      dx(batch, time, features);
  ek::RandomStream(42, "x").fill_normal(x.data(), x.size(), 3.0, 2.0);  // mean 3, standard deviation 2
  ek::RandomStream(42, "target").fill_normal(target.data(), target.size());

  ek::LayerNorm<float> norm(features);  // over the last axis; ek::RmsNorm<float> has the same members
  norm.forward(device, x, y);

  dy = (y - target) / float(y.size());  // of the loss mean((y - target)^2) / 2
  norm.backward(device, dy, x, dx);
  norm.for_each_parameter([](ek::ParameterRef<float> p) {
    for (ek::Index i = 0; i < p.size; ++i) p.value[i] -= 100.0f * p.gradient[i];
  });
  // [/quickstart]
  const auto loss = [&] {
    const Eigen::Tensor<float, 0, Eigen::RowMajor> mean_square = (y - target).square().mean();
    return double(mean_square()) / 2;
  };
  const double before = loss();
  norm.forward(device, x, y);
  std::printf("loss %.4f, after one step %.4f\n", before, loss());
}
