#include "cases/channel_layer.hpp"

#include "evenkeel/tensor.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <map>
#include <stdexcept>

namespace cases_test {

namespace {

template <class T, class Layer>
class Wrapped : public ChannelLayer {
 public:
  Wrapped(Layer layer, bool last) : layer_(std::move(layer)), last_(last) {}

  Values forward(Eigen::Index samples, Eigen::Index positions, const Values& x) override {
    const Cube in = cube(samples, positions, x);
    Cube out = cube(samples, positions, Values(x.size(), untouched));
    try {
      layer_.forward(ek::serial, in, out);
    } catch (...) {
      y = values(samples, positions, out);
      throw;
    }
    return y = values(samples, positions, out);
  }
  Values backward(Eigen::Index samples, Eigen::Index positions, const Values& dy, const Values& x) override {
    Cube dx = cube(samples, positions, Values(x.size(), NAN));
    layer_.backward(ek::serial, cube(samples, positions, dy), cube(samples, positions, x), dx,
                    ek::GradientMode::overwrite);
    return values(samples, positions, dx);
  }
  Values parameter(const std::string& name) override { return list(named(name).value()); }
  Values gradient(const std::string& name) override { return list(named(name).gradient()); }
  void set_parameter(const std::string& name, const Values& values) override {
    for (std::size_t k = 0; k < values.size(); ++k) named(name).value()[k] = static_cast<T>(values[k]);
  }
  Running running() override {
    if constexpr (tracked)
      return {list(layer_.running.mean()), list(layer_.running.var()), layer_.running.num_batches_tracked};
    else
      return {};
  }
  void set_running(const Running& running) override {
    if constexpr (tracked) {
      for (std::size_t k = 0; k < running.mean.size(); ++k) {
        layer_.running.mean()[k] = static_cast<T>(running.mean[k]);
        layer_.running.var()[k] = static_cast<T>(running.var.at(k));
      }
      layer_.running.num_batches_tracked = running.batches;
    } else {
      static_cast<void>(running);
    }
  }
  void set_training(bool training) override {
    if constexpr (tracked)
      layer_.training = training;
    else
      static_cast<void>(training);
  }
  void save(int slot) override { saved_.insert_or_assign(slot, layer_.saved); }
  void restore(int slot) override { layer_.saved = saved_.at(slot); }

 private:
  using Cube = Eigen::Tensor<T, 3, Eigen::RowMajor>;
  static constexpr bool tracked = requires(Layer layer) { layer.running; };

  Layer layer_;
  bool last_;
  std::map<int, decltype(layer_.saved)> saved_;

  ek::Parameter<T>& named(const std::string& name) {
    if (name == "weight") return layer_.weight;
    if (name == "bias") return layer_.bias;
    throw std::runtime_error("no parameter " + name);
  }
  Values list(const T* data) const { return Values(data, data + layer_.channels()); }
  template <class F>
  void for_each(Eigen::Index samples, Eigen::Index positions, Cube& t, const F& f) const {
    for (Eigen::Index n = 0, at = 0; n < samples; ++n)
      for (Eigen::Index k = 0; k < layer_.channels(); ++k)
        for (Eigen::Index p = 0; p < positions; ++p, ++at) f(std::size_t(at), last_ ? t(n, p, k) : t(n, k, p));
  }
  Cube cube(Eigen::Index samples, Eigen::Index positions, const Values& values) const {
    const Eigen::Index channels = layer_.channels();
    Cube t = last_ ? Cube(samples, positions, channels) : Cube(samples, channels, positions);
    for_each(samples, positions, t, [&](std::size_t at, T& element) { element = static_cast<T>(values.at(at)); });
    return t;
  }
  Values values(Eigen::Index samples, Eigen::Index positions, Cube& t) const {
    Values v(std::size_t(t.size()));
    for_each(samples, positions, t, [&](std::size_t at, T& element) { v.at(at) = static_cast<double>(element); });
    return v;
  }
};

template <class T, class Layer>
std::unique_ptr<ChannelLayer> wrap(Layer layer, bool last) {
  return std::make_unique<Wrapped<T, Layer>>(std::move(layer), last);
}

}  // namespace

template <class T>
std::unique_ptr<ChannelLayer> make_layer(const LayerOptions& o, bool last) {
  const int axis = last ? -1 : 1;
  const auto tracking = o.tracking ? ek::Tracking::on : ek::Tracking::off;
  const ek::RunningOptions running{.momentum = o.momentum};
  if (o.kind == LayerKind::batch)
    return wrap<T>(ek::BatchNorm<T>(o.channels, {.eps = o.eps, .axis = axis}, running, o.affine, tracking), last);
  if (o.kind == LayerKind::instance)
    return wrap<T>(ek::InstanceNorm<T>(o.channels, {.eps = o.eps, .axis = axis}, running, o.affine, tracking), last);
  return wrap<T>(ek::GroupNorm<T>(o.channels, {.groups = o.groups, .eps = o.eps, .axis = axis}, o.affine), last);
}

template std::unique_ptr<ChannelLayer> make_layer<double>(const LayerOptions&, bool);
template std::unique_ptr<ChannelLayer> make_layer<float>(const LayerOptions&, bool);

}  // namespace cases_test
