// masked_layer_norm and masked_rms_norm under one face, and what the rows give that are cut out of their padding.
#pragma once

#include "evenkeel/norms/masked_norm.hpp"
#include "norms/norm_under_test.hpp"

namespace norms_test {

using Mask = Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowsMask = Eigen::Array<bool, Eigen::Dynamic, 1>;

inline Mask bools(const Slab& s, const Values& set) {
  return matrix_of<RowMatrix<bool>>(s.outer, s.length, set).array();
}

template <class T>
RowMatrix<T> matrix(const Data& data, const Values& values) {
  return matrix_of<RowMatrix<T>>(data.slab.outer, data.slab.length, values);
}

struct MaskedLayerNorm {
  using Options = ek::MaskedLayerNormOptions;
  template <class A>
  using Saved = ek::MaskedLayerNormSaved<A>;
  using Unmasked = LayerNormUnderTest;
  static constexpr bool centred = true;
  static constexpr const char* name = "masked_layer_norm";

  template <class Device, class X, class M, class W, class B, class Y, class S>
  static void forward(const Device& device, const X& x, const M& mask, const W& weight, const B& bias, Y&& y, S&& saved,
                      const Options& options) {
    ek::masked_layer_norm(device, x, mask, weight, bias, y, saved, options);
  }
  template <class Device, class DY, class X, class M, class W, class S, class DX, class DW, class DB>
  static void backward(const Device& device, const DY& dy, const X& x, const M& mask, const W& weight, S& saved,
                       DX&& dx, DW&& dweight, DB&& dbias, ek::GradientMode mode = ek::GradientMode::accumulate) {
    ek::masked_layer_norm_backward(device, dy, x, mask, weight, saved, dx, dweight, dbias, mode);
  }
};

// Has no bias: what stands there is left alone.
struct MaskedRmsNorm {
  using Options = ek::MaskedRmsNormOptions;
  template <class A>
  using Saved = ek::MaskedRmsNormSaved<A>;
  using Unmasked = RmsNormUnderTest;
  static constexpr bool centred = false;
  static constexpr const char* name = "masked_rms_norm";

  template <class Device, class X, class M, class W, class B, class Y, class S>
  static void forward(const Device& device, const X& x, const M& mask, const W& weight, const B&, Y&& y, S&& saved,
                      const Options& options) {
    ek::masked_rms_norm(device, x, mask, weight, y, saved, options);
  }
  template <class Device, class DY, class X, class M, class W, class S, class DX, class DW, class DB>
  static void backward(const Device& device, const DY& dy, const X& x, const M& mask, const W& weight, S& saved,
                       DX&& dx, DW&& dweight, DB&&, ek::GradientMode mode = ek::GradientMode::accumulate) {
    ek::masked_rms_norm_backward(device, dy, x, mask, weight, saved, dx, dweight, mode);
  }
};

enum class Padding { right, left, holes, rows };
inline constexpr Padding paddings[] = {Padding::right, Padding::left, Padding::holes, Padding::rows};

// 1 where element i of a row counts, else 0, in the order of memory. Ragged rows have 0, 1, 2, ... elements in turn, and
// all of them.
inline Values mask_of(const Slab& s, Padding padding) {
  support::Random random(s.size());
  Values mask(s.size());
  for (std::size_t r = 0; r < s.rows(); ++r) {
    const std::size_t count = r % 3 == 0 ? s.length - r % (s.length + 1) / 2 : r * (1 + s.length / 7) % (s.length + 1);
    for (std::size_t i = 0; i < s.length; ++i) {
      bool set = r % 3 != 1;
      if (padding == Padding::right) set = i < count;
      if (padding == Padding::left) set = i >= s.length - count;
      if (padding == Padding::holes) set = random.uniform() < 0.6;
      mask[s.at(r, i)] = set;
    }
  }
  return mask;
}

struct CutOut {
  reference::Forward forward;
  reference::Backward backward;
};

// Each row's set elements, given to the norm's reference as a row of their own.
template <class Norm>
CutOut cut_out(const Data& data, const Values& mask, const Values& weight, const Values& bias,
               const reference::Options& options) {
  const Slab& s = data.slab;
  CutOut out;
  const Values zeros(s.size(), 0), no_features(s.length, 0);
  out.forward.y = out.forward.y_magnitude = out.backward.dx = out.backward.dx_magnitude = zeros;
  auto &dweight = out.backward.dweight, &dbias = out.backward.dbias;
  auto &dweight_magnitude = out.backward.dweight_magnitude, &dbias_magnitude = out.backward.dbias_magnitude;
  dweight = dbias = dweight_magnitude = dbias_magnitude = no_features;
  for (std::size_t r = 0; r < s.rows(); ++r) {
    std::vector<std::size_t> places;
    Values x, dy, w, b;
    for (std::size_t i = 0; i < s.length; ++i) {
      if (mask[s.at(r, i)] == 0) continue;
      places.push_back(i);
      x.push_back(data.x[s.at(r, i)]);
      dy.push_back(data.dy[s.at(r, i)]);
      if (!weight.empty()) w.push_back(weight[i]);
      if (!bias.empty()) b.push_back(bias[i]);
    }
    if (places.empty()) continue;
    const Slab row{1, places.size(), 1};
    const auto f = Norm::Unmasked::reference(row, x, w, b, options);
    const auto g = Norm::Unmasked::reference_backward(row, dy, x, w, options);
    for (std::size_t k = 0; k < places.size(); ++k) {
      const std::size_t i = places[k], at = s.at(r, i);
      out.forward.y[at] = f.y[k];
      out.forward.y_magnitude[at] = f.y_magnitude[k];
      out.backward.dx[at] = g.dx[k];
      out.backward.dx_magnitude[at] = g.dx_magnitude[k];
      dweight[i] += g.dweight[k];
      dweight_magnitude[i] += g.dweight_magnitude[k];
      dbias[i] += g.dbias[k];
      dbias_magnitude[i] += g.dbias_magnitude[k];
    }
  }
  return out;
}

// NaN and infinities where the mask is not set.
inline Values poisoned(Values values, const Values& mask) {
  const double poison[] = {NAN, INFINITY, -INFINITY};
  for (std::size_t i = 0; i < values.size(); ++i)
    if (mask[i] == 0) values[i] = poison[i % 3];
  return values;
}

// Forward and backward of `data`, whose padding is poisoned, against the cut-out rows. `mask` is what the norm is given,
// `set` the same for each element, in the order of memory. x is `offset` more than the data, which must be exact.
template <class Norm, class X, class M, class T>
void check_masked(const Data& data, X x, const M& mask, const Values& set, const Vector<T>& weight,
                  const Vector<T>& bias, const typename Norm::Options& options, double epsilon, double least = 0,
                  double offset = 0) {
  const Slab& s = data.slab;
  INFO(Norm::name << " of " << s.outer << " x " << s.length << " x " << s.inner << ", scalar of " << sizeof(x.data()[0])
                  << " bytes");
  using S = std::remove_cvref_t<decltype(*x.data())>;
  X dy = x, y = x, dx = x;
  Values offset_x = data.x;
  for (double& v : offset_x) v += offset;
  fill(x, poisoned(offset_x, set));
  fill(dy, poisoned(data.dy, set));
  fill(y, Values(s.size(), NAN));
  fill(dx, Values(s.size(), NAN));
  Vector<T> dweight = Vector<T>::Constant(weight.size(), nan_of<T>()), dbias = dweight;
  typename Norm::template Saved<ek::accumulator_t<S>> saved;
  Norm::forward(ek::serial, x, mask, weight, bias, y, saved, options);
  Norm::backward(ek::serial, dy, x, mask, weight, saved, dx, dweight, dbias, ek::GradientMode::overwrite);
  for (ek::Index r = 0; r < saved.rows(); ++r) CHECK(std::isfinite(double(saved.rstd(r))));
  CutOut expected = cut_out<Norm>(data, set, values_of(weight), Norm::centred ? values_of(bias) : Values{},
                                  {options.eps, options.unit_offset, {}});
  for (Values* m : {&expected.forward.y_magnitude, &expected.backward.dx_magnitude})
    for (double& size : *m) size += least;
  const std::size_t summed = least > 0 ? 0 : s.length;
  const auto& [forward, backward] = expected;
  CHECK(worst_error(values_of(y), forward.y, forward.y_magnitude, summed, epsilon) <= 1);
  CHECK(worst_error(values_of(dx), backward.dx, backward.dx_magnitude, summed, epsilon) <= 1);
  const double sums = epsilon_of<T>();
  CHECK(worst_error(values_of(dweight), backward.dweight, backward.dweight_magnitude, s.size(), sums) <= 1);
  if constexpr (Norm::centred)
    CHECK(worst_error(values_of(dbias), backward.dbias, backward.dbias_magnitude, s.size(), sums) <= 1);
  const Values got_y = values_of(y), got_dx = values_of(dx);
  for (std::size_t i = 0; i < set.size(); ++i)
    if (set[i] == 0 && (got_y[i] != 0 || got_dx[i] != 0)) FAIL("not 0 at " << i << ", which does not count");
}

}  // namespace norms_test
