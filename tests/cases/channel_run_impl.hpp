// The function template of channel_run.hpp, and a macro that compiles it for a pair of types.
#pragma once

#include "cases/channel_run.hpp"
#include "evenkeel/tensor.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace cases_test {

template <class T>
class Cube {
 public:
  using Tensor = Eigen::Tensor<T, 3, Eigen::RowMajor>;

  Cube(const ChannelCase& c, ChannelArrangement arrangement, const Values& values)
      : c_(&c), arrangement_(arrangement), tensor(make()) {
    for_each([&](std::size_t at, T& element) { element = static_cast<T>(values.at(at)); });
  }
  Values values() {
    Values v(c_->x.size());
    for_each([&](std::size_t at, T& element) { v[at] = static_cast<double>(element); });
    return v;
  }

 private:
  const ChannelCase* c_;
  ChannelArrangement arrangement_;

  Tensor make() const {
    if (arrangement_ == ChannelArrangement::middle) return Tensor(c_->samples, c_->channels, c_->positions);
    if (arrangement_ == ChannelArrangement::last) return Tensor(c_->samples, c_->positions, c_->channels);
    if (c_->norm == ChannelNorm::batch) return Tensor(c_->channels, c_->samples, c_->positions);
    return Tensor(c_->positions, c_->channels, c_->samples);
  }
  // By address: without optimization Eigen's indices take a minute.
  template <class F>
  void for_each(const F& f) {
    const Eigen::Index N = c_->samples, C = c_->channels, P = c_->positions;
    struct {
      Eigen::Index n, k, p;
    } stride{1, N, C * N};
    if (arrangement_ == ChannelArrangement::middle)
      stride = {C * P, P, 1};
    else if (arrangement_ == ChannelArrangement::last)
      stride = {P * C, 1, C};
    else if (c_->norm == ChannelNorm::batch)
      stride = {P, N * P, 1};
    std::size_t at = 0;
    for (Eigen::Index n = 0; n < N; ++n)
      for (Eigen::Index k = 0; k < C; ++k)
        for (Eigen::Index p = 0; p < P; ++p, ++at) f(at, tensor.data()[n * stride.n + k * stride.k + p * stride.p]);
  }

 public:
  Tensor tensor;
};

// The free functions of the case's norm. They share the library's driver, so that compiling all three costs as one.
template <class Device, class X, class W, class B, class Saved>
void channel_forward(const Device& device, const ChannelCase& c, int axis, int sample_axis, const X& x, const W& weight,
                     const B& bias, X& y, Saved& saved) {
  if (c.norm == ChannelNorm::batch)
    ek::batch_norm(device, x, weight, bias, y, saved, {.eps = c.eps, .axis = axis});
  else if (c.norm == ChannelNorm::group)
    ek::group_norm(device, x, weight, bias, y, saved,
                   {.groups = c.groups, .eps = c.eps, .axis = axis, .sample_axis = sample_axis});
  else
    ek::instance_norm(device, x, weight, bias, y, saved, {.eps = c.eps, .axis = axis, .sample_axis = sample_axis});
}

template <class Device, class X, class W, class Saved, class Dw, class Db>
void channel_backward(const Device& device, const ChannelCase& c, const X& dy, const X& x, const W& weight,
                      Saved& saved, X& dx, Dw&& dweight, Db&& dbias) {
  constexpr auto overwrite = ek::GradientMode::overwrite;
  if (c.norm == ChannelNorm::batch)
    ek::batch_norm_backward(device, dy, x, weight, saved, dx, dweight, dbias, overwrite);
  else if (c.norm == ChannelNorm::group)
    ek::group_norm_backward(device, dy, x, weight, saved, dx, dweight, dbias, overwrite);
  else
    ek::instance_norm_backward(device, dy, x, weight, ek::none, saved, dx, dweight, dbias, overwrite);
}

template <class T, class P, class Device>
ChannelResult run_channels(const Device& device, const ChannelCase& c, ChannelArrangement arrangement) {
  using norms_test::values_of, norms_test::vector_of;
  using A = ek::accumulator_t<T>;
  const bool turned = arrangement == ChannelArrangement::turned;
  const int turned_axis = c.norm == ChannelNorm::batch ? 0 : 1, sample_axis = turned ? -1 : 0;
  const int axis = arrangement == ChannelArrangement::middle ? 1 : turned ? turned_axis : 2;
  const Values nothing(c.x.size(), NAN);
  Cube<T> x(c, arrangement, c.x), y(c, arrangement, nothing);
  const auto weight = vector_of<P>(c.weight), bias = vector_of<P>(c.bias);
  auto dweight = vector_of<P>(Values(c.weight.size(), NAN)), dbias = vector_of<P>(Values(c.bias.size(), NAN));
  ek::ChannelNormSaved<A> saved;
  ek::RunningStatistics<A> running(std::max<Eigen::Index>(1, c.channels), {.momentum = c.momentum});
  for (std::size_t k = 0; k < c.running.mean.size(); ++k) {
    running.mean()[k] = static_cast<A>(c.running.mean[k]);
    running.var()[k] = static_cast<A>(c.running.var.at(k));
  }
  running.num_batches_tracked = c.running.batches;
  ChannelResult result;
  const auto both_ways = [&](const auto& w, const auto& b, auto&& dw, auto&& db) {
    if (c.inference)
      ek::batch_norm_inference(device, x.tensor, w, b, running, y.tensor, {.eps = c.eps, .axis = axis});
    else
      channel_forward(device, c, axis, sample_axis, x.tensor, w, b, y.tensor, saved);
    if (!c.inference && !c.running.mean.empty()) running.update(saved);
    if (c.dy.empty()) return;
    Cube<T> dy(c, arrangement, c.dy), dx(c, arrangement, nothing);
    if (c.inference)
      ek::batch_norm_inference_backward(device, dy.tensor, x.tensor, w, b, running, saved, dx.tensor, dw, db,
                                        {.eps = c.eps, .axis = axis}, ek::GradientMode::overwrite);
    else
      channel_backward(device, c, dy.tensor, x.tensor, w, saved, dx.tensor, dw, db);
    result.dx = dx.values();
    result.dweight = values_of(dw);
    result.dbias = values_of(db);
  };
  if (c.weight.empty() && c.bias.empty())
    both_ways(ek::none, ek::none, ek::none, ek::none);
  else if (c.bias.empty())
    both_ways(weight, ek::none, dweight, ek::none);
  else if (c.weight.empty())
    both_ways(ek::none, bias, ek::none, dbias);
  else
    both_ways(weight, bias, dweight, dbias);
  result.y = y.values();
  if (!c.inference) {
    for (Eigen::Index n = 0; n < saved.samples(); ++n)
      for (Eigen::Index g = 0; g < saved.groups(); ++g) {
        result.mean.push_back(static_cast<double>(saved.mean(g, n)));
        result.rstd.push_back(static_cast<double>(saved.rstd(g, n)));
      }
  }
  for (std::size_t k = 0; k < c.running.mean.size(); ++k) {
    result.running.mean.push_back(static_cast<double>(running.mean()[k]));
    result.running.var.push_back(static_cast<double>(running.var()[k]));
  }
  result.running.batches = running.num_batches_tracked;
  return result;
}

}  // namespace cases_test

#define CASES_TEST_RUN(T, P)                                                                    \
  template cases_test::ChannelResult cases_test::run_channels<T, P>(                            \
      const evenkeel::Serial&, const cases_test::ChannelCase&, cases_test::ChannelArrangement); \
  template cases_test::ChannelResult cases_test::run_channels<T, P>(                            \
      const Eigen::ThreadPoolDevice&, const cases_test::ChannelCase&, cases_test::ChannelArrangement)
