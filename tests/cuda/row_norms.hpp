// The norms over rows behind one face: how each is called, and what its formula says.
#pragma once

#include "cuda/row_tensors.hpp"
#include "support/row_reference.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>

namespace cuda_test {

inline Results results_of(const RowData& d, reference::Forward f, reference::Backward b, bool has_bias = true) {
  const auto rows = std::size_t(d.rows), length = std::size_t(d.length);
  Results r{{"y", std::move(f.y), std::move(f.y_magnitude), length},
            {"dx", std::move(b.dx), std::move(b.dx_magnitude), length},
            {"dweight", std::move(b.dweight), std::move(b.dweight_magnitude), rows + length, true}};
  if (has_bias) r.push_back({"dbias", std::move(b.dbias), std::move(b.dbias_magnitude), rows, true});
  return r;
}
template <class Tensors>
Results results_in(const Tensors& t, bool has_bias = true) {
  Results r{{"y", t.y.values()}, {"dx", t.dx.values()}, {"dweight", t.dweight.values()}};
  if (has_bias) r.push_back({"dbias", t.dbias.values()});
  return r;
}

struct LayerNorm {
  static constexpr const char* name = "layer_norm";
  template <class A, class Storage>
  using Saved = ek::LayerNormSaved<A, Storage>;
  template <class Device, class Tensors, class T, class S>
  static void forward(const Device& device, const Tensors& t, const DeviceTensor<T>& y, S& saved, const RunOptions& o) {
    ek::layer_norm(device, t.x.view(), t.weight.map(), t.bias.map(), y.view(), saved,
                   {.eps = o.eps, .unit_offset = o.unit_offset, .rounding = o.rounding});
  }
  template <class Device, class Tensors, class T, class S>
  static void backward(const Device& device, const Tensors& t, const DeviceTensor<T>& dx, S& saved,
                       const RunOptions& o) {
    ek::layer_norm_backward(device, t.dy.view(), t.x.view(), t.weight.map(), saved, dx.view(), t.dweight.map(),
                            t.dbias.map(), o.mode);
  }
  static Results expected(const RowData& d, const RunOptions& o) {
    const reference::Options r{o.eps, o.unit_offset, {}};
    return results_of(d, reference::layer_norm(d.slab(), d.x, d.weight, d.bias, r),
                      reference::layer_norm_backward(d.slab(), d.dy, d.x, d.weight, r));
  }
  static Values rounded(const RowData& d, const reference::Options& o) {
    return reference::layer_norm(d.slab(), d.x, d.weight, d.bias, o).y;
  }
  template <class Tensors>
  static Results results(const Tensors& t) {
    return results_in(t);
  }
};

struct RmsNorm {
  static constexpr const char* name = "rms_norm";
  template <class A, class Storage>
  using Saved = ek::RmsNormSaved<A, Storage>;
  template <class Device, class Tensors, class T, class S>
  static void forward(const Device& device, const Tensors& t, const DeviceTensor<T>& y, S& saved, const RunOptions& o) {
    ek::rms_norm(device, t.x.view(), t.weight.map(), t.bias.map(), y.view(), saved,
                 {.eps = o.eps, .unit_offset = o.unit_offset, .rounding = o.rounding});
  }
  template <class Device, class Tensors, class T, class S>
  static void backward(const Device& device, const Tensors& t, const DeviceTensor<T>& dx, S& saved,
                       const RunOptions& o) {
    ek::rms_norm_backward(device, t.dy.view(), t.x.view(), t.weight.map(), saved, dx.view(), t.dweight.map(),
                          t.dbias.map(), o.mode);
  }
  static Results expected(const RowData& d, const RunOptions& o) {
    const reference::Options r{o.eps, o.unit_offset, {}};
    return results_of(d, reference::rms_norm(d.slab(), d.x, d.weight, d.bias, r),
                      reference::rms_norm_backward(d.slab(), d.dy, d.x, d.weight, r));
  }
  static Values rounded(const RowData& d, const reference::Options& o) {
    return reference::rms_norm(d.slab(), d.x, d.weight, d.bias, o).y;
  }
  template <class Tensors>
  static Results results(const Tensors& t) {
    return results_in(t);
  }
};

struct L2Norm {
  static constexpr const char* name = "l2_norm";
  template <class A, class Storage>
  using Saved = ek::L2NormSaved<A, Storage>;
  template <class Device, class Tensors, class T, class S>
  static void forward(const Device& device, const Tensors& t, const DeviceTensor<T>& y, S& saved, const RunOptions& o) {
    ek::l2_norm(device, t.x.view(), t.weight.map(), t.bias.map(), y.view(), saved,
                {.eps = o.eps, .unit_offset = o.unit_offset});
  }
  template <class Device, class Tensors, class T, class S>
  static void backward(const Device& device, const Tensors& t, const DeviceTensor<T>& dx, S& saved,
                       const RunOptions& o) {
    ek::l2_norm_backward(device, t.dy.view(), t.x.view(), t.weight.map(), saved, dx.view(), t.dweight.map(),
                         t.dbias.map(), o.mode);
  }
  static Results expected(const RowData& d, const RunOptions& o) {
    const reference::Options r{o.eps, o.unit_offset, {}};
    return results_of(d, reference::l2_norm(d.slab(), d.x, d.weight, d.bias, r),
                      reference::l2_norm_backward(d.slab(), d.dy, d.x, d.weight, r));
  }
  template <class Tensors>
  static Results results(const Tensors& t) {
    return results_in(t);
  }
};

struct PartialRmsNorm {
  static constexpr const char* name = "partial_rms_norm";
  template <class A, class Storage>
  using Saved = ek::PartialRmsNormSaved<A, Storage>;
  static Index used(Index length) { return std::max<Index>(1, length * 3 / 4); }
  template <class Device, class Tensors, class T, class S>
  static void forward(const Device& device, const Tensors& t, const DeviceTensor<T>& y, S& saved, const RunOptions& o) {
    ek::partial_rms_norm(device, t.x.view(), t.weight.map(), t.bias.map(), y.view(), saved,
                         {.eps = o.eps, .features_used = used(t.length), .unit_offset = o.unit_offset});
  }
  template <class Device, class Tensors, class T, class S>
  static void backward(const Device& device, const Tensors& t, const DeviceTensor<T>& dx, S& saved,
                       const RunOptions& o) {
    ek::partial_rms_norm_backward(device, t.dy.view(), t.x.view(), t.weight.map(), saved, dx.view(), t.dweight.map(),
                                  t.dbias.map(), o.mode);
  }
  static Results expected(const RowData& d, const RunOptions& o) {
    const reference::Options r{o.eps, o.unit_offset, {}};
    const auto p = std::size_t(used(d.length));
    return results_of(d, reference::partial_rms_norm(d.slab(), d.x, d.weight, d.bias, p, r),
                      reference::partial_rms_norm_backward(d.slab(), d.dy, d.x, d.weight, p, r));
  }
  template <class Tensors>
  static Results results(const Tensors& t) {
    return results_in(t);
  }
};

template <ek::GateOrder Order>
struct GatedRmsNorm {
  static constexpr bool gate_first = Order == ek::GateOrder::gate_then_norm;
  static constexpr const char* name = gate_first ? "gated_rms_norm, gate first" : "gated_rms_norm";
  template <class A, class Storage>
  using Saved = ek::GatedRmsNormSaved<A, Storage>;
  template <class Device, class Tensors, class T, class S>
  static void forward(const Device& device, const Tensors& t, const DeviceTensor<T>& y, S& saved, const RunOptions& o) {
    ek::gated_rms_norm(device, t.x.view(), t.second.view(), t.weight.map(), y.view(), saved,
                       {.eps = o.eps, .order = Order, .unit_offset = o.unit_offset});
  }
  template <class Device, class Tensors, class T, class S>
  static void backward(const Device& device, const Tensors& t, const DeviceTensor<T>& dx, S& saved,
                       const RunOptions& o) {
    ek::gated_rms_norm_backward(device, t.dy.view(), t.x.view(), t.second.view(), t.weight.map(), saved, dx.view(),
                                t.dsecond.view(), t.dweight.map(), o.mode);
  }
  static Results expected(const RowData& d, const RunOptions& o) {
    const reference::Options r{o.eps, o.unit_offset, {}};
    auto b = reference::gated_rms_norm_backward(d.slab(), d.dy, d.x, d.second, d.weight, gate_first, r);
    Result dgate{"dgate", std::move(b.dgate), std::move(b.dgate_magnitude), std::size_t(d.length)};
    Results all = results_of(d, reference::gated_rms_norm(d.slab(), d.x, d.second, d.weight, gate_first, r),
                             static_cast<reference::Backward&>(b), false);
    all.push_back(std::move(dgate));
    return all;
  }
  template <class Tensors>
  static Results results(const Tensors& t) {
    Results all = results_in(t, false);
    all.push_back({"dgate", t.dsecond.values()});
    return all;
  }
};

// sum = x + second, y = norm(sum); back with what flows into the sum later.
template <bool Centred>
struct AddNorm {
  static constexpr const char* name = Centred ? "add_layer_norm" : "add_rms_norm";
  template <class A, class Storage>
  using Saved = std::conditional_t<Centred, ek::LayerNormSaved<A, Storage>, ek::RmsNormSaved<A, Storage>>;
  template <class Device, class Tensors, class T, class S>
  static void forward(const Device& device, const Tensors& t, const DeviceTensor<T>& y, S& saved, const RunOptions& o) {
    if constexpr (Centred)
      ek::add_layer_norm(device, t.x.view(), t.second.view(), t.weight.map(), t.bias.map(), t.sum.view(), y.view(),
                         saved, {.eps = o.eps, .unit_offset = o.unit_offset, .rounding = o.rounding});
    else
      ek::add_rms_norm(device, t.x.view(), t.second.view(), t.weight.map(), t.sum.view(), y.view(), saved,
                       {.eps = o.eps, .unit_offset = o.unit_offset, .rounding = o.rounding});
  }
  template <class Device, class Tensors, class T, class S>
  static void backward(const Device& device, const Tensors& t, const DeviceTensor<T>& dx, S& saved,
                       const RunOptions& o) {
    if constexpr (Centred)
      ek::add_layer_norm_backward(device, t.dy.view(), t.later.view(), t.sum.view(), t.weight.map(), saved, dx.view(),
                                  t.dweight.map(), t.dbias.map(), o.mode);
    else
      ek::add_rms_norm_backward(device, t.dy.view(), t.later.view(), t.sum.view(), t.weight.map(), saved, dx.view(),
                                t.dweight.map(), o.mode);
  }
  // The norm sees the sum as it is stored.
  template <class T>
  static RowData with_sum(RowData d) {
    for (std::size_t i = 0; i < d.x.size(); ++i) d.x[i] = double(static_cast<T>(d.x[i] + d.second[i]));
    return d;
  }
  template <class T>
  static Results expected_of(const RowData& data, const RunOptions& o) {
    const RowData d = with_sum<T>(data);
    const reference::Options r{o.eps, o.unit_offset, {}};
    Results all = [&] {
      if constexpr (Centred)
        return results_of(d, reference::layer_norm(d.slab(), d.x, d.weight, d.bias, r),
                          reference::layer_norm_backward(d.slab(), d.dy, d.x, d.weight, r));
      else
        return results_of(d, reference::rms_norm(d.slab(), d.x, d.weight, {}, r),
                          reference::rms_norm_backward(d.slab(), d.dy, d.x, d.weight, r), false);
    }();
    for (std::size_t i = 0; i < d.later.size(); ++i) {
      all[1].values[i] += d.later[i];
      all[1].magnitude[i] += std::abs(d.later[i]);
    }
    Result sum{"sum", d.x, {}, 0};
    sum.magnitude.assign(d.x.size(), 0);
    all.push_back(std::move(sum));
    return all;
  }
  template <class Tensors>
  static Results results(const Tensors& t) {
    Results all = results_in(t, Centred);
    all.push_back({"sum", t.sum.values()});
    return all;
  }
};

template <bool Centred>
struct AdaptiveNorm {
  static constexpr const char* name = Centred ? "adaptive_layer_norm" : "adaptive_rms_norm";
  static Index samples(const Placement& place) {
    const Index first = place.outer[0] > 1 ? place.outer[0] : place.outer[1] > 1 ? place.outer[1] : place.inner;
    return first % 3 == 0 ? 3 : 1;
  }
  template <class A, class Storage>
  using Saved =
      std::conditional_t<Centred, ek::AdaptiveLayerNormSaved<A, Storage>, ek::AdaptiveRmsNormSaved<A, Storage>>;
  template <class Device, class Tensors, class T, class S>
  static void forward(const Device& device, const Tensors& t, const DeviceTensor<T>& y, S& saved, const RunOptions& o) {
    const auto scale = t.by_sample(t.weight), shift = t.by_sample(t.bias);
    if constexpr (Centred)
      ek::adaptive_layer_norm(device, t.x.view(), scale, shift, y.view(), saved, {.eps = o.eps});
    else
      ek::adaptive_rms_norm(device, t.x.view(), scale, shift, y.view(), saved, {.eps = o.eps});
  }
  template <class Device, class Tensors, class T, class S>
  static void backward(const Device& device, const Tensors& t, const DeviceTensor<T>& dx, S& saved, const RunOptions&) {
    const auto scale = t.by_sample(t.weight);
    auto dscale = t.by_sample(t.dweight), dshift = t.by_sample(t.dbias);
    if constexpr (Centred)
      ek::adaptive_layer_norm_backward(device, t.dy.view(), t.x.view(), scale, saved, dx.view(), dscale, dshift);
    else
      ek::adaptive_rms_norm_backward(device, t.dy.view(), t.x.view(), scale, saved, dx.view(), dscale, dshift);
  }
  static Results expected(const RowData& d, const RunOptions& o) {
    const reference::Options r{o.eps, true, {}};
    Results all;
    const auto part = [&](const Values& v, Index sample) {
      const auto size = std::ptrdiff_t(v.size()) / d.samples;
      return Values(v.begin() + sample * size, v.begin() + (sample + 1) * size);
    };
    for (Index s = 0; s < d.samples; ++s) {
      const RowData one{d.rows / d.samples, d.length,       1, part(d.x, s), {}, part(d.dy, s), {},
                        part(d.weight, s),  part(d.bias, s)};
      const Results next = results_of(one,
                                      Centred ? reference::layer_norm(one.slab(), one.x, one.weight, one.bias, r)
                                              : reference::rms_norm(one.slab(), one.x, one.weight, one.bias, r),
                                      Centred ? reference::layer_norm_backward(one.slab(), one.dy, one.x, one.weight, r)
                                              : reference::rms_norm_backward(one.slab(), one.dy, one.x, one.weight, r));
      if (s == 0) {
        all = next;
        continue;
      }
      for (std::size_t k = 0; k < all.size(); ++k) {
        all[k].values.insert(all[k].values.end(), next[k].values.begin(), next[k].values.end());
        all[k].magnitude.insert(all[k].magnitude.end(), next[k].magnitude.begin(), next[k].magnitude.end());
      }
    }
    return all;
  }
  template <class Tensors>
  static Results results(const Tensors& t) {
    return results_in(t);
  }
};

template <reference::Curve Curve>
struct PointwiseNorm {
  static constexpr bool shifted = Curve == reference::Curve::erf;
  static constexpr const char* name = shifted ? "derf" : "dyt";
  template <class A, class Storage>
  using Saved = std::conditional_t<shifted, ek::DerfSaved<A, Storage>, ek::DytSaved<A, Storage>>;
  template <class Device, class Tensors, class T, class S>
  static void forward(const Device& device, const Tensors& t, const DeviceTensor<T>& y, S& saved, const RunOptions&) {
    if constexpr (shifted)
      ek::derf(device, t.x.view(), t.alpha.data(), t.shift.data(), t.weight.map(), t.bias.map(), y.view(), saved);
    else
      ek::dyt(device, t.x.view(), t.alpha.data(), t.weight.map(), t.bias.map(), y.view(), saved);
  }
  template <class Device, class Tensors, class T, class S>
  static void backward(const Device& device, const Tensors& t, const DeviceTensor<T>& dx, S& saved,
                       const RunOptions& o) {
    if constexpr (shifted)
      ek::derf_backward(device, t.dy.view(), t.x.view(), t.alpha.data(), t.shift.data(), t.weight.map(), saved,
                        dx.view(), t.dalpha.data(), t.dshift.data(), t.dweight.map(), t.dbias.map(), o.mode);
    else
      ek::dyt_backward(device, t.dy.view(), t.x.view(), t.alpha.data(), t.weight.map(), saved, dx.view(),
                       t.dalpha.data(), t.dweight.map(), t.dbias.map(), o.mode);
  }
  static Results expected(const RowData& d, const RunOptions&) {
    const double shift = shifted ? d.shift : 0;
    const auto b = reference::pointwise_backward(Curve, d.slab(), d.dy, d.x, d.alpha, shift, d.weight);
    Results all = results_of(d, reference::pointwise(Curve, d.slab(), d.x, d.alpha, shift, d.weight, d.bias), b);
    for (Result& r : all) r.summed = r.parameter ? std::size_t(d.rows) : 0;
    all.push_back({"dalpha", {b.dalpha}, {b.dalpha_magnitude}, d.x.size(), true});
    if (shifted) all.push_back({"dshift", {b.dshift}, {b.dshift_magnitude}, d.x.size(), true});
    return all;
  }
  template <class Tensors>
  static Results results(const Tensors& t) {
    Results all = results_in(t);
    all.push_back({"dalpha", t.dalpha.values()});
    if (shifted) all.push_back({"dshift", t.dshift.values()});
    return all;
  }
};

using Dyt = PointwiseNorm<reference::Curve::tanh>;
using Derf = PointwiseNorm<reference::Curve::erf>;

}  // namespace cuda_test
