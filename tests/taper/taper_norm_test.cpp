#include "support/gradient_check.hpp"
#include "taper/taper_checks.hpp"

using namespace taper_test;

namespace {

template <class F>
void for_each_variant(const F& f) {
  f(RmsVariant{});
  f(LayerVariant{});
}

}  // namespace

TEST_CASE("TaperNorm equals its formula, with and without its parameters", "[taper]") {
  for_each_variant([]<class V>(V) {
    for (const double gate : gates)
      for (const std::size_t length : support::Counts{1, 3, 8, 21, 300}) {
        const TaperData d = taper_data<double>(5, length, V::centred, gate);
        check_against_reference<V, double>(d);
        check_against_reference<V, double, false, true, false>(d);
        check_against_reference<V, double, true, false, false>(d);
      }
  });
}

TEST_CASE("TaperNorm's gradients equal central differences at every gate", "[taper]") {
  for_each_variant([]<class V>(V) {
    for (const double gate : gates) {
      INFO(V::name << " at gate " << gate);
      const TaperData at = taper_data<double>(3, 9, V::centred, gate);
      const auto loss_of = [&](Values TaperData::*part) {
        return [&at, part](const Values& v) {
          TaperData d = at;
          d.*part = v;
          RowMatrix<double> y(3, 9);
          typename V::Options options;
          options.gate = d.gate, options.factor = d.factor, options.eps = d.eps;
          forward<V>(ek::serial, matrix_of<RowMatrix<double>>(3, 9, d.x), vector_of<double>(d.weight),
                     vector_of<double>(d.scale_weight), vector_of<double>(d.bias), y, ek::none, options);
          return support::weighted_sum(values_of(y), d.dy);
        };
      };
      const Run<double> got = run<V, double>(ek::serial, at);
      const auto distance = [&](const auto& gradient, Values TaperData::*part) {
        return support::gradient_distance(values_of(gradient), support::central_differences(loss_of(part), at.*part));
      };
      CHECK(distance(got.dx, &TaperData::x) < support::gradient_tolerance);
      CHECK(distance(got.dweight, &TaperData::weight) < support::gradient_tolerance);
      CHECK(distance(got.dscale_weight, &TaperData::scale_weight) < support::gradient_tolerance);
      CHECK(distance(got.dbias, &TaperData::bias) < support::gradient_tolerance);
    }
  });
}

TEST_CASE("TaperNorm's gradients of the gate and the factor equal their formulas", "[taper]") {
  for_each_variant([]<class V>(V) {
    for (const double gate : gates) {
      const TaperData d = taper_data<double>(3, 9, V::centred, gate);
      const auto x = matrix_of<RowMatrix<double>>(3, 9, d.x), dy = matrix_of<RowMatrix<double>>(3, 9, d.dy);
      const auto w = vector_of<double>(d.weight), c = vector_of<double>(d.scale_weight);
      RowMatrix<double> y(3, 9);
      typename V::template Saved<double> saved;
      typename V::Options options;
      options.gate = d.gate, options.factor = d.factor, options.eps = d.eps;
      forward<V>(ek::serial, x, w, c, ek::none, y, saved, options);
      const ek::TaperGateGradients got = ek::taper_gate_gradients(ek::serial, dy, x, w, c, saved);
      const TaperResult expected = reference::taper_norm(d);
      CHECK(got.gate == Approx(expected.dgate).epsilon(1e-12));
      CHECK(got.factor == Approx(expected.dfactor).epsilon(1e-12));
      // y is linear in both, so that differences are exact.
      if (gate != 0.3) continue;
      const auto loss = [&](double g, double factor) {
        options.gate = g, options.factor = factor;
        forward<V>(ek::serial, x, w, c, ek::none, y, saved, options);
        return support::weighted_sum(values_of(y), d.dy);
      };
      CHECK(got.gate == Approx(loss(1, d.factor) - loss(0, d.factor)).epsilon(1e-10));
      CHECK(got.factor == Approx(loss(gate, 1) - loss(gate, 0)).epsilon(1e-10));
    }
  });
}

TEST_CASE("TaperNorm accumulates gradients, or overwrites them, by 0 where the gate leaves nothing", "[taper]") {
  for_each_variant([]<class V>(V) {
    for (const double gate : gates) {
      const TaperData d = taper_data<double>(4, 11, V::centred, gate);
      const Run<double> fresh = run<V, double>(ek::serial, d);
      CHECK((fresh.dweight == 0).all() == (gate == 0));
      CHECK((fresh.dscale_weight == 0).all() == (gate == 1));
      const auto x = matrix_of<RowMatrix<double>>(4, 11, d.x), dy = matrix_of<RowMatrix<double>>(4, 11, d.dy);
      const auto w = vector_of<double>(d.weight), c = vector_of<double>(d.scale_weight), b = vector_of<double>(d.bias);
      RowMatrix<double> y(4, 11);
      typename V::template Saved<double> saved;
      typename V::Options options;
      options.gate = d.gate, options.factor = d.factor, options.eps = d.eps;
      forward<V>(ek::serial, x, w, c, b, y, saved, options);
      Vector<double> dw = Vector<double>::Constant(11, 2), dc = dw, db = dw;
      backward<V>(ek::serial, dy, x, w, c, saved, y, dw, dc, db);
      CHECK(same_bits(dw, Vector<double>(fresh.dweight + 2)));
      CHECK(same_bits(dc, Vector<double>(fresh.dscale_weight + 2)));
      CHECK(same_bits(db, Vector<double>(fresh.dbias + 2)));
    }
  });
}

TEST_CASE("TaperNorm keeps double rows that leave the range of double's squares", "[taper]") {
  for_each_variant([]<class V>(V) {
    for (const double gate : gates)
      for (const double scale : {1e200, 1e-200}) {
        INFO(V::name << " at gate " << gate << " times " << scale);
        TaperData d = taper_data<double>(3, 20, V::centred, gate);
        d.eps = 0;
        const Run<double> one = run<V, double>(ek::serial, d);
        for (double& x : d.x) x *= scale;
        d.factor /= scale;
        const Run<double> scaled = run<V, double>(ek::serial, d);
        CHECK((scaled.y - one.y).cwiseAbs().maxCoeff() < 1e-13);
        CHECK((scaled.dx * scale - one.dx).cwiseAbs().maxCoeff() < 1e-12);
        CHECK((scaled.dweight - one.dweight).abs().maxCoeff() < 1e-13);
        CHECK((scaled.dscale_weight - one.dscale_weight).abs().maxCoeff() < 1e-13);
      }
  });
}

TEST_CASE("TaperNorm names what does not fit", "[taper][errors]") {
  const RowMatrix<double> x = RowMatrix<double>::Random(4, 12);
  RowMatrix<double> y(4, 12), dx(4, 12);
  const Vector<double> w = Vector<double>::Ones(12), short_w = Vector<double>::Ones(11);
  Vector<double> dw = w, dc = w, db = w;
  ek::TaperRmsNormSaved<double> saved;
  const auto norm = [&](const auto& c, const ek::TaperRmsNormOptions& options) {
    ek::taper_rms_norm(ek::serial, x, w, c, w, y, saved, options);
  };
  CHECK_THROWS_WITH(saved.calibration_numerator(),
                    "calibration_numerator: saved holds no calibration, expected a "
                    "forward with the option calibrate");
  CHECK_THROWS_WITH(norm(w, {.gate = 1.5}), "taper_rms_norm: gate is 1.500000, expected a number from 0 to 1");
  CHECK_THROWS_WITH(norm(w, {.gate = -0.5}), "taper_rms_norm: gate is -0.500000, expected a number from 0 to 1");
  CHECK_THROWS_AS(norm(w, {.gate = NAN}), ek::ShapeError);
  CHECK_THROWS_WITH(norm(w, {.factor = INFINITY}), "taper_rms_norm: factor is inf, expected a finite number");
  CHECK_THROWS_WITH(norm(w, {.gate = 0.5, .calibrate = true}),
                    "taper_rms_norm: calibrate is set and the gate is 0.500000, expected gate 1");
  CHECK_THROWS_WITH(ek::taper_rms_norm(ek::serial, x, w, w, w, y, ek::none, {.calibrate = true}),
                    "taper_rms_norm: calibrate is set and saved is none, expected a saved for what it leaves");
  CHECK_THROWS_WITH(norm(short_w, {}),
                    "taper_rms_norm: scale_weight has 11 values, x has 12 features (x is 4x12, axis "
                    "1)");
  const auto back = [&](const auto& c) {
    ek::taper_rms_norm_backward(ek::serial, x, x, w, c, saved, dx, dw, ek::none, db);
  };
  CHECK_THROWS_WITH(back(w), support::contains_text("taper_rms_norm_backward: saved is empty"));
  norm(w, {});
  CHECK_THROWS_WITH(back(ek::none), "taper_rms_norm_backward: scale_weight is none, the forward had one");
  norm(ek::none, {});
  CHECK_THROWS_WITH(back(w), "taper_rms_norm_backward: there is a scale_weight, the forward had none");
  CHECK_THROWS_WITH(saved.calibration_denominator(), support::contains_text("saved holds no calibration"));
}
