// The layers over channels behind one face, for numbers in torch's order (samples, channels, positions).
#pragma once

#include "cases/channel_run.hpp"

#include <memory>

namespace cases_test {

enum class LayerKind { batch, group, instance };

struct LayerOptions {
  LayerKind kind = LayerKind::batch;
  Eigen::Index channels = 1, groups = 1;
  double eps = 1e-5;
  ek::Momentum momentum = ek::NewWeight{0.1};
  bool tracking = true;
  ek::Affine affine = ek::Affine::weight_and_bias;
};

class ChannelLayer {
 public:
  virtual ~ChannelLayer() = default;
  /// y. It is `untouched` first, so what an error leaves of it can be seen: the caller reads `y` then.
  virtual Values forward(Eigen::Index samples, Eigen::Index positions, const Values& x) = 0;
  /// dx; the gradients of the parameters are overwritten.
  virtual Values backward(Eigen::Index samples, Eigen::Index positions, const Values& dy, const Values& x) = 0;
  virtual Values parameter(const std::string& name) = 0;
  virtual Values gradient(const std::string& name) = 0;
  virtual void set_parameter(const std::string& name, const Values& values) = 0;
  virtual Running running() = 0;
  virtual void set_running(const Running& running) = 0;
  virtual void set_training(bool training) = 0;
  /// Puts away the statistics of the last forward, or takes them back.
  virtual void save(int slot) = 0;
  virtual void restore(int slot) = 0;

  static constexpr double untouched = 77;
  Values y;  // of the last forward, also of one that threw
};

/// A double or float layer. `last` puts the channels last. Compiled once, in channel_layer.cpp.
template <class T>
std::unique_ptr<ChannelLayer> make_layer(const LayerOptions& options, bool last = false);

}  // namespace cases_test
