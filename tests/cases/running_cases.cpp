// Running statistics: what training leaves in them, what inference makes of them, and what an error leaves alone.
#include "cases/channel_layer.hpp"
#include "cases/channel_run.hpp"
#include "cases/table.hpp"

#include <cmath>

using namespace cases_test;

namespace {

using Eigen::Index;

// Layers of both axis orders, on (samples, channels, positions).
constexpr bool orders[] = {false, true};

// x of (samples, channels) or (samples, channels, positions).
ChannelCase tracked_case(const Case& c) {
  const Tensor x = c.tensor("/inputs/x");
  ChannelCase channel;
  channel.samples = x.shape.at(0);
  channel.channels = x.shape.at(1);
  if (x.shape.size() > 2) channel.positions = x.shape.at(2);
  channel.x = x.values;
  if (c.has("/inputs/dy")) channel.dy = c.values("/inputs/dy");
  if (c.has("/params/gamma")) channel.weight = c.values("/params/gamma");
  if (c.has("/params/beta")) channel.bias = c.values("/params/beta");
  channel.eps = c.has("/params/eps") ? c.number("/params/eps") : 1e-5;
  channel.running = {c.values("/params/running_mean"), c.values("/params/running_var"), 0};
  if (c.has("/params/num_batches_tracked"))
    channel.running.batches = std::int64_t(c.number("/params/num_batches_tracked"));
  if (c.has("/params/momentum"))
    channel.momentum = c.is_null("/params/momentum") ? ek::Momentum::cumulative()
                                                     : ek::Momentum(ek::NewWeight{c.number("/params/momentum")});
  return channel;
}

LayerOptions layer_options(const ChannelCase& channel, LayerKind kind) {
  return {.kind = kind,
          .channels = channel.channels,
          .eps = channel.eps,
          .momentum = channel.momentum,
          .affine = channel.weight.empty() ? ek::Affine::off : ek::Affine::weight_and_bias};
}

void check_same_running(const Running& got, const Running& expected) {
  CHECK(bit_difference(got.mean, expected.mean) == "");
  CHECK(bit_difference(got.var, expected.var) == "");
  CHECK(got.batches == expected.batches);
}

Tensor zeros_of_shape(const Values& shape) {
  Tensor t;
  double size = 1;
  for (const double extent : shape) {
    t.shape.push_back(Index(extent));
    size *= extent;
  }
  t.values.assign(std::size_t(size), 0);
  for (std::size_t i = 0; i < t.values.size(); ++i) t.values[i] = 0.5 + double(i);
  return t;
}

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const ek::ShapeError& error) {
    return error.what();
  }
  return "";
}

// One value per channel: an error in training, whatever is running stays, and y is not written. Inference is legal.
template <class T>
void check_single_value(const Tensor& x, const LayerOptions& options, const Running& start, std::size_t shapes_of) {
  const Index samples = x.shape.at(0);
  for (const bool last : orders) {
    INFO("shape " << shapes_of << ", channels last " << last);
    const auto layer = make_layer<T>(options, last);
    layer->set_running(start);
    const Running before = layer->running();
    const std::string text = error_of([&] { layer->forward(samples, 1, x.values); });
    CHECK(text.find("1 value per channel, expected 2 or more in training") != std::string::npos);
    CHECK(text.find("x is " + std::to_string(samples) + "x") != std::string::npos);
    CHECK(bit_difference(layer->y, Values(x.values.size(), ChannelLayer::untouched)) == "");
    if (!options.tracking) continue;
    check_same_running(layer->running(), before);
    layer->set_training(false);
    const Values y = layer->forward(samples, 1, x.values);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const std::size_t k = i % std::size_t(options.channels);
      const double exact = (x.values[i] - before.mean[k]) / std::sqrt(before.var[k] + options.eps);
      CHECK(std::abs(y[i] - exact) <= 2 * epsilon_of<T>() * std::abs(exact));
    }
    check_same_running(layer->running(), before);
  }
}

// The same shapes in their own ranks, by the free function.
template <class T>
void check_single_value_ranks(const Tensor& x, const char* expected_text) {
  const auto refuses = [&](auto tensor) {
    tensor.setConstant(T(1));
    auto y = tensor;
    y.setConstant(T(77));
    ek::ChannelNormSaved<T> saved;
    const std::string text =
        error_of([&] { ek::batch_norm(ek::serial, tensor, ek::none, ek::none, y, saved, {.axis = 1}); });
    CHECK(text.find(expected_text) != std::string::npos);
    for (Index i = 0; i < y.size(); ++i) CHECK(double(y.data()[i]) == 77);
  };
  if (x.shape.size() == 2) refuses(norms_test::RowMatrix<T>(x.shape[0], x.shape[1]));
  if (x.shape.size() == 4)
    refuses(Eigen::Tensor<T, 4, Eigen::RowMajor>(x.shape[0], x.shape[1], x.shape[2], x.shape[3]));
}

void check_one_value_per_channel(const Case& c) {
  CHECK(c.text("/expected/error") == "more than one value per channel required");
  CHECK(c.text("/expected/state") == "unchanged");
  CHECK(c.text("/expected/eval") == "no error");
  CHECK(c.boolean("/params/training"));
  const Running start{c.values("/params/running_mean"), c.values("/params/running_var"), 5};
  for (std::size_t i = 0; i < c.size("/inputs/shapes"); ++i) {
    const Tensor x = zeros_of_shape(c.values("/inputs/shapes/" + std::to_string(i)));
    const LayerOptions options{.channels = Index(start.mean.size()),
                               .momentum = ek::NewWeight{c.number("/params/momentum")}};
    check_single_value<double>(x, options, start, i);
    check_single_value<float>(x, options, start, i);
    check_single_value_ranks<float>(x, "1 value per channel");
  }
}

// The plain average over batches, each of which counts once; the numbers at the start have no weight.
void check_cumulative_average(const Case& c) {
  CHECK(c.is_null("/params/momentum"));
  CHECK(c.boolean("/params/training"));
  const Values first_var = c.values("/params/running_var");
  for_each_type<double, float>(c, [&]<class T>(Type<T>, const std::string& type) {
    for (const bool last : orders) {
      const auto layer = make_layer<T>({.momentum = ek::Momentum::cumulative()}, last);
      const auto other = make_layer<T>({.momentum = ek::Momentum::cumulative()}, last);
      layer->set_running(
          {c.values("/params/running_mean"), first_var, std::int64_t(c.number("/params/num_batches_tracked"))});
      other->set_running({{-123}, {456}, 0});
      const std::size_t batches = c.size("/inputs/batches");
      for (std::size_t b = 0; b < batches; ++b) {
        const Values x = c.values("/inputs/batches/" + std::to_string(b));
        layer->forward(Index(x.size()), 1, x);
        other->forward(Index(x.size()), 1, x);
        INFO("after batch " << b);
        expect_at(c, type, "running_mean", layer->running().mean, "/expected/running_mean_after/" + std::to_string(b));
        expect_at(c, type, "running_var", layer->running().var, "/expected/running_var_after/" + std::to_string(b));
        check_same_running(other->running(), layer->running());
      }
      CHECK(double(layer->running().batches) == c.number("/expected/num_batches_tracked"));
    }
  });
}

// A stored counter goes on, with momentum as well; inference never moves it.
void check_resumed_counter(const Case& c) {
  CHECK(c.boolean("/params/training"));
  const ChannelCase channel = tracked_case(c);
  for_each_type<double, float>(c, [&]<class T>(Type<T>, const std::string& type) {
    for (const ChannelResult& result : run_channels_everywhere<T>(channel)) {
      expect_listed(c, type, result);
      CHECK(result.running.mean.at(0) == c.number("/expected/running_mean"));
      CHECK(double(result.running.batches) == c.number("/expected/num_batches_tracked"));
    }
    for (const bool last : orders) {
      const auto layer = make_layer<T>(layer_options(channel, LayerKind::batch), last);
      layer->set_running(channel.running);
      layer->forward(channel.samples, 1, channel.x);
      expect_at(c, type, "running_mean", layer->running().mean, "/expected/running_mean");
      expect_at(c, type, "running_var", layer->running().var, "/expected/running_var");
      CHECK(layer->running().batches == channel.running.batches + 1);
      const Running before = layer->running();
      layer->set_training(false);
      for (int i = 0; i < 2; ++i) layer->forward(channel.samples, 1, channel.x);
      check_same_running(layer->running(), before);

      const auto second = make_layer<T>({.momentum = ek::NewWeight{0.1}}, last);
      second->set_running(channel.running);
      second->forward(channel.samples, 1, channel.x);
      CHECK(second->running().batches == channel.running.batches + 1);
    }
  });
}

void check_forward_train(const Case& c) {
  if (c.has("/inputs/shapes"))
    check_one_value_per_channel(c);
  else if (c.has("/inputs/batches"))
    check_cumulative_average(c);
  else
    check_resumed_counter(c);
}

// The biased variance normalizes, the unbiased one is tracked, and inference reads the tracked one.
void check_train_then_inference(const Case& c) {
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    ChannelCase channel = tracked_case(c);
    Running after;
    for (const ChannelResult& result : run_channels_everywhere<T>(channel)) {
      expect_at(c, type, "y", result.y, "/expected/y_train");
      expect_listed(c, type, result);
      after = result.running;
    }
    channel.inference = true;
    channel.running = after;
    for (const ChannelResult& result : run_channels_everywhere<T>(channel)) {
      expect_at(c, type, "y", result.y, "/expected/y_eval");
      check_same_running(result.running, after);
    }
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>) {
      for (const bool last : orders) {
        const auto layer = make_layer<T>(layer_options(channel, LayerKind::batch), last);
        expect_at(c, type, "y", layer->forward(channel.samples, 1, channel.x), "/expected/y_train");
        layer->set_training(false);
        expect_at(c, type, "y", layer->forward(channel.samples, 1, channel.x), "/expected/y_eval");
        expect_at(c, type, "running_mean", layer->running().mean, "/expected/running_mean");
        expect_at(c, type, "running_var", layer->running().var, "/expected/running_var");
      }
    }
  });
}

// The mean over samples of the instances' means and unbiased variances.
void check_instance_tracking(const Case& c) {
  CHECK(c.boolean("/params/track_running_stats"));
  ChannelCase channel = tracked_case(c);
  channel.norm = ChannelNorm::instance;
  for_each_type<double, float>(c, [&]<class T>(Type<T>, const std::string& type) {
    for (const ChannelResult& result : run_channels_everywhere<T>(channel)) {
      expect_listed(c, type, result);
      CHECK(result.running.batches == 1);
    }
    for (const bool last : orders) {
      const auto layer = make_layer<T>(layer_options(channel, LayerKind::instance), last);
      layer->set_running(channel.running);
      layer->forward(channel.samples, channel.positions, channel.x);
      expect_at(c, type, "running_mean", layer->running().mean, "/expected/running_mean");
      expect_at(c, type, "running_var", layer->running().var, "/expected/running_var");
    }
  });
}

// One position is an error whatever the number of samples, also where there is no position axis at all.
void check_instance_of_one_value(const Case& c) {
  CHECK(c.text("/expected/error") == "all (no running stats, or training)");
  CHECK(c.text("/expected/eval_with_running_stats") == "no error");
  for (std::size_t i = 0; i < c.size("/inputs/shapes"); ++i) {
    const Tensor x = zeros_of_shape(c.values("/inputs/shapes/" + std::to_string(i)));
    const Running start{{0.5, -1, 2}, {1, 4, 0.25}, 7};
    for (const bool tracking : {false, true}) {
      const LayerOptions options{
          .kind = LayerKind::instance, .channels = 3, .tracking = tracking, .affine = ek::Affine::off};
      check_single_value<double>(x, options, start, i);
      check_single_value<float>(x, options, start, i);
    }
    const auto refuses = [&](auto tensor) {
      tensor.setConstant(1.0f);
      auto y = tensor;
      y.setConstant(77.0f);
      ek::ChannelNormSaved<float> saved;
      CHECK_THROWS_AS(ek::instance_norm(ek::serial, tensor, ek::none, ek::none, y, saved, {.axis = 1}), ek::ShapeError);
      ek::InstanceNorm<float> tracked(3, {}, {}, ek::Affine::off, ek::Tracking::on);
      CHECK_THROWS_AS(tracked.forward(ek::serial, tensor, y), ek::ShapeError);
      CHECK(tracked.running.num_batches_tracked == 0);
      for (Index k = 0; k < y.size(); ++k) CHECK(y.data()[k] == 77);
      tracked.training = false;
      CHECK_NOTHROW(tracked.forward(ek::serial, tensor, y));
    };
    if (x.shape.size() == 2)
      refuses(norms_test::RowMatrix<float>(x.shape[0], x.shape[1]));
    else
      refuses(Eigen::Tensor<float, 4, Eigen::RowMajor>(x.shape.at(0), x.shape.at(1), x.shape.at(2), x.shape.at(3)));
  }
}

// Inference, forward and where there is a dy backward: the statistics are constants, whatever the data, and stay.
void check_inference(const Case& c) {
  CHECK_FALSE(c.boolean("/params/training"));
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    ChannelCase channel = tracked_case(c);
    channel.inference = true;
    channel.running.batches = 3;
    // What a running statistic of the computing type can hold.
    Running start = channel.running;
    for (Values* list : {&start.mean, &start.var})
      for (double& v : *list) v = as<ek::accumulator_t<T>>(v);
    for (const ChannelResult& result : run_channels_everywhere<T>(channel)) {
      expect_at(c, type, "y", result.y, "/expected/y");
      if (!channel.dy.empty()) expect_listed(c, type, result);
      check_same_running(result.running, start);
    }
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>) {
      for (const bool last : orders) {
        const auto layer = make_layer<T>(layer_options(channel, LayerKind::batch), last);
        layer->set_running(channel.running);
        layer->set_parameter("weight", channel.weight);
        layer->set_parameter("bias", channel.bias);
        layer->set_training(false);
        for (int repetition = 0; repetition < 3; ++repetition) {
          ChannelResult result;
          result.y = layer->forward(channel.samples, 1, channel.x);
          if (!channel.dy.empty()) {
            result.dx = layer->backward(channel.samples, 1, channel.dy, channel.x);
            result.dweight = layer->gradient("weight");
            result.dbias = layer->gradient("bias");
          }
          expect_listed(c, type, result);
          check_same_running(layer->running(), start);
        }
      }
    }
  });
}

// The backward of a layer is that of its last forward; with the statistics of an earlier one put back, of that one.
void check_own_forward(const Case& c) {
  CHECK(c.boolean("/params/training"));
  const Values xa = c.values("/inputs/xa"), xb = c.values("/inputs/xb"), dy = c.values("/inputs/dy");
  const Values weight = c.values("/params/gamma"), bias = c.values("/params/beta");
  for_each_type<double, float>(c, [&]<class T>(Type<T>, const std::string& type) {
    // Three samples of one channel, or one sample whose three positions are one group.
    for (const LayerKind kind : {LayerKind::batch, LayerKind::group, LayerKind::instance})
      for (const bool last : orders) {
        INFO("layer " << int(kind) << ", channels last " << last);
        const auto layer = make_layer<T>({.kind = kind, .eps = c.number("/params/eps")}, last);
        layer->set_parameter("weight", weight);
        layer->set_parameter("bias", bias);
        const Index samples = kind == LayerKind::batch ? 3 : 1, positions = 3 / samples;
        const auto expect_backward = [&](const Values& x, const std::string& batch) {
          expect_at(c, type, "dx", layer->backward(samples, positions, dy, x), "/expected/dx_" + batch);
          expect_at(c, type, "dgamma", layer->gradient("weight"), "/expected/dgamma_" + batch);
        };
        layer->forward(samples, positions, xa);
        layer->save(0);
        layer->forward(samples, positions, xb);
        expect_backward(xb, "b");
        layer->restore(0);
        expect_backward(xa, "a");
      }
    // LayerNorm of the three as one row: the gradient of a weight that is 1 for all of them is the sum of theirs.
    using norms_test::RowMatrix;
    const auto row = [](const Values& v) { return norms_test::matrix_of<RowMatrix<T>>(1, v.size(), v); };
    RowMatrix<T> y(1, 3), dx(1, 3);
    ek::LayerNorm<T> layer(3, {.eps = c.number("/params/eps")});
    const auto expect_backward = [&](const Values& x, const std::string& batch) {
      layer.backward(ek::serial, row(dy), row(x), dx, ek::GradientMode::overwrite);
      expect_at(c, type, "dx", norms_test::values_of(dx), "/expected/dx_" + batch);
      double sum = 0;
      for (Index i = 0; i < 3; ++i) sum += double(layer.weight.gradient()[i]);
      INFO("dgamma of " << batch);
      CHECK(difference({sum}, c.values("/expected/dgamma_" + batch), c.limit(type, "dgamma")) == "");
    };
    layer.forward(ek::serial, row(xa), y);
    const auto saved_a = layer.saved;
    layer.forward(ek::serial, row(xb), y);
    expect_backward(xb, "b");
    layer.saved = saved_a;
    expect_backward(xa, "a");
  });
}

}  // namespace

void cases_test::add_running_cases(Table& table) {
  table["batch_norm.forward_train"] = check_forward_train;
  table["batch_norm.forward_train / forward_eval"] = check_train_then_inference;
  table["batch_norm.forward_eval"] = check_inference;
  table["batch_norm.backward_eval"] = check_inference;
  table["instance_norm.forward_train"] = check_instance_tracking;
  table["instance_norm.forward"] = check_instance_of_one_value;
  table["batch_norm / group_norm / layer_norm: forward twice, backward"] = check_own_forward;
}
