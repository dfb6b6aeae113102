#include "evenkeel/residual/deep_norm.hpp"
#include "evenkeel/residual/output_norm.hpp"
#include "evenkeel/residual/post_norm.hpp"
#include "residual/sublayers.hpp"
#include "taper/taper_checks.hpp"

using namespace taper_test;

namespace {

template <class F>
void for_each_variant(const F& f) {
  f(RmsVariant{});
  f(LayerVariant{});
}

// What a fused forward and its backward leave.
template <class T>
struct AddRun {
  RowMatrix<T> sum, y, dx;
  Vector<T> dweight, dscale_weight;
};

template <class T>
RowMatrix<T> residual_of(const TaperData& d) {
  return matrix_of<RowMatrix<T>>(d.rows, d.length, support::normal<T>(d.rows * d.length, 77, -0.5));
}
template <class T>
AddRun<T> room(const TaperData& d) {
  const auto n = Eigen::Index(d.length);
  const RowMatrix<T> m = RowMatrix<T>::Constant(Eigen::Index(d.rows), n, norms_test::nan_of<T>());
  const Vector<T> v = Vector<T>::Constant(n, norms_test::nan_of<T>());
  return {m, m, m, v, v};
}

template <class V, class T, class S>
AddRun<T> add(const TaperData& d, S& saved, bool calibrate = false) {
  const auto x = matrix_of<RowMatrix<T>>(d.rows, d.length, d.x), dy = matrix_of<RowMatrix<T>>(d.rows, d.length, d.dy);
  const auto w = vector_of<T>(d.weight), c = vector_of<T>(d.scale_weight), b = vector_of<T>(d.bias);
  const RowMatrix<T> residual = residual_of<T>(d), later = RowMatrix<T>(dy * T(2));
  AddRun<T> r = room<T>(d);
  typename V::Options options;
  options.gate = d.gate, options.factor = d.factor, options.eps = d.eps, options.calibrate = calibrate;
  constexpr auto mode = ek::GradientMode::overwrite;
  if constexpr (V::centred) {
    ek::add_taper_layer_norm(ek::serial, x, residual, w, c, b, r.sum, r.y, saved, options);
    ek::add_taper_layer_norm_backward(ek::serial, dy, later, r.sum, w, c, saved, r.dx, r.dweight, r.dscale_weight,
                                      ek::none, mode);
  } else {
    ek::add_taper_rms_norm(ek::serial, x, residual, w, c, ek::none, r.sum, r.y, saved, options);
    ek::add_taper_rms_norm_backward(ek::serial, dy, later, r.sum, w, c, saved, r.dx, r.dweight, r.dscale_weight,
                                    ek::none, mode);
  }
  return r;
}

// The same by the plain norms.
template <class V, class T>
AddRun<T> plain_add(const TaperData& d) {
  const auto x = matrix_of<RowMatrix<T>>(d.rows, d.length, d.x), dy = matrix_of<RowMatrix<T>>(d.rows, d.length, d.dy);
  const auto w = vector_of<T>(d.weight), b = vector_of<T>(d.bias);
  const RowMatrix<T> residual = residual_of<T>(d), later = RowMatrix<T>(dy * T(2));
  AddRun<T> r = room<T>(d);
  r.dscale_weight.setZero();
  typename V::template PlainSaved<ek::accumulator_t<T>> saved;
  constexpr auto mode = ek::GradientMode::overwrite;
  if constexpr (V::centred) {
    ek::add_layer_norm(ek::serial, x, residual, w, b, r.sum, r.y, saved, {.eps = d.eps});
    ek::add_layer_norm_backward(ek::serial, dy, later, r.sum, w, saved, r.dx, r.dweight, ek::none, mode);
  } else {
    ek::add_rms_norm(ek::serial, x, residual, w, r.sum, r.y, saved, {.eps = d.eps});
    ek::add_rms_norm_backward(ek::serial, dy, later, r.sum, w, saved, r.dx, r.dweight, mode);
  }
  return r;
}

template <class T>
bool same_bits(const AddRun<T>& a, const AddRun<T>& b) {
  return taper_test::same_bits(a.sum, b.sum) && taper_test::same_bits(a.y, b.y) && taper_test::same_bits(a.dx, b.dx) &&
         taper_test::same_bits(a.dweight, b.dweight) && taper_test::same_bits(a.dscale_weight, b.dscale_weight);
}

}  // namespace

TEST_CASE("a fused residual sum and TaperNorm at gate 1 have the bits of the plain ones", "[taper]") {
  for_each_variant([]<class V>(V) {
    for (const std::size_t length : support::Counts{1, 5, 16, 40}) {
      const TaperData d = taper_data<float>(9, length, V::centred, 1);
      typename V::template Saved<float> saved;
      CHECK(same_bits(add<V, float>(d, saved), plain_add<V, float>(d)));
      CHECK(same_bits(add<V, float>(d, saved, true), plain_add<V, float>(d)));
      CHECK((saved.calibration_denominator() > 0) == (length > 1 || !V::centred));
      const TaperData half = taper_data<Eigen::bfloat16>(9, length, V::centred, 1);
      CHECK(same_bits(add<V, Eigen::bfloat16>(half, saved), plain_add<V, Eigen::bfloat16>(half)));
    }
  });
}

TEST_CASE("a fused residual sum and TaperNorm equal the sum and then the norm", "[taper]") {
  for_each_variant([]<class V>(V) {
    for (const double gate : gates)
      for (const std::size_t length : support::Counts{3, 40}) {
        TaperData d = taper_data<double>(5, length, V::centred, gate);
        typename V::template Saved<double> saved;
        const AddRun<double> got = add<V, double>(d, saved);
        const RowMatrix<double> residual = residual_of<double>(d);
        for (std::size_t i = 0; i < d.x.size(); ++i) d.x[i] += residual.data()[i];
        if (!V::centred) d.bias.clear();
        const TaperResult expected = reference::taper_norm(d);
        CHECK(values_of(got.sum) == d.x);
        const double epsilon = norms_test::epsilon_of<double>();
        CHECK(close(values_of(got.y), expected.y, length, epsilon));
        RowMatrix<double> through = got.dx;
        for (std::size_t i = 0; i < d.dy.size(); ++i) through.data()[i] -= 2 * d.dy[i];
        reference::Sized dx = expected.dx;
        for (std::size_t i = 0; i < d.dy.size(); ++i) dx.size[i] += 4 * std::abs(d.dy[i]);
        CHECK(close(values_of(through), dx, length, epsilon));
        CHECK(close(values_of(got.dweight), expected.dweight, d.x.size(), epsilon));
        CHECK(close(values_of(got.dscale_weight), expected.dscale_weight, d.x.size(), epsilon));
      }
  });
}

TEST_CASE("a fused residual sum and TaperNorm at gate 0 compute no statistics", "[taper]") {
  TaperData d = taper_data<float>(6, 40, false, 0);
  for (double& x : d.x) x *= 1e30;  // whose squares float does not hold
  ek::TaperRmsNormSaved<float> saved;
  saved.begin({6, 40, "", {}});
  std::fill_n(saved.statistics.data(), 12, 99.f);
  const AddRun<float> got = add<RmsVariant, float>(d, saved);
  for (ek::Index r = 0; r < 6; ++r) CHECK(saved.rstd(r) == 99.f);
  for (ek::Index i = 0; i < got.y.size(); ++i) {
    const double expected = d.factor * double(got.sum.data()[i]) * d.scale_weight[std::size_t(i) % 40];
    CHECK(double(got.y.data()[i]) == Approx(expected).epsilon(1e-6));
  }
  // The variant with a mean takes rows whose sum float does not hold either.
  TaperData centred = taper_data<float>(6, 40, true, 0);
  for (double& x : centred.x) x = x * 1e37 + 1e38;
  ek::TaperLayerNormSaved<float> layer_saved;
  layer_saved.begin({6, 40, "", {}});
  std::fill_n(layer_saved.statistics.data(), 24, 99.f);
  const AddRun<float> far = add<LayerVariant, float>(centred, layer_saved);
  CHECK(far.y.allFinite());
  for (ek::Index r = 0; r < 6; ++r) {
    CHECK(layer_saved.rstd(r) == 99.f);
    CHECK(double(layer_saved.mean(r)) == Approx(far.sum.row(r).cast<double>().mean()).epsilon(1e-6));
  }
}

TEST_CASE("residual blocks that add to a tapered layer have right gradients at every gate", "[taper]") {
  using namespace residual_test;
  const auto check = []<class Layer>(std::type_identity<Layer>) {
    for (const int step : {0, 631, 1000}) {
      ek::Taper taper({.warmup_steps = 0, .end_step = 1000});
      for (int t = 0; t < step; ++t) taper.advance();
      INFO("gate " << taper.gate());
      Layer norm(6, taper, {.eps = 1e-3});
      randomize(norm, 7);
      norm.calibrate(0.7);
      for (ek::Index i = 0; i < 6; ++i) norm.scale_weight.value()[i] -= 0.2 * double(i);
      ek::PostNorm post{Layer(norm), Tanh<double>(6)};
      check_gradients(post, 4, 6);
      ek::DeepNorm deep{Layer(norm), Tanh<double>(6), 1.7};
      check_gradients(deep, 4, 6);
      ek::OutputNorm output{Tanh<double>(6), Layer(norm)};
      check_gradients(output, 4, 6);
    }
  };
  check(std::type_identity<ek::TaperRmsNorm<double>>{});
  check(std::type_identity<ek::TaperLayerNorm<double>>{});
}

TEST_CASE("a fused residual sum and TaperNorm name what does not fit", "[taper][errors]") {
  const RowMatrix<double> x = RowMatrix<double>::Random(4, 12), narrow = RowMatrix<double>::Random(4, 11);
  RowMatrix<double> sum(4, 12), y(4, 12);
  ek::TaperRmsNormSaved<double> saved;
  const auto add_to = [&](const auto& residual, auto& into) {
    ek::add_taper_rms_norm(ek::serial, x, residual, ek::none, ek::none, ek::none, into, y, saved, {.gate = 0.5});
  };
  CHECK_THROWS_WITH(add_to(narrow, sum), "add_taper_rms_norm: residual is 4x11, x is 4x12, axis 1");
  CHECK_THROWS_AS(add_to(x, y), ek::ShapeError);  // sum and y are one
  add_to(x, sum);
  CHECK(sum == x + x);
  CHECK_THROWS_WITH(ek::add_taper_rms_norm_backward(ek::serial, x, ek::none, narrow, ek::none, ek::none, saved, y,
                                                    ek::none, ek::none, ek::none),
                    "add_taper_rms_norm_backward: saved holds 4 rows of 12, sum has 4 rows of 11");
}
