#include "cases/channel_layer.hpp"
#include "cases/channel_run.hpp"
#include "cases/row_run.hpp"
#include "cases/table.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <utility>

using namespace cases_test;

namespace {

using Eigen::Index;
using norms_test::vector_of;

// x of the case in torch's order (samples, channels, positions); "layout": "NHWC" means that the channels come last.
ChannelCase group_case(const Case& c) {
  const Tensor x = c.tensor("/inputs/x");
  const bool last = c.has("/params/layout");
  if (last) CHECK(c.text("/params/layout") == "NHWC");
  ChannelCase channel;
  channel.norm = ChannelNorm::group;
  channel.samples = x.shape.at(0);
  channel.channels = last ? x.shape.back() : x.shape.at(1);
  for (std::size_t a = last ? 1 : 2; a < x.shape.size() - (last ? 1 : 0); ++a) channel.positions *= x.shape[a];
  channel.groups = c.has("/params/num_groups") ? Index(c.number("/params/num_groups")) : 1;
  channel.x = x.values;
  if (c.has("/inputs/dy")) channel.dy = c.values("/inputs/dy");
  channel.weight = c.values("/params/gamma");
  if (c.has("/params/beta")) channel.bias = c.values("/params/beta");
  channel.eps = c.number("/params/eps");
  return channel;
}

// Between (samples, positions, channels) and (samples, channels, positions).
Values channels_first(const ChannelCase& c, const Values& last) {
  Values first;
  for (Index n = 0; n < c.samples; ++n)
    for (Index k = 0; k < c.channels; ++k)
      for (Index p = 0; p < c.positions; ++p)
        first.push_back(last.at(std::size_t((n * c.positions + p) * c.channels + k)));
  return first;
}

// The case as it stands, a tensor of rank 4 whose last axis holds the channels.
template <class T>
Values of_image(const Case& c, const ChannelCase& channel, const Values& x) {
  const Shape shape = c.tensor("/inputs/x").shape;
  using Image = Eigen::Tensor<T, 4, Eigen::RowMajor>;
  Image image(shape.at(0), shape.at(1), shape.at(2), shape.at(3)), y(image.dimensions());  // (N, H, W, C)
  for (Index i = 0; i < image.size(); ++i) image.data()[i] = static_cast<T>(x.at(std::size_t(i)));
  y.setConstant(norms_test::nan_of<T>());
  ek::ChannelNormSaved<ek::accumulator_t<T>> saved;
  ek::group_norm(ek::serial, image, vector_of<T>(channel.weight), vector_of<T>(channel.bias), y, saved,
                 {.groups = channel.groups, .eps = channel.eps, .axis = -1});
  return norms_test::values_of(y);
}

bool constant_groups(const ChannelCase& c) {
  const std::size_t size = std::size_t(c.channels / c.groups * c.positions);
  for (std::size_t i = 0; i < c.x.size(); ++i)
    if (c.x[i] != c.x[i - i % size]) return false;
  return true;
}

void check_layer(const Case& c, const std::string& type, const ChannelCase& channel, ChannelLayer& layer) {
  layer.set_parameter("weight", channel.weight);
  layer.set_parameter("bias", channel.bias);
  ChannelResult result;
  result.y = layer.forward(channel.samples, channel.positions, channel.x);
  if (!channel.dy.empty()) {
    result.dx = layer.backward(channel.samples, channel.positions, channel.dy, channel.x);
    result.dweight = layer.gradient("weight");
    result.dbias = layer.gradient("bias");
  }
  expect_listed(c, type, result);
}

void check_group_norm(const Case& c) {
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    ChannelCase channel = group_case(c);
    const bool last = c.has("/params/layout");
    if (last) {
      expect_at(c, type, "y", of_image<T>(c, channel, channel.x), "/expected/y");
      channel.x = channels_first(channel, channel.x);
    }
    for (const ChannelResult& result : run_channels_everywhere<T>(channel)) {
      if (last) {
        INFO("y in " << type);
        CHECK(difference(result.y, channels_first(channel, c.values("/expected/y")), c.limit(type, "y")) == "");
        continue;
      }
      expect_listed(c, type, result);
      // Without any rounding, whatever the weight.
      if (constant_groups(channel)) CHECK(difference(result.y, c.values("/expected/y"), {}) == "");
    }
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>) {
      if (last) return;
      for (const bool order : {false, true})
        check_layer(
            c, type, channel,
            *make_layer<T>(
                {.kind = LayerKind::group, .channels = channel.channels, .groups = channel.groups, .eps = channel.eps},
                order));
    }
  });
}

// One group has one mean for all of a sample, LayerNorm over the channels one for each position, and LayerNorm over
// both axes is the former where its weight repeats the channels' weight.
void check_against_layer_norm(const Case& c) {
  const std::string repeated = "/expected/layer_norm_CL_with_gamma_[[2,2],[3,3]]";
  CHECK(c.text(repeated) == "equal to group_norm_1");
  for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
    const ChannelCase channel = group_case(c);
    REQUIRE(channel.samples == 1);
    for (const ChannelResult& result : run_channels_everywhere<T>(channel))
      expect_at(c, type, "y", result.y, "/expected/group_norm_1");

    RowCase row;
    row.eps = channel.eps;
    // A position's channels are a column of x: its row once channels and positions have changed places.
    const auto turned = [&](const Values& v) {
      Values t;
      for (Index p = 0; p < channel.positions; ++p)
        for (Index k = 0; k < channel.channels; ++k) t.push_back(v.at(std::size_t(k * channel.positions + p)));
      return t;
    };
    row.rows = channel.positions;
    row.length = channel.channels;
    row.x = turned(channel.x);
    row.weight = channel.weight;
    for (const RowResult& result : run_everywhere<T, LayerNormUnderTest>(row)) {
      INFO("LayerNorm over channels in " << type);
      CHECK(difference(result.y, turned(c.values("/expected/layer_norm_channels")), c.limit(type, "y")) == "");
    }
    RowCase whole = row;
    whole.rows = 1;
    whole.length = channel.channels * channel.positions;
    whole.x = channel.x;
    whole.weight.clear();
    for (const double weight : channel.weight)
      whole.weight.insert(whole.weight.end(), std::size_t(channel.positions), weight);
    for (const RowResult& result : run_everywhere<T, LayerNormUnderTest>(whole))
      expect_at(c, type, "y", result.y, "/expected/group_norm_1");
  });
}

// C must be a positive multiple of G >= 1, or there is no layer.
void check_construction(const Case& c) {
  CHECK(c.text("/expected/error") == "first list only");
  const auto make = [](const Values& pair) {
    ek::GroupNorm<float> layer(Index(pair.at(0)), {.groups = Index(pair.at(1))});
  };
  for (std::size_t i = 0; i < c.size("/inputs/error"); ++i) {
    const Values pair = c.values("/inputs/error/" + std::to_string(i));
    INFO(pair.at(0) << " channels, " << pair.at(1) << " groups");
    CHECK_THROWS_AS(make(pair), ek::ShapeError);
    // Nor is there a free call; y keeps what was in it.
    const Index channels = Index(pair.at(0));
    using Cube = Eigen::Tensor<float, 3, Eigen::RowMajor>;
    Cube x(2, channels, 5), y(2, channels, 5);
    x.setConstant(1.0f);
    y.setConstant(77.0f);
    ek::ChannelNormSaved<float> saved;
    const auto call = [&] {
      ek::group_norm(ek::serial, x, ek::none, ek::none, y, saved, {.groups = Index(pair.at(1))});
    };
    if (channels > 0) CHECK_THROWS_AS(call(), ek::ShapeError);
    for (Index k = 0; k < y.size(); ++k) CHECK(y.data()[k] == 77);
  }
  for (std::size_t i = 0; i < c.size("/inputs/ok"); ++i) {
    const Values pair = c.values("/inputs/ok/" + std::to_string(i));
    INFO(pair.at(0) << " channels, " << pair.at(1) << " groups");
    CHECK_NOTHROW(make(pair));
  }
}

}  // namespace

void cases_test::add_group_norm_cases(Table& table) {
  table["group_norm.forward"] = check_group_norm;
  table["group_norm.backward"] = check_group_norm;
  table["group_norm.forward vs layer_norm.forward"] = check_against_layer_norm;
  table["group_norm construction"] = check_construction;
}
