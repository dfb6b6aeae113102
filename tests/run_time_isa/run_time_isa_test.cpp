// A unit for any x86-64 processor: every set of kernels that this one runs gives the norms that the formulas say.
#include "norms/row_norm_checks.hpp"

using namespace norms_test;

namespace {

using ek::detail::RunTimeIsa;

// f for each set, as if the processor ran no better one.
template <class F>
void with_each_set(const F& f) {
  const RunTimeIsa best = ek::detail::supported_isa();
  for (const RunTimeIsa isa : {RunTimeIsa::none, RunTimeIsa::avx2, RunTimeIsa::avx512}) {
    if (isa > best) continue;
    INFO("set " << int(isa));
    ek::detail::run_time_isa = isa;
    f(isa);
  }
  ek::detail::run_time_isa = best;
}

}  // namespace

TEST_CASE("run-time sets: the best one is in use, and each has registers of its own width", "[norms]") {
  CHECK(ek::detail::run_time_isa == ek::detail::supported_isa());
  with_each_set([](RunTimeIsa isa) {
    const int lanes =
        ek::detail::with_kernels([]<class Kernels>(Kernels) { return int(Kernels::template lanes<float>); });
    CHECK(lanes == (isa == RunTimeIsa::none ? 4 : isa == RunTimeIsa::avx2 ? 8 : 16));
  });
}

TEST_CASE("run-time sets: layer_norm equals the reference", "[norms]") {
  with_each_set([](RunTimeIsa) { check_shapes<LayerNormUnderTest, float>(); });
}

TEMPLATE_TEST_CASE("run-time sets: layer_norm of small scalars is rounded once", "[norms]", Eigen::bfloat16,
                   Eigen::half) {
  constexpr double half_step = std::is_same_v<TestType, Eigen::half> ? 0x1p-11 : 0x1p-8;
  for (const std::size_t length : {3, 16, 77}) {
    const std::size_t rows = 5;
    const Data data = make_data<TestType>({rows, length, 1}, length);
    const auto x = matrix_of<RowMatrix<TestType>>(rows, length, data.x);
    const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(data.bias);
    const auto expected = LayerNormUnderTest::reference(data.slab, data.x, data.weight, data.bias, {1e-5, false, {}});
    with_each_set([&](RunTimeIsa) {
      RowMatrix<TestType> y(rows, length);
      LayerNormUnderTest::forward(ek::serial, x, weight, bias, y, ek::none, {.eps = 1e-5});
      const Values got = values_of(y);
      double worst = 0;
      for (std::size_t i = 0; i < got.size(); ++i)
        worst = std::max(worst, std::abs(got[i] - expected.y[i]) / (half_step * std::abs(expected.y[i]) + 2e-6));
      INFO("length " << length);
      CHECK(worst < 1.01);
    });
  }
}

TEST_CASE("run-time sets: a norm with exp in it equals its formula", "[norms]") {
  const ek::Index rows = 3, length = 37;
  Eigen::ArrayXXf x(length, rows), y = x, gate = x;
  for (ek::Index i = 0; i < x.size(); ++i) x.data()[i] = float(i % 13) / 4 - 1, gate.data()[i] = float(i % 7) / 2 - 1;
  with_each_set([&](RunTimeIsa) {
    ek::gated_rms_norm(ek::serial, x.matrix(), gate.matrix(), ek::none, y.matrix(), ek::none, {.eps = 0, .axis = 0});
    double worst = 0;
    for (ek::Index r = 0; r < rows; ++r) {
      const double rms = std::sqrt(x.col(r).cast<double>().square().mean());
      for (ek::Index i = 0; i < length; ++i) {
        const double g = gate(i, r);
        worst = std::max(worst, std::abs(double(y(i, r)) - double(x(i, r)) / rms * g / (1 + std::exp(-g))));
      }
    }
    CHECK(worst < 1e-6);
  });
}

TEST_CASE("run-time sets: batch_norm along and across channels equals the reference", "[norms]") {
  with_each_set([](RunTimeIsa) {
    for (const std::size_t channels : {3, 16, 67, 130}) {
      const std::size_t samples = 37;
      const Data data = make_data<float>({samples, channels, 1}, channels);
      const auto n = ek::Index(samples), c = ek::Index(channels);
      const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(data.bias);
      const auto check = [&](auto x, const Data& d) {
        auto dy = x, y = x, dx = x;
        fill(x, d.x);
        fill(dy, d.dy);
        INFO("channels " << channels);
        check_against_reference<BatchNormUnderTest>(ek::serial, d, x, dy, y, dx, weight, bias, {.eps = 1e-5, .axis = 1},
                                                    1e-5);
      };
      check(RowMatrix<float>(n, c), data);
      check(ColMatrix<float>(n, c), make_data<float>({1, channels, samples}, channels));
    }
  });
}
