// The scales of residual branches: layer_scale and its sums over rows, ReZero's scalar in the device's memory, the draws
// of stochastic depth.
#include "cuda/row_norm_checks.hpp"
#include "evenkeel/init/cuda_random.cuh"
#include "evenkeel/residual/layer_scale.hpp"
#include "evenkeel/residual/rezero.hpp"
#include "evenkeel/residual/stochastic_depth.hpp"

using namespace cuda_test;

namespace {

// f * scale, dy * scale: two roundings at most before the store.
double distance(const Values& got, const Values& expected) {
  double worst = got.size() == expected.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(got.size(), expected.size()); ++i)
    worst = std::max(worst, std::abs(got[i] - expected[i]) / (1 + std::abs(expected[i])));
  return worst;
}

constexpr double epsilon = std::numeric_limits<float>::epsilon();

using Matrix = Eigen::Map<Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

}  // namespace

TEST_CASE("layer_scale and its gradients equal their formulas", "[cuda]") {
  std::size_t turn = 0;
  for (const Index length : {1, 7, 96, 1027, 8200, 40960})
    for (const Placement& place : {packed(3, length), placements(length, turn)[1 + turn % 7]}) {
      use_order(orders[turn++ % orders.size()]);
      INFO(place.name << ", " << place.rows() << " x " << length);
      const RowData data = row_data<float, float>(place);
      RowTensors<float, float> t(data, place);
      const ek::CudaStream device(nullptr, small);
      ek::LayerScaleSaved<float, ek::CudaStorage> saved;
      saved.reserve(device, t.x.view());
      ek::layer_scale(device, t.x.view(), t.second.view(), t.weight.map(), t.y.view(), saved);
      ek::layer_scale_backward(device, t.dy.view(), t.second.view(), t.weight.map(), saved, t.dx.view(),
                               t.dweight.map(), ek::GradientMode::overwrite);
      Values y = data.x, df = data.dy, dscale(data.weight.size()), size(data.weight.size());
      for (std::size_t i = 0; i < y.size(); ++i) {
        const std::size_t feature = i % data.weight.size();
        y[i] += data.weight[feature] * data.second[i];
        df[i] *= data.weight[feature];
        dscale[feature] += data.dy[i] * data.second[i];
        size[feature] += std::abs(data.dy[i] * data.second[i]);
      }
      CHECK(distance(t.y.values(), y) < 8 * epsilon);
      CHECK(distance(t.dx.values(), df) < 2 * epsilon);
      CHECK(t.dx.gaps_untouched());
      CHECK((worst_error<float, float>({"dscale", t.dweight.values()},
                                       {"dscale", dscale, size, std::size_t(place.rows())})) <= 1);
    }
}

TEST_CASE("ReZero's scalar is read, and its gradient written, on the device", "[cuda]") {
  for (const Index length : {7, 96, 1027, 40960}) {
    INFO("length " << length);
    const Placement place = packed(66, length);
    const RowData data = row_data<float, float>(place);
    RowTensors<float, float> t(data, place);
    const auto run = [&](const auto& device, const auto& storage) {
      ek::ScalarJoin<float, std::remove_cvref_t<decltype(storage)>> join(0.75);
      join.reserve_join(device, t.x.view());
      auto y = t.y.view(), df = t.dx.view();
      join.join(device, t.x.view(), t.second.view(), y);
      join.pull(device, t.dy.view(), t.second.view(), df);
      ek::ParameterRef<float> alpha = join.alpha.ref();
      return std::vector<Values>{t.y.values(), t.dx.values(), {double(*alpha.gradient)}};
    };
    const auto got = run(ek::CudaStream(nullptr, small), ek::CudaStorage());
    const auto expected = run(ek::serial, ek::HostStorage());
    double dalpha = 0, size = 0;
    for (std::size_t i = 0; i < data.dy.size(); ++i) {
      dalpha += data.dy[i] * data.second[i];
      size += std::abs(data.dy[i] * data.second[i]);
    }
    CHECK(distance(got[0], expected[0]) < 8 * epsilon);
    CHECK(distance(got[1], expected[1]) < 2 * epsilon);
    for (const Values& gradient : {got[2], expected[2]})
      CHECK(std::abs(gradient[0] - dalpha) < support::tolerance(data.dy.size(), size, epsilon));
  }
}

TEST_CASE("stochastic depth draws on the device what it draws on the CPU", "[cuda]") {
  const Placement place = packed(132, 7);
  RowTensors<float, float> t(row_data<float, float>(place), place);
  const auto matrix = [](const ek::AxisView<float>& view) { return Matrix(view.data, 132, 7); };
  const Matrix x = matrix(t.x.view()), f = matrix(t.second.view());
  const auto run = [&](const auto& device, const auto& storage) {
    ek::StochasticJoin<float, std::remove_cvref_t<decltype(storage)>> join({.rate = 0.3, .seed = 4, .layer = 1});
    join.reserve_join(device, x);
    Matrix y = matrix(t.y.view()), df = matrix(t.dx.view());
    join.join(device, x, f, y);
    join.pull(device, x, f, df);
    return std::vector<Values>{t.y.values(), t.dx.values()};
  };
  const auto got = run(ek::CudaStream(nullptr, small), ek::CudaStorage());
  const auto expected = run(ek::serial, ek::HostStorage());
  CHECK(distance(got[0], expected[0]) < 8 * epsilon);
  CHECK(distance(got[1], expected[1]) < 2 * epsilon);
  CHECK(distance(got[0], t.x.values()) > 0.1);
}
