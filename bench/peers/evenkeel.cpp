// This library, at plain -O2.
#include "evenkeel/evenkeel.hpp"

#include "peer.hpp"

#ifndef EVENKEEL_PEER_NAME
#define EVENKEEL_PEER_NAME "evenkeel"
#endif

#include <unsupported/Eigen/CXX11/Tensor>

namespace {

namespace ek = evenkeel;
using namespace peers;

template <class T>
using Rows = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
using Images = Eigen::TensorMap<Eigen::Tensor<float, 3, Eigen::RowMajor>>;
using Vector = Eigen::Map<Eigen::ArrayXf>;

/// The gradients of parameters are written, as the other libraries do.
constexpr ek::GradientMode written = ek::GradientMode::overwrite;

template <class T>
Call of_rows(const Operation& o, const Buffers& b) {
  const auto rows = [&](void* p) { return Rows<T>(static_cast<T*>(p), o.n, o.c); };
  const auto x = rows(b.x), dy = rows(b.dy);
  auto y = rows(b.y), dx = rows(b.dx);
  Vector w(b.weight, o.c), bias(b.bias, o.c), dw(b.dweight, o.c), db(b.dbias, o.c);
  if (o.norm == Norm::layer_norm) {
    auto saved = std::make_shared<ek::LayerNormSaved<float>>();
    const auto forward = [=]() mutable { ek::layer_norm(ek::serial, x, w, bias, y, *saved); };
    if (o.pass == Pass::forward) return {forward};
    Call(forward).run();
    if constexpr (std::is_same_v<T, float>)
      return {[=]() mutable { ek::layer_norm_backward(ek::serial, dy, x, w, *saved, dx, dw, db, written); }};
  }
  if (o.norm == Norm::rms_norm) {
    auto saved = std::make_shared<ek::RmsNormSaved<float>>();
    const auto forward = [=]() mutable { ek::rms_norm(ek::serial, x, w, y, *saved, {.eps = 1e-5}); };
    if (o.pass == Pass::forward) return {forward};
    Call(forward).run();
    if constexpr (std::is_same_v<T, float>)
      return {[=]() mutable { ek::rms_norm_backward(ek::serial, dy, x, w, *saved, dx, dw, written); }};
  }
  return {};
}

Call of_weights(const Operation& o, const Buffers& b) {
  const Rows<float> v(static_cast<float*>(b.x), o.n, o.c), dw(static_cast<float*>(b.dy), o.n, o.c);
  Rows<float> w(static_cast<float*>(b.y), o.n, o.c), dv(static_cast<float*>(b.dx), o.n, o.c);
  Vector g(b.weight, o.n), dg(b.dweight, o.n);
  auto saved = std::make_shared<ek::WeightNormSaved<float>>();
  const auto forward = [=]() mutable { ek::weight_norm(ek::serial, v, g, w, *saved); };
  if (o.pass == Pass::forward) return {forward};
  Call(forward).run();
  dv.setZero();
  dg.setZero();
  return {[=]() mutable { ek::weight_norm_backward(ek::serial, dw, v, g, *saved, dv, dg, written); }};
}

Call of_channels(const Operation& o, const Buffers& b) {
  const auto images = [&](void* p) { return Images(static_cast<float*>(p), o.n, o.c, o.space); };
  const Images x = images(b.x), dy = images(b.dy);
  Images y = images(b.y), dx = images(b.dx);
  Vector w(b.weight, o.c), bias(b.bias, o.c), dw(b.dweight, o.c), db(b.dbias, o.c);
  if (o.norm == Norm::batch_norm_inference) {
    auto running = std::make_shared<ek::RunningStatistics<float>>(o.c);
    std::copy_n(b.running_mean, o.c, running->mean());
    std::copy_n(b.running_var, o.c, running->var());
    return {[=]() mutable { ek::batch_norm_inference(ek::serial, x, w, bias, *running, y); }};
  }
  if (o.norm == Norm::batch_norm) {
    auto saved = std::make_shared<ek::BatchNormSaved<float>>();
    const auto forward = [=]() mutable { ek::batch_norm(ek::serial, x, w, bias, y, *saved); };
    if (o.pass == Pass::forward) return {forward};
    Call(forward).run();
    return {[=]() mutable { ek::batch_norm_backward(ek::serial, dy, x, w, *saved, dx, dw, db, written); }};
  }
  auto saved = std::make_shared<ek::GroupNormSaved<float>>();
  const ek::GroupNormOptions options{.groups = o.groups};
  const auto forward = [=]() mutable { ek::group_norm(ek::serial, x, w, bias, y, *saved, options); };
  if (o.pass == Pass::forward) return {forward};
  Call(forward).run();
  return {[=]() mutable { ek::group_norm_backward(ek::serial, dy, x, w, *saved, dx, dw, db, written); }};
}

struct Evenkeel : Peer {
  std::string name() const override { return EVENKEEL_PEER_NAME; }
  std::string version() const override {
    return std::to_string(EVENKEEL_VERSION_MAJOR) + "." + std::to_string(EVENKEEL_VERSION_MINOR);
  }
  Call prepare(const Operation& o, const Buffers& b) override {
    if (o.norm == Norm::weight_norm) return of_weights(o, b);
    if (o.norm == Norm::layer_norm || o.norm == Norm::rms_norm)
      return o.type == Type::float32 ? of_rows<float>(o, b) : of_rows<Eigen::bfloat16>(o, b);
    return of_channels(o, b);
  }
};

}  // namespace

extern "C" Peer* evenkeel_bench_peer() { return new Evenkeel; }
