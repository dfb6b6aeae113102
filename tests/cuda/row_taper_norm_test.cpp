#include "cuda/row_norm_checks.hpp"
#include "taper/taper_reference.hpp"

using namespace cuda_test;

namespace {

// scale_weight has the numbers of `bias`, bias those of `weight`; the place of dbias receives dscale_weight.
template <bool Centred>
struct TaperNorm {
  static inline double gate = 1;
  static inline bool calibrate = false;
  static constexpr double factor = 0.75;
  static constexpr const char* name = Centred ? "taper_layer_norm" : "taper_rms_norm";
  template <class A, class Storage>
  using Saved = std::conditional_t<Centred, ek::TaperLayerNormSaved<A, Storage>, ek::TaperRmsNormSaved<A, Storage>>;

  template <class Device, class Tensors, class T, class S>
  static void forward(const Device& device, const Tensors& t, const DeviceTensor<T>& y, S& saved, const RunOptions& o) {
    const auto run = [&](auto options, const auto& norm) {
      options.gate = gate, options.factor = factor, options.eps = o.eps, options.calibrate = calibrate;
      norm(options);
    };
    if constexpr (Centred)
      run(ek::TaperLayerNormOptions{}, [&](const auto& options) {
        ek::taper_layer_norm(device, t.x.view(), t.weight.map(), t.bias.map(), t.weight.map(), y.view(), saved,
                             options);
      });
    else
      run(ek::TaperRmsNormOptions{}, [&](const auto& options) {
        ek::taper_rms_norm(device, t.x.view(), t.weight.map(), t.bias.map(), t.weight.map(), y.view(), saved, options);
      });
  }
  template <class Device, class Tensors, class T, class S>
  static void backward(const Device& device, const Tensors& t, const DeviceTensor<T>& dx, S& saved,
                       const RunOptions& o) {
    if constexpr (Centred)
      ek::taper_layer_norm_backward(device, t.dy.view(), t.x.view(), t.weight.map(), t.bias.map(), saved, dx.view(),
                                    t.dweight.map(), t.dbias.map(), ek::none, o.mode);
    else
      ek::taper_rms_norm_backward(device, t.dy.view(), t.x.view(), t.weight.map(), t.bias.map(), saved, dx.view(),
                                  t.dweight.map(), t.dbias.map(), ek::none, o.mode);
  }
  static Results expected(const RowData& d, const RunOptions& o) {
    const auto rows = std::size_t(d.rows), length = std::size_t(d.length);
    auto r = reference::taper_norm({rows, length, d.x, d.dy, d.weight, d.bias, d.weight, gate, factor, o.eps, Centred});
    return {{"y", std::move(r.y.value), std::move(r.y.size), length},
            {"dx", std::move(r.dx.value), std::move(r.dx.size), length},
            {"dweight", std::move(r.dweight.value), std::move(r.dweight.size), rows + length, true},
            {"dscale_weight", std::move(r.dscale_weight.value), std::move(r.dscale_weight.size), rows + length, true}};
  }
  template <class Tensors>
  static Results results(const Tensors& t) {
    return {{"y", t.y.values()},
            {"dx", t.dx.values()},
            {"dweight", t.dweight.values()},
            {"dscale_weight", t.dbias.values()}};
  }
};
using Rms = TaperNorm<false>;
using Layer = TaperNorm<true>;

}  // namespace

TEMPLATE_TEST_CASE("TaperNorm equals its formula at every width and gate", "[cuda]", Rms, Layer) {
  for (const double gate : {0.0, 0.3, 1.0})
    for (const bool calibrate : {false, true}) {
      if (calibrate && gate < 1) continue;
      TestType::gate = gate, TestType::calibrate = calibrate;
      INFO("gate " << gate << ", calibrate " << calibrate);
      check_widths<TestType, float, float>();
    }
  TestType::calibrate = false;
}

TEMPLATE_TEST_CASE("TaperNorm gives the same bits in every order", "[cuda]", Rms, Layer) {
  for (const double gate : {0.0, 0.3}) {
    TestType::gate = gate;
    check_bits<TestType, float, float>({96, 1027});
  }
}

TEST_CASE("TaperNorm's calibration leaves ||x * weight|| in the device's memory", "[cuda]") {
  const Placement place = packed(5, 96);
  const RowData data = row_data<float, float>(place);
  RowTensors<float, float> t(data, place);
  ek::TaperLayerNormSaved<float, ek::CudaStorage> saved;
  const ek::CudaStream device(nullptr, small);
  saved.reserve(device, t.x.view());
  Layer::gate = 1, Layer::calibrate = true;
  Layer::forward(device, t, t.y, saved, {});
  Values kept;  // (mean | rest | rstd | norm, rows)
  std::vector<float> fields(4 * 5);
  cudaMemcpyAsync(fields.data(), saved.statistics.data(), sizeof(float) * fields.size(), cudaMemcpyDeviceToHost,
                  nullptr);
  cudaStreamSynchronize(nullptr);
  kept.assign(fields.begin(), fields.end());
  double numerator = 0, denominator = 0;
  for (std::size_t r = 0; r < 5; ++r) {
    numerator += kept[15 + r] * kept[15 + r] * kept[10 + r] / 5;
    denominator += kept[15 + r] * kept[15 + r] / 5;
  }
  const auto expected = reference::taper_norm({5, 96, data.x, data.dy, data.weight, {}, {}, 1, 0, 1e-5, true});
  CHECK(numerator == Approx(expected.numerator).epsilon(1e-5));
  CHECK(denominator == Approx(expected.denominator).epsilon(1e-5));
}
