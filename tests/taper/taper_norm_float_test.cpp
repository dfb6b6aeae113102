// What float data, layouts, threads and the ends of the range ask of TaperNorm's loops.
#include "support/devices.hpp"
#include "taper/taper_checks.hpp"

using namespace taper_test;

namespace {

template <class F>
void for_each_variant(const F& f) {
  f(RmsVariant{});
  f(LayerVariant{});
}

// The plain norm on the same data.
template <class V>
Run<float> plain(const TaperData& d) {
  const auto x = matrix_of<RowMatrix<float>>(d.rows, d.length, d.x);
  const auto dy = matrix_of<RowMatrix<float>>(d.rows, d.length, d.dy);
  const auto w = vector_of<float>(d.weight), b = vector_of<float>(d.bias);
  Run<float> r;
  r.y.resize(x.rows(), x.cols());
  r.dx = r.y;
  r.dweight = r.dscale_weight = r.dbias = Vector<float>::Zero(x.cols());
  typename V::template PlainSaved<float> saved;
  if constexpr (V::centred) {
    ek::layer_norm(ek::serial, x, w, b, r.y, saved, {.eps = d.eps});
    ek::layer_norm_backward(ek::serial, dy, x, w, saved, r.dx, r.dweight, r.dbias);
  } else {
    ek::rms_norm(ek::serial, x, w, b, r.y, saved, {.eps = d.eps});
    ek::rms_norm_backward(ek::serial, dy, x, w, saved, r.dx, r.dweight, r.dbias);
  }
  return r;
}

}  // namespace

TEST_CASE("TaperNorm equals its formula on awkward shapes of float", "[taper]") {
  for_each_variant([]<class V>(V) {
    for (const double gate : {0.0, 1e-30, 0.3, 1 - 1e-12, 1.0})
      for (const auto& shape : support::awkward_shapes())
        if (gate == 0.3 || gate == 0 || shape.rows == 3)
          check_against_reference<V, float>(taper_data<float>(shape.rows, shape.length, V::centred, gate));
  });
}

TEST_CASE("TaperNorm at gate 1 has the bits of the plain norm, calibrating or not", "[taper]") {
  for_each_variant([]<class V>(V) {
    for (const auto& shape : support::awkward_shapes()) {
      TaperData d = taper_data<float>(shape.rows, shape.length, V::centred, 1);
      for (std::size_t i = 0; i < d.length; ++i) d.x[i] *= 1e25;  // the first row leaves float's squares
      INFO(V::name << ' ' << d.rows << 'x' << d.length);
      const Run<float> expected = plain<V>(d);
      CHECK(same_bits(run<V, float>(ek::serial, d), expected));
      CHECK(same_bits(run<V, float>(ek::serial, d, true), expected));
    }
  });
}

TEST_CASE("TaperNorm's rows keep their bits beside any rows and on any number of threads", "[taper]") {
  for_each_variant([]<class V>(V) {
    for (const double gate : gates)
      for (const std::size_t length : support::Counts{5, 37, 64}) {
        INFO(V::name << " at gate " << gate << ", length " << length);
        const TaperData d = taper_data<float>(67, length, V::centred, gate);
        const Run<float> all = run<V, float>(ek::serial, d);
        for (const int threads : {1, 3}) CHECK(same_bits(run<V, float>(support::ThreadPool(threads).device(), d), all));
        for (const std::size_t row : support::Counts{0, 1, 40, 66}) {
          TaperData one = d;
          const auto cut = [&](const Values& v) {
            return Values(v.begin() + std::ptrdiff_t(row * length), v.begin() + std::ptrdiff_t((row + 1) * length));
          };
          one.rows = 1, one.x = cut(d.x), one.dy = cut(d.dy);
          const Run<float> alone = run<V, float>(ek::serial, one);
          const auto r = Eigen::Index(row);
          CHECK(same_bits(alone.y, RowMatrix<float>(all.y.row(r))));
          CHECK(same_bits(alone.dx, RowMatrix<float>(all.dx.row(r))));
        }
      }
  });
}

TEST_CASE("TaperNorm works along any axis of either storage order, with strides and in place", "[taper]") {
  for_each_variant([]<class V>(V) {
    for (const double gate : gates) {
      INFO(V::name << " at gate " << gate);
      const TaperData d = taper_data<float>(19, 21, V::centred, gate);
      const TaperResult expected = reference::taper_norm(d);
      const auto x = matrix_of<RowMatrix<float>>(19, 21, d.x), dy = matrix_of<RowMatrix<float>>(19, 21, d.dy);
      const auto w = vector_of<float>(d.weight), c = vector_of<float>(d.scale_weight), b = vector_of<float>(d.bias);
      typename V::Options options;
      options.gate = d.gate, options.factor = d.factor, options.eps = d.eps;
      const auto check = [&](const auto& in, const auto& gradient, auto&& y, auto&& dx, int axis, bool turned) {
        options.axis = axis;
        typename V::template Saved<float> saved;
        Vector<float> dw(21), dc(21), db(21);
        forward<V>(ek::serial, in, w, c, b, y, saved, options);
        backward<V>(ek::serial, gradient, in, w, c, saved, dx, dw, dc, db, ek::GradientMode::overwrite);
        const RowMatrix<float> y_rows = turned ? RowMatrix<float>(y.transpose()) : RowMatrix<float>(y);
        const RowMatrix<float> dx_rows = turned ? RowMatrix<float>(dx.transpose()) : RowMatrix<float>(dx);
        const double epsilon = norms_test::epsilon_of<float>();
        CHECK(close(values_of(y_rows), expected.y, 21, epsilon));
        CHECK(close(values_of(dx_rows), expected.dx, 21, epsilon));
        CHECK(close(values_of(dc), expected.dscale_weight, d.x.size(), epsilon));
        CHECK(close(values_of(dw), expected.dweight, d.x.size(), epsilon));
      };
      ColMatrix<float> column = x, column_dy = dy, column_y = x, column_dx = x;
      check(column, column_dy, column_y, column_dx, 1, false);
      RowMatrix<float> turned = x.transpose(), turned_dy = dy.transpose(), turned_y = turned, turned_dx = turned;
      check(turned, turned_dy, turned_y, turned_dx, 0, true);
      RowMatrix<float> wide = RowMatrix<float>::Zero(19, 50), wide_y = wide;
      wide.leftCols(21) = x;
      check(wide.leftCols(21), dy, wide_y.rightCols(21), column_dx, 1, false);
      RowMatrix<float> in_place = x;
      forward<V>(ek::serial, in_place, w, c, b, in_place, ek::none, options);
      CHECK(close(values_of(in_place), expected.y, 21, norms_test::epsilon_of<float>()));
    }
  });
}

TEST_CASE("TaperNorm is right in rows too large or too small for float's squares", "[taper]") {
  for_each_variant([]<class V>(V) {
    for (const double gate : gates)
      for (const double scale : {1e30, 1e-30, 1e15}) {
        TaperData d = taper_data<float>(5, 40, V::centred, gate);
        d.eps = scale < 1 ? 0 : 1e-3;
        for (std::size_t i = 0; i < d.x.size(); ++i)
          if (i / d.length != 2) d.x[i] = double(float(d.x[i] * scale));  // one row among them is an ordinary one
        d.factor = scale < 1 ? 3e29 : 0.75 / scale;
        INFO("scale " << scale);
        check_against_reference<V, float>(d);
      }
  });
}

TEST_CASE("TaperNorm's LayerNorm variant subtracts means whose sums and differences overflow", "[taper]") {
  for (const double gate : gates)
    for (const std::size_t length : support::Counts{7, 40}) {
      TaperData d = taper_data<float>(3, length, true, gate);
      for (std::size_t i = 0; i < length; ++i) {
        d.x[i] = double(float(3e38 + 1e34 * d.x[i]));                           // the sum overflows
        d.x[length + i] = double(i == 0 ? 3e38f : -3e38f);                      // x - mean does
        d.x[2 * length + i] = double(float(1e4 + 1e-2 * d.x[2 * length + i]));  // most digits are the mean's
      }
      d.factor = 1e-36;
      check_against_reference<LayerVariant, float>(d);
      // Row 2 again with a factor to its size: the difference is exact, so its errors are relative to the spread.
      d.factor = 50;
      TaperResult expected = reference::taper_norm(d);
      const Run<float> got = run<LayerVariant, float>(ek::serial, d);
      for (std::size_t i = 0; i < length; ++i)
        CHECK(double(got.y(2, Eigen::Index(i))) == Approx(expected.y.value[2 * length + i]).margin(2e-6));
    }
}

TEST_CASE("TaperNorm looks at neither statistics nor weight at gate 0, and at no scale_weight at gate 1", "[taper]") {
  for_each_variant([]<class V>(V) {
    for (const double gate : {0.0, 1.0})
      for (const Eigen::Index length : {5, 40}) {
        const TaperData d = taper_data<float>(3, std::size_t(length), V::centred, gate);
        const Run<float> expected = run<V, float>(ek::serial, d);
        TaperData spoiled = d;
        (gate == 0 ? spoiled.weight : spoiled.scale_weight).assign(d.length, NAN);
        CHECK(same_bits(run<V, float>(ek::serial, spoiled), expected));
        if (gate > 0) continue;
        typename V::template Saved<float> saved;
        RowMatrix<float> x = matrix_of<RowMatrix<float>>(d.rows, d.length, d.x), y = x;
        typename V::Options options;
        options.gate = 0, options.factor = d.factor;
        const auto c = vector_of<float>(d.scale_weight), b = vector_of<float>(d.bias);
        if (!V::centred) x(1, 2) = NAN;  // stays in its element
        forward<V>(ek::serial, x, ek::none, c, b, y, saved, options);
        CHECK(saved.rstd(1) == 0);  // as fresh memory is
        CHECK(std::isnan(y(1, 2)) == !V::centred);
        y(1, 2) = expected.y(1, 2);
        CHECK(same_bits(y, expected.y));
      }
  });
}

TEST_CASE("TaperNorm keeps NaN in its row and lets a constant row through", "[taper]") {
  for_each_variant([]<class V>(V) {
    for (const double gate : gates)
      for (const std::size_t length : support::Counts{5, 40}) {
        TaperData d = taper_data<float>(4, length, V::centred, gate);
        d.eps = 0;
        d.x[length] = NAN;
        for (std::size_t i = 0; i < length; ++i) d.x[2 * length + i] = V::centred ? 3 : 0;
        const Run<float> r = run<V, float>(ek::serial, d);
        const auto k = float((1 - gate) * d.factor);
        for (Eigen::Index row = 0; row < 4; ++row) CHECK(r.y.row(row).hasNaN() == (row == 1));
        for (Eigen::Index row = 0; row < 4; ++row)
          if (row != 1) CHECK(!r.dx.row(row).hasNaN());
        for (Eigen::Index i = 0; i < Eigen::Index(length); ++i) {
          CHECK(r.y(2, i) == float(d.bias[std::size_t(i)]));
          if (!V::centred)  // the linear branch goes on where the norm's gradient is 0
            CHECK(r.dx(2, i) == Approx(float(d.dy[2 * length + std::size_t(i)] * d.scale_weight[std::size_t(i)]) * k));
        }
      }
  });
}

TEST_CASE("TaperNorm of bfloat16 computes in float", "[taper]") {
  using T = Eigen::bfloat16;
  for_each_variant([]<class V>(V) {
    for (const double gate : gates) {
      TaperData d = taper_data<T>(4, 33, V::centred, gate);
      check_against_reference<V, T>(d, 0x1p-7);
    }
  });
}

TEST_CASE("TaperNorm's calibration leaves the exact batch means", "[taper]") {
  for_each_variant([]<class V>(V) {
    for (const double scale : {1.0, 1e25})
      for (const std::size_t length : support::Counts{5, 40, 300}) {
        TaperData d = taper_data<float>(9, length, V::centred, 1);
        for (std::size_t i = 0; i < d.x.size(); ++i)
          d.x[i] = double(float((d.x[i] + (V::centred && i / length == 3 ? 1e3 : 0)) * scale));
        const TaperResult expected = reference::taper_norm(d);
        RowMatrix<float> y(9, Eigen::Index(length));
        typename V::template Saved<float> saved;
        typename V::Options options;
        options.eps = d.eps, options.calibrate = true;
        forward<V>(ek::serial, matrix_of<RowMatrix<float>>(9, length, d.x), vector_of<float>(d.weight), ek::none,
                   vector_of<float>(d.bias), y, saved, options);
        CHECK(saved.calibration_numerator() == Approx(expected.numerator).epsilon(2e-6));
        CHECK(saved.calibration_denominator() == Approx(expected.denominator).epsilon(2e-6));
      }
  });
}
