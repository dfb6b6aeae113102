// The two variants of TaperNorm behind one face, and the comparison with the reference.
#pragma once

#include "norms/norm_under_test.hpp"
#include "taper/taper_reference.hpp"

#include <algorithm>
#include <cstring>

namespace taper_test {

namespace ek = evenkeel;
using norms_test::is_none, norms_test::matrix_of, norms_test::RowMatrix, norms_test::ColMatrix, norms_test::values_of,
    norms_test::Vector, norms_test::vector_of;
using reference::TaperData, reference::TaperResult, reference::Values;

inline constexpr double gates[] = {0, 0.3, 1};

struct RmsVariant {
  static constexpr bool centred = false;
  static constexpr const char* name = "taper_rms_norm";
  template <class A>
  using Saved = ek::TaperRmsNormSaved<A>;
  template <class A>
  using PlainSaved = ek::RmsNormSaved<A>;
  using Options = ek::TaperRmsNormOptions;
};
struct LayerVariant {
  static constexpr bool centred = true;
  static constexpr const char* name = "taper_layer_norm";
  template <class A>
  using Saved = ek::TaperLayerNormSaved<A>;
  template <class A>
  using PlainSaved = ek::LayerNormSaved<A>;
  using Options = ek::TaperLayerNormOptions;
};

template <class Variant, class Device, class X, class W, class C, class B, class Y, class S>
void forward(const Device& device, const X& x, const W& w, const C& c, const B& b, Y&& y, S&& saved,
             const typename Variant::Options& options) {
  if constexpr (Variant::centred)
    ek::taper_layer_norm(device, x, w, c, b, y, saved, options);
  else
    ek::taper_rms_norm(device, x, w, c, b, y, saved, options);
}
template <class Variant, class Device, class DY, class X, class W, class C, class S, class DX, class DW, class DC,
          class DB>
void backward(const Device& device, const DY& dy, const X& x, const W& w, const C& c, S& saved, DX&& dx, DW&& dw,
              DC&& dc, DB&& db, ek::GradientMode mode = ek::GradientMode::accumulate) {
  if constexpr (Variant::centred)
    ek::taper_layer_norm_backward(device, dy, x, w, c, saved, dx, dw, dc, db, mode);
  else
    ek::taper_rms_norm_backward(device, dy, x, w, c, saved, dx, dw, dc, db, mode);
}

template <class T>
TaperData taper_data(std::size_t rows, std::size_t length, bool centred, double gate, std::uint64_t seed = 1) {
  return {rows,
          length,
          support::normal<T>(rows * length, seed, 0.25, 1.5),
          support::normal<T>(rows * length, seed + 1),
          support::normal<T>(length, seed + 2, 0.5),
          support::normal<T>(length, seed + 3, 0.5),
          support::normal<T>(length, seed + 4),
          gate,
          0.75,
          1e-3,
          centred};
}

// What a call leaves. Everything starts as NaN, so a place that nobody writes is seen.
template <class T>
struct Run {
  RowMatrix<T> y, dx;
  Vector<T> dweight, dscale_weight, dbias;
};

// Forward and backward of the variant. A parameter that the data lack is none.
template <class Variant, class T, bool Weight = true, bool Scale = true, bool Bias = true, class Device>
Run<T> run(const Device& device, const TaperData& d, bool calibrate = false) {
  const auto n = Eigen::Index(d.length);
  const auto x = matrix_of<RowMatrix<T>>(d.rows, d.length, d.x), dy = matrix_of<RowMatrix<T>>(d.rows, d.length, d.dy);
  const auto parameter = [&]<bool There>(std::bool_constant<There>, const Values& v) {
    if constexpr (There)
      return vector_of<T>(v);
    else
      return ek::none;
  };
  const auto w = parameter(std::bool_constant<Weight>{}, d.weight);
  const auto c = parameter(std::bool_constant<Scale>{}, d.scale_weight);
  const auto b = parameter(std::bool_constant<Bias>{}, d.bias);
  Run<T> r;
  r.y = RowMatrix<T>::Constant(x.rows(), n, norms_test::nan_of<T>());
  r.dx = r.y;
  r.dweight = r.dscale_weight = r.dbias = Vector<T>::Constant(n, norms_test::nan_of<T>());
  typename Variant::template Saved<ek::accumulator_t<T>> saved;
  typename Variant::Options options;
  options.gate = d.gate, options.factor = d.factor, options.eps = d.eps, options.calibrate = calibrate;
  forward<Variant>(device, x, w, c, b, r.y, saved, options);
  const auto gradient = [&]<bool There>(std::bool_constant<There>, Vector<T> & v) -> auto& {
    if constexpr (There)
      return v;
    else
      return ek::none;
  };
  backward<Variant>(device, dy, x, w, c, saved, r.dx, gradient(std::bool_constant<Weight>{}, r.dweight),
                    gradient(std::bool_constant<Scale>{}, r.dscale_weight),
                    gradient(std::bool_constant<Bias>{}, r.dbias), ek::GradientMode::overwrite);
  return r;
}

inline bool close(const Values& got, const reference::Sized& expected, std::size_t summed, double epsilon) {
  return norms_test::worst_error(got, expected.value, expected.size, summed, epsilon) <= 1;
}

template <class Variant, class T, bool Weight = true, bool Scale = true, bool Bias = true>
void check_against_reference(TaperData d, double epsilon = norms_test::epsilon_of<T>()) {
  INFO(Variant::name << ' ' << d.rows << 'x' << d.length << ", gate " << d.gate << ", weight " << Weight << ", scale "
                     << Scale << ", bias " << Bias);
  if (!Weight) d.weight.clear();
  if (!Scale) d.scale_weight.clear();
  if (!Bias) d.bias.clear();
  const TaperResult expected = reference::taper_norm(d);
  const Run<T> got = run<Variant, T, Weight, Scale, Bias>(ek::serial, d);
  CHECK(close(values_of(got.y), expected.y, d.length, epsilon));
  CHECK(close(values_of(got.dx), expected.dx, d.length, epsilon));
  if (Weight) CHECK(close(values_of(got.dweight), expected.dweight, d.x.size(), epsilon));
  if (Scale) CHECK(close(values_of(got.dscale_weight), expected.dscale_weight, d.x.size(), epsilon));
  if (Bias) CHECK(close(values_of(got.dbias), expected.dbias, d.x.size(), epsilon));
}

// Bit for bit, NaN included.
template <class X>
bool same_bits(const X& a, const X& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), std::size_t(a.size()) * sizeof *a.data()) == 0;
}
template <class T>
bool same_bits(const Run<T>& a, const Run<T>& b) {
  return same_bits(a.y, b.y) && same_bits(a.dx, b.dx) && same_bits(a.dweight, b.dweight) &&
         same_bits(a.dscale_weight, b.dscale_weight) && same_bits(a.dbias, b.dbias);
}

}  // namespace taper_test
