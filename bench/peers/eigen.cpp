// What a user writes today who has Eigen alone: one row, or one plane, at a time as Maps, at -O3.
#include "peer.hpp"

#include <Eigen/Core>

#include <vector>

namespace {

using namespace peers;
using Row = Eigen::Map<Eigen::ArrayXf>;
constexpr float eps = 1e-5f;

struct Rows {
  const Operation o;
  const Buffers b;
  std::vector<float> mean = std::vector<float>(std::size_t(o.n)), rstd = mean;

  Row row(void* p, long i) const { return Row(static_cast<float*>(p) + i * o.c, o.c); }
  Row vector(float* p) const { return Row(p, o.c); }

  void layer_norm() {
    for (long i = 0; i < o.n; ++i) {
      const Row x = row(b.x, i);
      const float m = x.mean(), r = 1 / std::sqrt((x - m).square().mean() + eps);
      row(b.y, i) = (x - m) * r * vector(b.weight) + vector(b.bias);
      mean[std::size_t(i)] = m, rstd[std::size_t(i)] = r;
    }
  }
  void layer_norm_backward() {
    vector(b.dweight).setZero();
    vector(b.dbias).setZero();
    for (long i = 0; i < o.n; ++i) {
      const Row x = row(b.x, i), dy = row(b.dy, i);
      const float m = mean[std::size_t(i)], r = rstd[std::size_t(i)];
      vector(b.dweight) += dy * (x - m) * r;
      vector(b.dbias) += dy;
      const float h = (dy * vector(b.weight)).mean(), hxhat = (dy * vector(b.weight) * (x - m)).mean() * r;
      row(b.dx, i) = (dy * vector(b.weight) - h - (x - m) * (r * hxhat)) * r;
    }
  }
  void rms_norm() {
    for (long i = 0; i < o.n; ++i) {
      const Row x = row(b.x, i);
      const float r = 1 / std::sqrt(x.square().mean() + eps);
      row(b.y, i) = x * r * vector(b.weight);
      rstd[std::size_t(i)] = r;
    }
  }
  void rms_norm_backward() {
    vector(b.dweight).setZero();
    for (long i = 0; i < o.n; ++i) {
      const Row x = row(b.x, i), dy = row(b.dy, i);
      const float r = rstd[std::size_t(i)];
      vector(b.dweight) += dy * x * r;
      const float hx = (dy * vector(b.weight) * x).mean() * r * r;
      row(b.dx, i) = (dy * vector(b.weight) - x * hx) * r;
    }
  }
  void weight_norm() {
    for (long i = 0; i < o.n; ++i) row(b.y, i) = row(b.x, i) * (b.weight[i] / row(b.x, i).matrix().norm());
  }
};

struct Planes {
  const Operation o;
  const Buffers b;

  Row plane(void* p, long n, long c, long channels = 1) const {
    return Row(static_cast<float*>(p) + (n * o.c + c) * o.space, channels * o.space);
  }
  void normalize(long n, long c, float mean, float rstd) {
    plane(b.y, n, c) = (plane(b.x, n, c) - mean) * (rstd * b.weight[c]) + b.bias[c];
  }
  void batch_norm() {
    for (long c = 0; c < o.c; ++c) {
      float sum = 0, squares = 0;
      const float count = float(o.n * o.space);
      for (long n = 0; n < o.n; ++n) sum += plane(b.x, n, c).sum();
      const float mean = sum / count;
      for (long n = 0; n < o.n; ++n) squares += (plane(b.x, n, c) - mean).square().sum();
      for (long n = 0; n < o.n; ++n) normalize(n, c, mean, 1 / std::sqrt(squares / count + eps));
    }
  }
  void group_norm() {
    const long size = o.c / o.groups;
    for (long n = 0; n < o.n; ++n)
      for (long g = 0; g < o.groups; ++g) {
        const Row x = plane(b.x, n, g * size, size);
        const float mean = x.mean(), rstd = 1 / std::sqrt((x - mean).square().mean() + eps);
        for (long c = g * size; c < (g + 1) * size; ++c) normalize(n, c, mean, rstd);
      }
  }
};

class EigenRows : public Peer {
 public:
  std::string name() const override { return "Eigen"; }
  std::string version() const override {
    return std::to_string(EIGEN_WORLD_VERSION) + "." + std::to_string(EIGEN_MAJOR_VERSION) + "." +
           std::to_string(EIGEN_MINOR_VERSION);
  }
  Call prepare(const Operation& o, const Buffers& b) override {
    const bool forward = o.pass == Pass::forward;
    if (o.type != Type::float32) return {};
    const auto rows = std::make_shared<Rows>(Rows{o, b});
    if (o.norm == Norm::layer_norm) rows->layer_norm();
    if (o.norm == Norm::rms_norm) rows->rms_norm();
    switch (o.norm) {
      case Norm::layer_norm:
        return {[=] { forward ? rows->layer_norm() : rows->layer_norm_backward(); }};
      case Norm::rms_norm:
        return {[=] { forward ? rows->rms_norm() : rows->rms_norm_backward(); }};
      case Norm::weight_norm:
        if (forward) return {[=] { rows->weight_norm(); }};
        return {};
      case Norm::batch_norm:
      case Norm::group_norm: {
        if (!forward || o.space == 1) return {};
        const auto planes = std::make_shared<Planes>(Planes{o, b});
        return {[=, norm = o.norm] { norm == Norm::batch_norm ? planes->batch_norm() : planes->group_norm(); }};
      }
      case Norm::batch_norm_inference:
        return {};
    }
    return {};
  }
};

}  // namespace

extern "C" Peer* evenkeel_bench_peer() { return new EigenRows; }
