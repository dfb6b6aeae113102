#pragma once

#include "evenkeel/activations.hpp"
#include "evenkeel/norms/batch_norm.hpp"
#include "evenkeel/norms/dyt.hpp"
#include "evenkeel/norms/group_norm.hpp"
#include "evenkeel/norms/instance_norm.hpp"
#include "nn/parallel.hpp"
#include "nn/planes.hpp"
#include "nn/ranks.hpp"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace nn {

/// A norm and the ReLU behind it, chosen at run time. x and h are (images, channels, positions).
class ActivatedNorm {
 public:
  using Visitor = std::function<void(ek::ParameterRef<float>)>;

  virtual ~ActivatedNorm() = default;
  virtual void forward(const Eigen::ThreadPoolDevice& device, const Planes& x, Planes h, bool training) = 0;
  /// dx may be dh; x and h are the forward's. Parameter gradients are accumulated.
  virtual void backward(const Eigen::ThreadPoolDevice& device, const Planes& dh, const Planes& x, const Planes& h,
                        Planes dx) = 0;
  virtual void for_each_parameter(const Visitor&) {}

  /// The same in two halves, between which a norm over ranks waits for the others. The other norms do all in the first.
  virtual ek::Pending start_forward(const Eigen::ThreadPoolDevice& device, const Planes& x, Planes h, bool training) {
    forward(device, x, h, training);
    return ek::Pending();
  }
  virtual ek::Pending start_backward(const Eigen::ThreadPoolDevice& device, const Planes& dh, const Planes& x,
                                     const Planes& h, Planes dx) {
    backward(device, dh, x, h, dx);
    return ek::Pending();
  }
};

/// BatchNorm, GroupNorm or InstanceNorm, which bring the ReLU into the pass that writes their output. The library's free
/// functions, because its layers also compile what is not asked for here: norms without weight or bias.
class ChannelNorm : public ActivatedNorm {
 public:
  explicit ChannelNorm(Index channels) : weight_("weight", channels, false), bias_("bias", channels, false) {
    weight_.fill(1.0f);
  }
  void backward(const Eigen::ThreadPoolDevice& device, const Planes& dh, const Planes& x, const Planes&,
                Planes dx) override {
    // The gradients of all three are one function: what differs is in the saved statistics.
    ek::batch_norm_backward<ek::Relu>(device, dh, x, map(weight_.value()), map(bias_.value()), saved_, dx,
                                      map(weight_.gradient()), map(bias_.gradient()));
  }
  void for_each_parameter(const Visitor& f) final {
    f(weight_.ref());
    f(bias_.ref());
  }

 protected:
  using Values = Eigen::Map<Eigen::ArrayXf>;
  Values map(float* data) const { return {data, weight_.size()}; }

  ek::Parameter<float> weight_, bias_;  // (channels)
  ek::ChannelNormSaved<float> saved_;
};

class ActivatedBatchNorm final : public ChannelNorm {
 public:
  explicit ActivatedBatchNorm(Index channels) : ChannelNorm(channels), running_(channels) {}

  void forward(const Eigen::ThreadPoolDevice& device, const Planes& x, Planes h, bool training) override {
    const Values weight = map(weight_.value()), bias = map(bias_.value());
    if (!training) return ek::batch_norm_inference<ek::Relu>(device, x, weight, bias, running_, h);
    ek::batch_norm<ek::Relu>(device, x, weight, bias, h, saved_);
    running_.update(device, saved_);
  }

 private:
  ek::RunningStatistics<float> running_;
};

/// BatchNorm over the images of all ranks.
class ActivatedSyncBatchNorm final : public ChannelNorm {
 public:
  ActivatedSyncBatchNorm(Index channels, Ranks& ranks) : ChannelNorm(channels), ranks_(ranks), running_(channels) {}

  void forward(const Eigen::ThreadPoolDevice& device, const Planes& x, Planes h, bool training) override {
    start_forward(device, x, h, training).finish();
  }
  void backward(const Eigen::ThreadPoolDevice& device, const Planes& dh, const Planes& x, const Planes& h,
                Planes dx) override {
    start_backward(device, dh, x, h, dx).finish();
  }
  ek::Pending start_forward(const Eigen::ThreadPoolDevice& device, const Planes& x, Planes h, bool training) override {
    const Values weight = map(weight_.value()), bias = map(bias_.value());
    if (!training) {
      ek::batch_norm_inference<ek::Relu>(device, x, weight, bias, running_, h);
      return ek::Pending();
    }
    return ek::Pending(
        Followed{ek::start_batch_norm<ek::Relu>(device, x, weight, bias, h, saved_, {}, ranks_), *this, device});
  }
  ek::Pending start_backward(const Eigen::ThreadPoolDevice& device, const Planes& dh, const Planes& x, const Planes&,
                             Planes dx) override {
    return ek::start_batch_norm_backward<ek::Relu>(device, dh, x, map(weight_.value()), map(bias_.value()), saved_, dx,
                                                   map(weight_.gradient()), map(bias_.gradient()),
                                                   ek::GradientMode::accumulate, ranks_);
  }

 private:
  // A forward that the running statistics follow.
  struct Followed {
    ek::Pending norm;
    ActivatedSyncBatchNorm& self;
    const Eigen::ThreadPoolDevice& device;
    void finish() {
      norm.finish();
      self.running_.update(device, self.saved_);
    }
  };

  Ranks& ranks_;
  ek::RunningStatistics<float> running_;
};

class ActivatedGroupNorm final : public ChannelNorm {
 public:
  ActivatedGroupNorm(Index channels, Index groups) : ChannelNorm(channels), groups_(groups) {}

  void forward(const Eigen::ThreadPoolDevice& device, const Planes& x, Planes h, bool) override {
    ek::group_norm<ek::Relu>(device, x, map(weight_.value()), map(bias_.value()), h, saved_, {.groups = groups_});
  }

 private:
  Index groups_;
};

class ActivatedInstanceNorm final : public ChannelNorm {
 public:
  using ChannelNorm::ChannelNorm;

  void forward(const Eigen::ThreadPoolDevice& device, const Planes& x, Planes h, bool) override {
    ek::instance_norm<ek::Relu>(device, x, map(weight_.value()), map(bias_.value()), h, saved_);
  }
};

/// f(begin, arrays of the same piece of each tensor), in pieces of a fixed length.
template <class F, class... T>
void for_each_piece(const Eigen::ThreadPoolDevice& device, const F& f, const Planes& first, const T&... rest) {
  for_each_range(device, first.size(), 1 << 14, [&](Index begin, Index count) {
    const auto piece = [&](const Planes& t) { return Eigen::Map<Eigen::ArrayXf>(t.data() + begin, count); };
    f(begin >> 14, piece(first), piece(rest)...);
  });
}

class ActivatedDyt final : public ActivatedNorm {
 public:
  explicit ActivatedDyt(Index channels) : dyt_(channels, {.axis = 1}) {}

  void forward(const Eigen::ThreadPoolDevice& device, const Planes& x, Planes h, bool) override {
    dyt_.forward(device, x, h);
    for_each_piece(
        device, [](Index, auto values) { values = values.cwiseMax(0.0f); }, h);
  }
  void backward(const Eigen::ThreadPoolDevice& device, const Planes& dh, const Planes& x, const Planes& h,
                Planes dx) override {
    for_each_piece(
        device, [](Index, auto to, auto from, auto out) { to = (out > 0.0f).select(from, 0.0f); }, dx, dh, h);
    dyt_.backward(device, dx, x, dx);
  }
  void for_each_parameter(const Visitor& f) override { dyt_.for_each_parameter(f); }

 private:
  ek::Dyt<float> dyt_;
};

/// No norm: h = scale * relu(x + before) + after. The two numbers are Fixup's biases, 0 at first; others do without.
class ScaledRelu final : public ActivatedNorm {
 public:
  ScaledRelu(double scale, bool with_biases) : scale_(float(scale)), with_biases_(with_biases) {}

  void forward(const Eigen::ThreadPoolDevice& device, const Planes& x, Planes h, bool) override {
    const float scale = scale_, before = *before_.value(), after = *after_.value();
    for_each_piece(
        device,
        [=](Index, auto out, auto in) {
          if (before == 0 && after == 0)
            out = scale * in.cwiseMax(0.0f);
          else
            out = scale * (in + before).cwiseMax(0.0f) + after;
        },
        h, x);
  }
  void backward(const Eigen::ThreadPoolDevice& device, const Planes& dh, const Planes& x, const Planes&,
                Planes dx) override {
    const float scale = scale_, before = *before_.value();
    parts_.resize(std::size_t(dx.size() / (1 << 14) + 1));
    const bool sums = with_biases_;
    for_each_piece(
        device,
        [&](Index piece, auto to, auto from, auto in) {
          Part& part = parts_[std::size_t(piece)];
          if (sums) part.after = from.sum();
          to = (in + before > 0.0f).select(scale * from, 0.0f);
          if (sums) part.before = to.sum();
        },
        dx, dh, x);
    if (!sums) return;
    double before_sum = 0, after_sum = 0;
    for (Index i = 0; i * (1 << 14) < dx.size(); ++i) {
      before_sum += double(parts_[std::size_t(i)].before);
      after_sum += double(parts_[std::size_t(i)].after);
    }
    *before_.gradient() += float(before_sum);
    *after_.gradient() += float(after_sum);
  }
  void for_each_parameter(const Visitor& f) override {
    if (!with_biases_) return;
    f(before_.ref());
    f(after_.ref());
  }

 private:
  struct Part {
    float before, after;
  };

  float scale_;
  bool with_biases_;
  ek::Parameter<float> before_{"before", 1, false}, after_{"after", 1, false};
  std::vector<Part> parts_;
};

}  // namespace nn
