// Norms over channels: activations, residuals, inference, running statistics, layers.
#include "evenkeel/conventions.hpp"
#include "norms/channel_checks.hpp"
#include "support/gradient_check.hpp"

using namespace norms_test;

namespace {

constexpr auto overwrite = ek::GradientMode::overwrite;
using Rank3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

template <class Activation, class Layout, class T>
void check_activation(Act act) {
  for (const std::size_t S : {7, 40}) {
    Channels p = channels<T>(4, 21, S, 5 + S);
    p.activation = act;
    p.ghost = p.N, p.groups = p.C;
    const ek::BatchNormOptions options{.axis = Layout::axis, .sample_axis = Layout::sample_axis};
    check_channels<Layout, T>(
        p,
        [&](const auto& x, const auto&, const auto&, const auto& w, const auto& b, auto& y, auto& saved) {
          ek::batch_norm<Activation>(ek::serial, x, w, b, y, saved, options);
        },
        [&](const auto& dy, const auto& x, const auto&, const auto&, const auto& w, const auto& b, auto& saved,
            auto& dx, auto&, auto& dw,
            auto& db) { ek::batch_norm_backward<Activation>(ek::serial, dy, x, w, b, saved, dx, dw, db, overwrite); });
    p.residual = support::normal<T>(p.size(), 99);
    check_channels<Layout, T>(
        p,
        [&](const auto& x, const auto& r, const auto&, const auto& w, const auto& b, auto& y, auto& saved) {
          ek::batch_norm_add<Activation>(ek::serial, x, r, w, b, y, saved, options);
        },
        [&](const auto& dy, const auto& x, const auto& r, const auto&, const auto& w, const auto& b, auto& saved,
            auto& dx, auto& dr, auto& dw, auto& db) {
          ek::batch_norm_add_backward<Activation>(ek::serial, dy, x, r, w, b, saved, dx, dr, dw, db, overwrite);
        });
    p.residual.clear();
    p.ghost = 1, p.groups = 7;
    check_channels<Layout, T>(
        p,
        [&](const auto& x, const auto&, const auto&, const auto& w, const auto& b, auto& y, auto& saved) {
          ek::group_norm<Activation>(ek::serial, x, w, b, y, saved, {.groups = 7, .axis = Layout::axis});
        },
        [&](const auto& dy, const auto& x, const auto&, const auto&, const auto& w, const auto& b, auto& saved,
            auto& dx, auto&, auto& dw,
            auto& db) { ek::group_norm_backward<Activation>(ek::serial, dy, x, w, b, saved, dx, dw, db, overwrite); });
  }
}

Rank3 tensor(const Values& values, Eigen::Index n, Eigen::Index c, Eigen::Index s) {
  Rank3 t(n, c, s);
  for (Eigen::Index i = 0; i < t.size(); ++i) t.data()[i] = float(values[std::size_t(i)]);
  return t;
}

bool same_bits(const Rank3& a, const Rank3& b) { return std::equal(a.data(), a.data() + a.size(), b.data()); }

}  // namespace

TEST_CASE("activations and residuals in the pass of the norm", "[norms][batch_norm][group_norm]") {
  check_activation<ek::Relu, ChannelsFirst<float>, float>(Act::relu);
  check_activation<ek::Silu, ChannelsFirst<SUPPORT_WIDE>, SUPPORT_WIDE>(Act::silu);
  check_activation<ek::Silu, ChannelsLast<float>, float>(Act::silu);
}

TEST_CASE("batch_norm_add gradients against central differences", "[norms][batch_norm]") {
  Channels p = channels<double>(3, 4, 5, 71);
  p.residual = support::normal<double>(p.size(), 72);
  using Layout = ChannelsFirst<double>;
  const auto loss = [&](const Values& x, const Values& r, const Values& w, const Values& b) {
    ek::BatchNormSaved<double> saved;
    auto y = tensor_of<Layout>(p, {});
    ek::batch_norm_add<ek::Silu>(ek::serial, tensor_of<Layout>(p, x), tensor_of<Layout>(p, r), vector_of<double>(w),
                                 vector_of<double>(b), y, saved);
    return support::weighted_sum(logical<Layout>(p, y), p.dy);
  };
  ek::BatchNormSaved<double> saved;
  const auto x = tensor_of<Layout>(p, p.x), r = tensor_of<Layout>(p, p.residual), dy = tensor_of<Layout>(p, p.dy);
  auto y = tensor_of<Layout>(p, {}), dx = y, dr = y;
  const auto w = vector_of<double>(p.weight), b = vector_of<double>(p.bias);
  Vector<double> dw = Vector<double>::Zero(4), db = dw;
  ek::batch_norm_add<ek::Silu>(ek::serial, x, r, w, b, y, saved);
  ek::batch_norm_add_backward<ek::Silu>(ek::serial, dy, x, r, w, b, saved, dx, dr, dw, db);
  using support::central_differences, support::gradient_distance, support::gradient_tolerance;
  const auto near = [&](const Values& got, const auto& f, const Values& at) {
    CHECK(gradient_distance(got, central_differences(f, at)) < gradient_tolerance);
  };
  near(
      logical<Layout>(p, dx), [&](const Values& v) { return loss(v, p.residual, p.weight, p.bias); }, p.x);
  near(
      logical<Layout>(p, dr), [&](const Values& v) { return loss(p.x, v, p.weight, p.bias); }, p.residual);
  near(
      values_of(dw), [&](const Values& v) { return loss(p.x, p.residual, v, p.bias); }, p.weight);
  near(
      values_of(db), [&](const Values& v) { return loss(p.x, p.residual, p.weight, v); }, p.bias);
}

TEST_CASE("batch_norm in inference: statistics are constants, and stay", "[norms][batch_norm]") {
  const Channels p = channels<float>(3, 5, 9, 41);
  const Rank3 x = tensor(p.x, 3, 5, 9), dy = tensor(p.dy, 3, 5, 9);
  Rank3 y(3, 5, 9), dx(3, 5, 9);
  ek::BatchNorm<float> norm(5, {.eps = 1e-3});
  for (int c = 0; c < 5; ++c) {
    norm.running.mean()[c] = 0.5f * float(c) - 1, norm.running.var()[c] = c == 3 ? 1e30f : 0.25f + float(c);
    norm.weight.value()[c] = float(p.weight[std::size_t(c)]), norm.bias.value()[c] = float(p.bias[std::size_t(c)]);
  }
  norm.training = false;
  norm.forward(ek::serial, x, y);
  norm.backward(ek::serial, dy, x, dx);
  for (std::size_t c = 0; c < 5; ++c) {
    const double rstd = 1 / std::sqrt(double(norm.running.var()[c]) + 1e-3), mean = double(norm.running.mean()[c]);
    double dweight = 0, dbias = 0, size = 0;
    for (std::size_t n = 0; n < 3; ++n)
      for (std::size_t s = 0; s < 9; ++s) {
        const std::size_t i = p.at(n, c, s);
        const double xhat = (p.x[i] - mean) * rstd;
        CHECK(std::abs(double(y.data()[i]) - (xhat * p.weight[c] + p.bias[c])) <= 1e-6 * (1 + std::abs(xhat)) * 4);
        CHECK(std::abs(double(dx.data()[i]) - p.dy[i] * p.weight[c] * rstd) <= 1e-6 * std::abs(p.dy[i] * rstd));
        dweight += p.dy[i] * xhat, dbias += p.dy[i], size += std::abs(p.dy[i] * xhat) + std::abs(p.dy[i]);
      }
    CHECK(std::abs(double(norm.weight.gradient()[c]) - dweight) <= 1e-6 * size);
    CHECK(std::abs(double(norm.bias.gradient()[c]) - dbias) <= 1e-6 * size);
  }
  CHECK(norm.running.num_batches_tracked == 0);
  CHECK(norm.running.mean()[1] == -0.5f);
}

TEST_CASE("running statistics: momentum, cumulative, old weight, biased", "[norms][batch_norm]") {
  Rank3 x(3, 1, 1), y(3, 1, 1);
  x.setValues({{{1}}, {{2}}, {{6}}});  // mean 3, variance 14/3 biased and 7 unbiased
  const auto after = [&](const ek::RunningOptions& running) {
    ek::BatchNorm<float> norm(1, {}, running);
    norm.forward(ek::serial, x, y);
    CHECK(norm.running.num_batches_tracked == 1);
    return std::array{norm.running.mean()[0], norm.running.var()[0]};
  };
  const auto near = [](std::array<float, 2> got, double mean, double var) {
    CHECK(double(got[0]) == Approx(mean).epsilon(1e-6));
    CHECK(double(got[1]) == Approx(var).epsilon(1e-6));
  };
  near(after({}), 0.3, 0.9 + 0.7);
  near(after({.momentum = ek::NewWeight{1}}), 3, 7);
  near(after({.momentum = ek::Momentum::cumulative()}), 3, 7);
  near(after({.momentum = ek::OldWeight{0.99}}), 0.03, 0.99 + 0.07);
  near(after({.momentum = ek::NewWeight{0.1}, .variance = ek::RunningVariance::biased}), 0.3, 0.9 + 1.4 / 3);
  near(after(ek::Keras::running), 0.03, 0.99 + 0.14 / 3);
  near(after(ek::Torch::running), 0.3, 1.6);
}

TEST_CASE("InstanceNorm's running statistics take the mean over samples", "[norms][instance_norm]") {
  Rank3 x(2, 2, 4), y(2, 2, 4);
  x.setValues({{{1, 2, 3, 6}, {0, 0, 4, 4}}, {{5, 5, 7, 7}, {-2, 2, 2, 2}}});
  ek::InstanceNorm<float> norm(2, {}, {}, ek::Affine::off, ek::Tracking::on);
  norm.forward(ek::serial, x, y);
  CHECK(double(norm.running.mean()[0]) == Approx(0.45));
  CHECK(double(norm.running.mean()[1]) == Approx(0.15));
  CHECK(double(norm.running.var()[0]) == Approx(1.2));
  CHECK(double(norm.running.var()[1]) == Approx(1.3666666667));
}

TEST_CASE("ghost batches equal separate calls, masked data equal cut-out data", "[norms][batch_norm]") {
  const Channels p = channels<float>(6, 19, 11, 3);
  const Rank3 x = tensor(p.x, 6, 19, 11);
  Rank3 y(6, 19, 11), part_y(2, 19, 11);
  ek::BatchNorm<float> ghost(19, {.ghost = 2}), separate(19);
  ghost.forward(ek::serial, x, y);
  for (Eigen::Index g = 0; g < 3; ++g) {
    const Rank3 part = x.slice(Eigen::array<Eigen::Index, 3>{2 * g, 0, 0}, Eigen::array<Eigen::Index, 3>{2, 19, 11});
    separate.forward(ek::serial, part, part_y);
    const Rank3 of_ghost =
        y.slice(Eigen::array<Eigen::Index, 3>{2 * g, 0, 0}, Eigen::array<Eigen::Index, 3>{2, 19, 11});
    CHECK(same_bits(of_ghost, part_y));
  }
  CHECK(ghost.running.num_batches_tracked == 3);
  for (int c = 0; c < 19; ++c) {
    CHECK(ghost.running.mean()[c] == separate.running.mean()[c]);
    CHECK(ghost.running.var()[c] == separate.running.var()[c]);
  }

  // The last 3 positions are padding.
  Eigen::Tensor<bool, 2, Eigen::RowMajor> mask(6, 11);
  for (Eigen::Index n = 0; n < 6; ++n)
    for (Eigen::Index s = 0; s < 11; ++s) mask(n, s) = s < 8;
  const Rank3 cut = x.slice(Eigen::array<Eigen::Index, 3>{0, 0, 0}, Eigen::array<Eigen::Index, 3>{6, 19, 8});
  Rank3 cut_y(6, 19, 8), masked_y(6, 19, 11);
  ek::BatchNorm<float> whole(19), masked(19);
  whole.forward(ek::serial, cut, cut_y);
  masked.masked_forward(ek::serial, x, mask, masked_y);
  for (Eigen::Index n = 0; n < 6; ++n)
    for (Eigen::Index c = 0; c < 19; ++c)
      for (Eigen::Index s = 0; s < 11; ++s)
        CHECK(double(masked_y(n, c, s)) == Approx(s < 8 ? double(cut_y(n, c, s)) : 0.0).margin(1e-6));
  for (int c = 0; c < 19; ++c) CHECK(double(masked.running.var()[c]) == Approx(double(whole.running.var()[c])));
}

TEST_CASE("moments of micro-batches merge to those of the whole", "[norms][batch_norm]") {
  const Channels p = channels<float>(6, 3, 50, 13, 1e4, 1e-2);
  const Rank3 x = tensor(p.x, 6, 3, 50);
  Rank3 y(6, 3, 50), part_y(2, 3, 50);
  ek::BatchNormSaved<float> whole, part;
  ek::batch_norm(ek::serial, x, ek::none, ek::none, y, whole);
  for (Eigen::Index c = 0; c < 3; ++c) {
    ek::Moments<float> merged;
    for (Eigen::Index g = 0; g < 3; ++g) {
      const Rank3 third = x.slice(Eigen::array<Eigen::Index, 3>{2 * g, 0, 0}, Eigen::array<Eigen::Index, 3>{2, 3, 50});
      ek::batch_norm(ek::serial, third, ek::none, ek::none, part_y, part);
      merged = ek::merge(merged, part.moments(c));
    }
    CHECK(merged.count == 300);
    CHECK(double(merged.mean()) == Approx(double(whole.mean(c))).epsilon(1e-7));
    CHECK(double(merged.variance()) == Approx(double(whole.moments(c).variance())).epsilon(1e-5));
  }
}

TEST_CASE("a mask with nothing valid changes nothing but y and dx, which are 0", "[norms][batch_norm]") {
  Rank3 x(2, 3, 4), y(2, 3, 4), dx(2, 3, 4);
  x.setConstant(nan_of<float>());
  Eigen::Tensor<bool, 2, Eigen::RowMajor> mask(2, 4);
  mask.setConstant(false);
  ek::BatchNorm<float> norm(3);
  norm.masked_forward(ek::serial, x, mask, y);
  norm.masked_backward(ek::serial, x, x, mask, dx);
  for (Eigen::Index i = 0; i < y.size(); ++i) CHECK((y.data()[i] == 0 && dx.data()[i] == 0));
  CHECK(norm.running.num_batches_tracked == 0);
  CHECK(norm.running.mean()[0] == 0);
  CHECK(norm.running.var()[0] == 1);
  CHECK(norm.weight.gradient()[0] == 0);
}

TEST_CASE("an empty batch changes nothing", "[norms][batch_norm][group_norm]") {
  for (const auto& [n, s] : {std::pair<Eigen::Index, Eigen::Index>{0, 4}, {3, 0}}) {
    const Rank3 x(n, 6, s);
    Rank3 y(n, 6, s), dx(n, 6, s);
    ek::BatchNorm<float> norm(6);
    norm.forward(ek::serial, x, y);
    norm.weight.gradient()[0] = nan_of<float>();
    norm.backward(ek::serial, x, x, dx, ek::GradientMode::overwrite);
    CHECK(norm.weight.gradient()[0] == 0);
    CHECK(norm.running.num_batches_tracked == 0);
    CHECK(norm.running.mean()[0] == 0);
    ek::GroupNorm<float> group(6, {.groups = 3});
    group.forward(ek::serial, x, y);
    group.backward(ek::serial, x, x, dx);
    CHECK(group.weight.gradient()[0] == 0);
  }
}

TEST_CASE("one value per channel is an error that changes nothing", "[norms][batch_norm][instance_norm]") {
  Rank3 x(1, 3, 1), y(1, 3, 1);
  x.setConstant(2);
  y.setConstant(7);
  ek::BatchNorm<float> norm(3);
  CHECK_THROWS_WITH(norm.forward(ek::serial, x, y),
                    "forward: x has 1 value per channel, expected 2 or more in training (x is 1x3x1, axis 1)");
  Rank3 two(2, 3, 2), two_y(2, 3, 2);
  two.setConstant(2), two_y.setConstant(7);
  Eigen::Tensor<bool, 2, Eigen::RowMajor> mask(2, 2);
  mask.setConstant(false);
  mask(1, 1) = true;
  CHECK_THROWS_AS(norm.masked_forward(ek::serial, two, mask, two_y), ek::ShapeError);
  CHECK(two_y(0, 0, 0) == 7);
  CHECK(y(0, 0, 0) == 7);
  CHECK(norm.running.num_batches_tracked == 0);
  CHECK(norm.running.mean()[0] == 0);
  norm.training = false;
  norm.forward(ek::serial, x, y);
  CHECK(double(y(0, 1, 0)) == Approx(2 / std::sqrt(1 + 1e-5)));

  for (const Eigen::Index n : {1, 2, 10}) {
    Rank3 one(n, 3, 1), out(n, 3, 1);
    one.setConstant(1);
    ek::InstanceNorm<float> tracked(3, {}, {}, ek::Affine::off, ek::Tracking::on), plain(3);
    CHECK_THROWS_AS(plain.forward(ek::serial, one, out), ek::ShapeError);
    CHECK_THROWS_AS(tracked.forward(ek::serial, one, out), ek::ShapeError);
    CHECK(tracked.running.num_batches_tracked == 0);
    tracked.training = false;
    tracked.forward(ek::serial, one, out);
  }
}

TEST_CASE("wrong groups, ghosts, masks and saved are named", "[norms][group_norm][batch_norm]") {
  Rank3 x(4, 6, 5), y(4, 6, 5), dx(4, 6, 5);
  x.setRandom();
  using support::contains_text;
  ek::GroupNormSaved<float> saved;
  CHECK_THROWS_WITH(ek::group_norm(ek::serial, x, ek::none, ek::none, y, saved, {.groups = 4}),
                    "group_norm: 4 groups do not divide 6 channels (x is 4x6x5, axis 1)");
  for (const auto& [c, g] : {std::pair{6, 4}, {2, 4}, {4, 0}, {4, -2}, {0, 1}})
    CHECK_THROWS_AS(ek::GroupNorm<float>(c, {.groups = g}), ek::ShapeError);
  for (const auto& [c, g] : {std::pair{4, 2}, {6, 6}, {6, 1}, {1, 1}})
    CHECK_NOTHROW(ek::GroupNorm<float>(c, {.groups = g}));
  CHECK_THROWS_WITH(
      ek::group_norm(ek::serial, x, ek::none, ek::none, y, saved, {.groups = 2, .axis = 0, .sample_axis = -1}),
      contains_text("x (4x6x5) has axes between the channels and the samples"));
  ek::BatchNormSaved<float> batch;
  CHECK_THROWS_WITH(ek::batch_norm(ek::serial, x, ek::none, ek::none, y, batch, {.ghost = 3}),
                    contains_text("ghost batches of 3 samples do not divide the batch of 4"));
  Eigen::Tensor<bool, 2, Eigen::RowMajor> mask(4, 6);
  CHECK_THROWS_WITH(ek::masked_batch_norm(ek::serial, x, mask, ek::none, ek::none, y, batch),
                    contains_text("mask is 4x6, expected one value for each position of x"));
  ek::batch_norm<ek::Relu>(ek::serial, x, ek::none, ek::none, y, batch);
  CHECK_THROWS_WITH(ek::batch_norm_backward(ek::serial, y, x, ek::none, batch, dx, ek::none, ek::none),
                    contains_text("another activation"));
  const Rank3 other(4, 6, 4);
  CHECK_THROWS_WITH(
      ek::batch_norm_backward<ek::Relu>(ek::serial, other, other, ek::none, ek::none, batch, dx, ek::none, ek::none),
      contains_text("saved holds"));
  CHECK_THROWS_AS(ek::RunningStatistics<float>(3, {.momentum = ek::NewWeight{1.5}}), ek::ShapeError);
}

TEST_CASE("threads do not change a bit", "[norms][batch_norm][group_norm]") {
  const Channels p = channels<float>(8, 40, 33, 21);
  for (const bool last : {false, true}) {
    const ek::Axes axis = last ? -1 : 1;
    const Rank3 x = last ? tensor(p.x, 8, 33, 40) : tensor(p.x, 8, 40, 33);
    const Rank3 dy = last ? tensor(p.dy, 8, 33, 40) : tensor(p.dy, 8, 40, 33);
    const auto w = vector_of<float>(p.weight), b = vector_of<float>(p.bias);
    const auto run = [&](const auto& device, bool batch) {
      Rank3 y(x.dimensions()), dx(x.dimensions());
      Vector<float> dw = Vector<float>::Zero(40), db = dw;
      ek::ChannelNormSaved<float> saved;
      if (batch) {
        ek::batch_norm(device, x, w, b, y, saved, {.axis = axis});
        ek::batch_norm_backward(device, dy, x, w, saved, dx, dw, db);
      } else {
        ek::group_norm(device, x, w, b, y, saved, {.groups = 8, .axis = axis});
        ek::group_norm_backward(device, dy, x, w, saved, dx, dw, db);
      }
      return std::array{values_of(y), values_of(dx), values_of(dw), values_of(db)};
    };
    for (const bool batch : {false, true}) {
      const auto expected = run(Eigen::DefaultDevice(), batch);
      for (const int threads : {1, 2, 3, 8}) {
        Eigen::ThreadPool pool(threads);
        const Eigen::ThreadPoolDevice device(&pool, threads);
        CHECK(run(device, batch) == expected);
      }
    }
  }
}

TEST_CASE("values whose squares leave the range of float or double", "[norms][batch_norm][group_norm]") {
  const auto check = []<class T>(T, double scale, ek::Axes axis) {
    using Tensor = Eigen::Tensor<T, 3, Eigen::RowMajor>;
    const Channels p = channels<T>(3, 20, 20, 17);
    Tensor x(3, 20, 20), scaled(3, 20, 20), dy(3, 20, 20);
    for (Eigen::Index i = 0; i < x.size(); ++i) {
      x.data()[i] = T(p.x[std::size_t(i)]), dy.data()[i] = T(p.dy[std::size_t(i)]);
      scaled.data()[i] = x.data()[i];
    }
    // Every fourth channel only: its neighbours must not notice.
    const auto at = [&](Tensor& t, Eigen::Index n, Eigen::Index c, Eigen::Index s) -> T& {
      return axis.axis[0] == 1 ? t(n, c, s) : t(n, s, c);
    };
    for (Eigen::Index n = 0; n < 3; ++n)
      for (Eigen::Index c = 0; c < 20; c += 4)
        for (Eigen::Index s = 0; s < 20; ++s) at(scaled, n, c, s) *= T(scale);
    const auto run = [&](const Tensor& input, Tensor& y, Tensor& dx) {
      ek::BatchNormSaved<T> saved;
      Vector<T> dw = Vector<T>::Zero(20);
      ek::batch_norm(ek::serial, input, ek::none, ek::none, y, saved, {.eps = 0, .axis = axis});
      ek::batch_norm_backward(ek::serial, dy, input, ek::none, saved, dx, ek::none, ek::none);
    };
    Tensor y(3, 20, 20), dx(3, 20, 20), plain_y(3, 20, 20), plain_dx(3, 20, 20);
    run(x, plain_y, plain_dx);
    run(scaled, y, dx);
    for (Eigen::Index n = 0; n < 3; ++n)
      for (Eigen::Index c = 0; c < 20; ++c)
        for (Eigen::Index s = 0; s < 20; ++s) {
          const T wanted = at(plain_y, n, c, s), got = at(y, n, c, s);
          const double wanted_dx = double(at(plain_dx, n, c, s)), got_dx = double(at(dx, n, c, s));
          if (c % 4 != 0) {
            if (wanted != got || wanted_dx != got_dx) FAIL("channel " << c << " noticed its neighbour");
            continue;
          }
          const double epsilon = epsilon_of<T>();
          if (!(std::abs(double(got - wanted)) <= 40 * epsilon)) FAIL("y " << got << " for " << wanted);
          if (!(std::abs(got_dx * scale - wanted_dx) <= 40 * epsilon)) FAIL("dx " << got_dx << " for " << wanted_dx);
        }
    SUCCEED();
  };
  for (const ek::Axes axis : {ek::Axes(1), ek::Axes(-1)}) {
    for (const double scale : {0x1p66, 0x1p-70, 0x1p120}) check(1.0f, scale, axis);
    for (const double scale : {0x1p600, 0x1p-600}) check(1.0, scale, axis);
  }
}
