// BatchNorm, GroupNorm and InstanceNorm on a device: shapes, layouts, schedules.
#include "cuda/channel_checks.hpp"

using namespace cuda_test;

TEMPLATE_TEST_CASE("channel norms on a device equal the reference", "[cuda][batch_norm]", (Types<float, float>),
                   (Types<Eigen::bfloat16, float>)) {
  check_shapes<typename TestType::Data, typename TestType::Parameter>();
}

TEST_CASE("groups, instances and ghost batches on a device equal the reference", "[cuda][group_norm]") {
  using T = Eigen::bfloat16;
  for (Order order : {Order::first, Order::last, Order::scattered})
    for (const auto& [C, S] : {std::pair<std::size_t, std::size_t>{12, 5}, {48, 1}, {64, 16}, {24, 49}}) {
      if (slow && C * S > 60) continue;
      for (std::size_t groups : Counts{1, 3, 4, 12}) {
        if (C % groups != 0 || (C == groups && S == 1)) continue;
        Channels p = channels<T>(5, C, S);
        p.groups = groups, p.ghost = 1;
        check<T, float>(p, {.order = order, .norm = Norm::group});
      }
      Channels p = channels<T>(6, C, S);
      p.ghost = 2;
      check<T, float>(p, {.order = order});
      p.ghost = 1;
      if (S > 1) check<T, float>(p, {.order = order, .norm = Norm::instance});
    }
}

TEST_CASE("cells of many parts equal the reference", "[cuda][batch_norm]") {
  if (slow) return;
  using T = float;
  for (Order order : {Order::first, Order::last, Order::scattered}) {
    check<T, T>(channels<T>(3, 2, 70001), {.order = order, .facts = {1, 232448, 90}});
    check<T, T>(channels<T>(2, 8, 30000), {.order = order, .facts = {16, 232448, 90}});
  }
  Channels p = channels<T>(2, 4, 40000);
  p.ghost = 1, p.groups = 2;
  for (Order order : {Order::first, Order::last}) check<T, T>(p, {.order = order, .norm = Norm::group});
  // Plans that these shapes must have.
  using namespace ek::detail;
  CHECK(plan_channels({1, 2, 210003, ChannelLayout::along, 1, false}, {1, 232448, 90}).parts > 3);
  CHECK(plan_channels({1, 2, 210003, ChannelLayout::across, 2, false}, {1, 232448, 90}).parts > 3);
}

TEST_CASE("misaligned tensors equal the reference", "[cuda][batch_norm]") {
  using T = Eigen::bfloat16;
  for (Order order : {Order::first, Order::last})
    for (std::size_t before : Counts{1, 2, 4}) {
      if (slow && before > 1) continue;
      const Channels p = channels<T>(3, 16, 24);
      check<T, float>(p, {.order = order, .before_x = before});
      check<T, float>(p, {.order = order, .before_y = before});
      check<T, float>(p, {.order = order, .before_dy = before});
      check<T, float>(p, {.order = order, .before_dx = before});
      check<T, float>(p, {.order = order, .before_weight = before});
    }
}

TEST_CASE("channel norms on a device work in place and accumulate", "[cuda][batch_norm]") {
  using T = float;
  for (Order order : {Order::first, Order::last, Order::scattered}) {
    const Channels p = channels<T>(3, 12, 20);
    check<T, T>(p, {.order = order, .x_in_place = true});
    check<T, T>(p, {.order = order, .dy_in_place = true});
    check<T, T>(p, {.order = order, .accumulates = true});
  }
}

TEST_CASE("results on a device do not depend on the schedule", "[cuda][batch_norm]") {
  const emulator::Options before = emulator::options();
  for (Order order : {Order::first, Order::last}) {
    std::vector<Outputs> results;
    for (emulator::Order schedule :
         {emulator::Order::forward, emulator::Order::reverse, emulator::Order::random, emulator::Order::skew})
      for (std::uint64_t seed : {1, 2}) {
        emulator::options() = before;
        emulator::options().order = schedule;
        emulator::options().seed = seed;
        emulator::options().resident = unsigned(seed) * 2;
        Channels p = channels<float>(3, 20, slow ? 30 : 1500, 3, 2.0);
        results.push_back(
            run_on_device<float, float, ek::Identity, false, false>(p, {.order = order, .facts = {16, 232448, 90}}));
      }
    for (const Outputs& other : results) {
      CHECK(other.y == results[0].y);
      CHECK(other.dx == results[0].dx);
      CHECK(other.dweight == results[0].dweight);
      CHECK(other.dbias == results[0].dbias);
      CHECK(other.moments == results[0].moments);
    }
  }
  emulator::options() = before;
}

TEST_CASE("channels do not see their neighbours on a device", "[cuda][batch_norm]") {
  // A channel of NaN, and an outlier that makes its block read again, change no bit of the other channels.
  for (Order order : {Order::first, Order::last}) {
    Channels p = channels<float>(2, 16, 50);
    const Outputs before = run_on_device<float, float, ek::Identity, false, false>(p, {.order = order});
    for (std::size_t s = 0; s < p.S; ++s) p.x[p.at(0, 3, s)] = NAN;
    p.x[p.at(0, 4, 0)] = 1e6;
    const Outputs after = run_on_device<float, float, ek::Identity, false, false>(p, {.order = order});
    for (std::size_t c = 0; c < p.C; ++c) {
      if (c == 3 || c == 4) continue;
      CHECK(before.dweight[c] == after.dweight[c]);
      CHECK(before.y[p.at(1, c, 7)] == after.y[p.at(1, c, 7)]);
      CHECK(before.dx[p.at(1, c, 7)] == after.dx[p.at(1, c, 7)]);
    }
    CHECK(std::isnan(after.y[p.at(1, 3, 7)]));
  }
}

TEST_CASE("positions on three levels, with gaps between them, equal the reference", "[cuda][batch_norm]") {
  const ek::CudaStream device(nullptr, {16, 232448, 90});
  for (const bool across : {false, true})
    for (std::size_t S : Counts{4, 20, slow ? 24 : 3000}) {
      const std::size_t C = 4, outer = 2, middle = 3, pitch = C * S + 4, slab = middle * pitch + 8;
      const Channels p = channels<float>(outer * middle, C, S);
      const auto place = [&](std::size_t n, std::size_t c, std::size_t s) {
        return n / middle * slab + n % middle * pitch + (across ? s * C + c : c * S + s);
      };
      const auto spread = [&](const Values& values) {
        Values memory((outer - 1) * slab + (middle - 1) * pitch + C * S, NAN);
        for (std::size_t n = 0; n < p.N; ++n)
          for (std::size_t c = 0; c < C; ++c)
            for (std::size_t s = 0; s < S; ++s) memory[place(n, c, s)] = values[p.at(n, c, s)];
        return memory;
      };
      DeviceMemory<float> x(spread(p.x)), dy(spread(p.dy)), y(x.size()), dx(x.size()), dweight(C), weight(p.weight);
      const auto view = [&](DeviceMemory<float>& memory) {
        return ek::AxisView<float>{.data = memory.data(),
                                   .outer = {Index(outer), Index(middle)},
                                   .outer_stride = {Index(slab), Index(pitch)},
                                   .length = Index(C),
                                   .stride = across ? 1 : Index(S),
                                   .inner = Index(S),
                                   .inner_stride = across ? Index(C) : 1};
      };
      using Parameter = Eigen::Map<Eigen::Array<float, Eigen::Dynamic, 1>>;
      ek::BatchNormSaved<float, ek::CudaStorage> saved;
      const Parameter w(weight.data(), Index(C));
      saved.reserve(device, view(x));
      ek::batch_norm(device, view(x), w, ek::none, view(y), saved);
      ek::batch_norm_backward(device, view(dy), view(x), w, saved, view(dx), Parameter(dweight.data(), Index(C)),
                              ek::none, ek::GradientMode::overwrite);
      Channels without_bias = p;
      without_bias.bias.clear();
      const ChannelResult expected = reference::channel_norm(without_bias);
      const auto gathered = [&](const Values& memory) {
        Values values(p.size());
        std::size_t written = 0;
        for (std::size_t n = 0; n < p.N; ++n)
          for (std::size_t c = 0; c < C; ++c)
            for (std::size_t s = 0; s < S; ++s) values[p.at(n, c, s)] = memory[place(n, c, s)];
        for (const double value : memory) written += !std::isnan(value);
        CHECK(written == p.size());  // the gaps stay as they were
        return values;
      };
      CHECK(worst_error<float, float>(gathered(y.values()), expected.y, expected.y_magnitude, expected.summed) <= 1);
      CHECK(worst_error<float, float>(gathered(dx.values()), expected.dx, expected.dx_magnitude, expected.summed) <= 1);
      CHECK(worst_error<float, float>(dweight.values(), expected.dweight, expected.dweight_magnitude, p.N * S) <= 1);
    }
}
