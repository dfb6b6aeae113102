// TaperNorm's layers, FakeLN and the scale anchor in a device's memory: their whole lives beside those on the CPU, and
// what their calls ask of CUDA.
#include "cuda/device_layers.hpp"
#include "evenkeel/residual/post_norm.hpp"
#include "evenkeel/residual/pre_norm.hpp"
#include "residual/sublayers.hpp"

using namespace cuda_test;

namespace {

template <template <class, class, class> class Layer>
void check_life() {
  const ek::TaperSchedule schedule{.warmup_steps = 3, .end_step = 6};
  for (const Index saved_at : {1, 3, 5, 7}) {
    use_order(Order::random, std::uint64_t(saved_at));
    ek::Taper taper(schedule, 0.1), again_taper(schedule, 0.1);
    Layer<float, ek::HostStorage, ek::Taper> cpu(width, taper);
    Layer<float, ek::CudaStorage, ek::Taper> cuda(width, taper), again(width, again_taper);
    put_numbers(cpu, 5);
    copy_parameters(cpu, cuda);
    for (Index step = 0; step < 9; ++step) {
      INFO("step " << step);
      const Batch x(std::uint64_t(step), 0.5 + double(step)), dy(std::uint64_t(100 + step)), y(1), dx(1), y2(2), dx2(2);
      cpu.forward(ek::serial, x.map(), y.map());
      cpu.backward(ek::serial, dy.map(), x.map(), dx.map());
      cuda.saved.reserve(device, x.map());
      if (step == schedule.warmup_steps) {
        // The host is told c.
        CHECK(!cuda.calibrated());
        CHECK(calls_of([&] { cuda.calibrate(); }).second["cudaDeviceSynchronize"] == 2);
      }
      const auto forward = calls_of([&] { cuda.forward(device, x.map(), y2.map()); });
      const auto backward = calls_of([&] { cuda.backward(device, dy.map(), x.map(), dx2.map()); });
      CHECK(forward.first == 1);
      CHECK(backward.first == (step < schedule.warmup_steps ? 3 : 2));
      CHECK(forward.second == Calls{});
      CHECK(backward.second == Calls{});
      CHECK(distance(y.map(), y2.map()) < near);
      CHECK(distance(dx.map(), dx2.map()) < near);
      cpu.for_each_parameter([&](ek::ParameterRef<float> p) {
        cuda.for_each_parameter([&](ek::ParameterRef<float> q) {
          if (p.name == q.name) CHECK(distance(p.gradient, q.gradient, width) < 4 * near);
        });
      });
      CHECK(cuda.numerator().count() == std::min<Index>(step + 1, 3));
      CHECK(cuda.numerator().value() == Approx(cpu.numerator().value()).epsilon(1e-5));
      CHECK(cuda.denominator().value() == Approx(cpu.denominator().value()).epsilon(1e-5));
      CHECK(cuda.factor() == Approx(cpu.factor()).epsilon(1e-5));
      if (step >= saved_at) {
        if (step == saved_at) again_taper.restore(taper.state());
        const Batch y3(3), dx3(3);
        again.saved.reserve(device, x.map());
        again.forward(device, x.map(), y3.map());
        again.backward(device, dy.map(), x.map(), dx3.map());
        CHECK(distance(y2.map(), y3.map()) == 0);
        CHECK(distance(dx2.map(), dx3.map()) == 0);
        descend(again);
        again_taper.advance();
      }
      descend(cpu);
      descend(cuda);
      copy_parameters(cpu, cuda);
      if (step >= saved_at) copy_parameters(cpu, again);
      taper.advance();
      if (step + 1 == saved_at) {
        again.restore(cuda.state());
        copy_parameters(cuda, again);
      }
    }
    const ek::AffineMap map = cuda.linear_map(), expected = cpu.linear_map();
    CHECK(distance(map.scale.data(), expected.scale.data(), width) < near);
    CHECK(map.offset == expected.offset);
  }
}

}  // namespace

TEST_CASE("tapered layers live in a device's memory as on the CPU, from warmup to linear map", "[cuda][taper]") {
  check_life<ek::TaperRmsNorm>();
  check_life<ek::TaperLayerNorm>();
  CHECK(emulator::never_launched("detail/row_means_cuda.cuh").empty());
}

namespace {

// The same block with a norm and activations in the device's memory and in the host's.
template <template <class, class, class, class> class Block, template <class, class, class> class Layer>
void check_block() {
  for (const Index step : {0, 631, 1000}) {
    ek::Taper taper({.warmup_steps = 0, .end_step = 1000});
    for (Index t = 0; t < step; ++t) taper.advance();
    INFO("gate " << taper.gate());
    using Tanh = residual_test::Tanh<float>;
    using Host = Layer<float, ek::HostStorage, ek::Taper>;
    using Device = Layer<float, ek::CudaStorage, ek::Taper>;
    Host host_norm(width, taper);
    Device device_norm(width, taper);
    put_numbers(host_norm, 8);
    copy_parameters(host_norm, device_norm);
    host_norm.calibrate(0.7);
    device_norm.calibrate(0.7);
    Tanh tanh(width);
    put_numbers(tanh, 3);
    const auto run = [&](const auto& on, auto block) {
      const Batch x(1), dy(2), y(3), dx(4);
      block.reserve(on, x.map());
      const auto made = calls_of([&] {
        block.forward(on, x.map(), y.map());
        block.backward(on, dy.map(), x.map(), dx.map());
      });
      CHECK(made.second == Calls{});
      std::vector<Values> results{y.memory.values(), dx.memory.values()};
      block.for_each_parameter(
          [&](ek::ParameterRef<float> p) { results.emplace_back(p.gradient, p.gradient + p.size); });
      return results;
    };
    const auto on_cpu = run(ek::serial, Block<Host, Tanh, float, ek::HostStorage>(std::move(host_norm), tanh));
    const auto on_cuda = run(device, Block<Device, Tanh, float, ek::CudaStorage>(std::move(device_norm), tanh));
    for (std::size_t k = 0; k < on_cpu.size(); ++k)
      CHECK(distance(on_cpu[k].data(), on_cuda[k].data(), Index(on_cpu[k].size())) < near);
  }
}

}  // namespace

TEST_CASE("pre-norm and post-norm blocks take tapered layers in a device's memory", "[cuda][taper]") {
  check_block<ek::PreNorm, ek::TaperRmsNorm>();
  check_block<ek::PostNorm, ek::TaperRmsNorm>();
  check_block<ek::PostNorm, ek::TaperLayerNorm>();
}

TEST_CASE("a fused residual sum on a device: plain at gate 1, without statistics at gate 0, one pass",
          "[cuda][taper]") {
  const Placement place = packed(5, 96);
  const RowData data = row_data<float, float>(place);
  RowTensors<float, float> t(data, place);
  ek::TaperRmsNormSaved<float, ek::CudaStorage> saved;
  ek::RmsNormSaved<float, ek::CudaStorage> plain_saved;
  saved.reserve(device, t.x.view());
  plain_saved.reserve(device, t.x.view());
  const auto w = t.weight.map(), c = t.bias.map();
  const auto add = [&](double gate) {
    const auto made = calls_of([&] {
      ek::add_taper_rms_norm(device, t.x.view(), t.second.view(), w, c, ek::none, t.sum.view(), t.y.view(), saved,
                             {.gate = gate, .factor = 0.75});
    });
    CHECK(made.first == 1);
    CHECK(made.second == Calls{});
    ek::add_taper_rms_norm_backward(device, t.dy.view(), t.later.view(), t.sum.view(), w, c, saved, t.dx.view(),
                                    t.dweight.map(), t.dbias.map(), ek::none, ek::GradientMode::overwrite);
    return std::vector<Values>{t.sum.values(), t.y.values(), t.dx.values(), t.dweight.values()};
  };
  const auto at_one = add(1);
  ek::add_rms_norm(device, t.x.view(), t.second.view(), w, t.sum.view(), t.y.view(), plain_saved);
  ek::add_rms_norm_backward(device, t.dy.view(), t.later.view(), t.sum.view(), w, plain_saved, t.dx.view(),
                            t.dweight.map(), ek::GradientMode::overwrite);
  const std::vector<Values> plain{t.sum.values(), t.y.values(), t.dx.values(), t.dweight.values()};
  for (std::size_t k = 0; k < plain.size(); ++k) CHECK(same_bits(at_one[k], plain[k]));

  const auto mixed = add(0.3);
  ek::taper_rms_norm(device, t.sum.view(), w, c, ek::none, t.y.view(), saved, {.gate = 0.3, .factor = 0.75});
  CHECK(same_bits(mixed[0], plain[0]));
  CHECK(same_bits(mixed[1], t.y.values()));

  ek::CudaStorage::fill(saved.statistics.data(), 5, 99.f);
  const auto at_zero = add(0);
  CHECK(*saved.statistics.data() == 99.f);
  for (std::size_t i = 0; i < at_zero[0].size(); ++i) {
    const double expected = 0.75 * at_zero[0][i] * data.bias[i % 96];
    CHECK(std::abs(at_zero[1][i] - expected) < 4 * 6e-8 * std::abs(expected));
    CHECK(std::abs(at_zero[2][i] - (0.75 * data.dy[i] * data.bias[i % 96] + data.later[i])) < near);
  }
}

TEST_CASE("a tapered layer in a device's memory calibrates itself, and says what it cannot calibrate from",
          "[cuda][taper]") {
  ek::Taper taper({.warmup_steps = 1, .end_step = 2});
  ek::TaperRmsNorm<float, ek::CudaStorage> layer(width, taper);
  const Batch x(1), y(2);
  layer.saved.reserve(device, x.map());
  layer.forward(device, x.map(), y.map());
  layer.backward(device, x.map(), x.map(), y.map());
  layer.backward(device, x.map(), x.map(), y.map());  // a batch counts once
  CHECK(layer.denominator().count() == 1);
  taper.advance();
  layer.forward(device, x.map(), y.map());
  CHECK(layer.calibrated());
  CHECK(layer.scale_weight.host_values() == layer.weight.host_values());

  ek::Taper other({.warmup_steps = 1, .end_step = 2});
  ek::TaperRmsNorm<float, ek::CudaStorage> spoilt(width, other);
  x.map()(2, 3) = INFINITY;
  spoilt.saved.reserve(device, x.map());
  spoilt.forward(device, x.map(), y.map());
  spoilt.backward(device, x.map(), x.map(), y.map());
  CHECK_THROWS_AS(spoilt.calibrate(), ek::StateError);
  ek::TaperRmsNorm<float, ek::CudaStorage> fresh(width, other);
  CHECK_THROWS_AS(fresh.calibrate(), ek::StateError);
  fresh.observe(3, 4);
  fresh.calibrate();
  CHECK(fresh.factor() == Approx(0.75).epsilon(1e-12));
}

TEST_CASE("the scale anchor on a device equals that on the CPU", "[cuda][taper]") {
  std::size_t turn = 0;
  for (const ek::ScaleKind kind : {ek::ScaleKind::rms, ek::ScaleKind::sigma})
    for (const Index length : {1, 7, 96, 1027, 8200, 40960}) {
      use_order(orders[turn % orders.size()]);
      const auto all = placements(length, turn);
      const Placement& place = turn % 2 == 0 ? all[0] : all[1 + turn / 2 % (all.size() - 1)];
      ++turn;
      INFO(place.name << ", " << place.rows() << " x " << length << ", kind " << int(kind));
      const RowData data = row_data<float, float>(place);
      RowTensors<float, float> t(data, place), host(data, place);
      const ek::ScaleAnchorOptions options{.lambda = 3, .target = 1.2, .kind = kind, .eps = 1e-3};
      ek::ScaleAnchorSaved<float> cpu;
      ek::ScaleAnchorSaved<float, ek::CudaStorage> cuda;
      CHECK_THROWS_AS(ek::scale_anchor_loss(device, t.x.view(), t.dy.view(), cuda, options), ek::CudaError);
      cuda.reserve(device, t.x.view());
      const double expected = ek::scale_anchor_loss(ek::serial, host.x.view(), host.dy.view(), cpu, options);
      const double* loss = nullptr;
      const auto made = calls_of([&] { loss = ek::scale_anchor_loss(device, t.x.view(), t.dy.view(), cuda, options); });
      CHECK(made.first == 2);
      CHECK(made.second == Calls{});
      CHECK(*loss == Approx(expected).epsilon(1e-5));
      const Values dh = host.dy.values(), got = t.dy.values();
      double apart = 0, worst = 0;
      for (std::size_t i = 0; i < dh.size(); ++i) {
        apart += std::abs(dh[i] - data.dy[i]);
        worst = std::max(worst, std::abs(got[i] - dh[i]) / (1 + std::abs(dh[i])));
      }
      CHECK(worst < 1e-6);
      if (length > 1 || kind == ek::ScaleKind::rms) CHECK(apart > 0.1);
      CHECK(t.dy.gaps_untouched());
      CHECK(*ek::scale_mean(device, t.x.view(), cuda, options) ==
            Approx(ek::scale_mean(ek::serial, host.x.view(), cpu, options)).epsilon(1e-5));
      CHECK(t.x.values() == data.x);
    }
}

TEST_CASE("a ScaleAnchor in a device's memory averages, freezes, holds and comes back", "[cuda][taper]") {
  ek::Taper taper({.warmup_steps = 3, .end_step = 5}, 0.2);
  const ek::ScaleAnchorOptions options{.lambda = 5, .kind = ek::ScaleKind::sigma};
  ek::ScaleAnchor<float> cpu(taper, options);
  ek::ScaleAnchor<float, ek::CudaStorage> cuda(taper, options), again(taper, options);
  for (int step = 0; step < 7; ++step, taper.advance()) {
    INFO("step " << step);
    const Batch h(std::uint64_t(step), 1 + step), dh(5), dh2(5), dh3(5);
    cuda.reserve(device, h.map());
    again.reserve(device, h.map());
    if (step == 2 || step == 4) again.restore(cuda.state());
    if (step == 3) cuda.freeze();
    const double expected = cpu.add(ek::serial, h.map(), dh.map());
    const double* loss = nullptr;
    CHECK(calls_of([&] { loss = cuda.add(device, h.map(), dh2.map()); }).second == Calls{});
    CHECK(*loss == Approx(expected).epsilon(1e-5));
    CHECK((*loss > 0) == (step >= 3));
    CHECK(distance(dh.map(), dh2.map()) < near);
    CHECK(cuda.scale().count() == cpu.scale().count());
    CHECK(cuda.target() == Approx(cpu.target()).epsilon(1e-5));
    if (step < 2) continue;
    CHECK(*again.add(device, h.map(), dh3.map()) == *loss);
    CHECK(distance(dh2.map(), dh3.map()) == 0);
  }
  // Without rows there is no loss, and no batch.
  const Matrix nothing(nullptr, 0, width);
  CHECK(*cuda.add(device, nothing, Matrix(nothing)) == 0);
  ek::Taper fresh({.warmup_steps = 3, .end_step = 5});
  ek::ScaleAnchor<float, ek::CudaStorage> empty(fresh);
  empty.reserve(device, nothing);
  CHECK(*empty.add(device, nothing, Matrix(nothing)) == 0);
  CHECK(empty.scale().empty());
  CHECK_THROWS_AS(empty.freeze(), ek::StateError);
}

TEST_CASE("FakeLayerNorm in a device's memory is LayerNorm, then a fixed map, and comes back", "[cuda][taper]") {
  ek::FakeLayerNorm<float> cpu(width, {.rate = 0.3});
  ek::FakeLayerNorm<float, ek::CudaStorage> cuda(width, {.rate = 0.3}), again(width, {.rate = 0.3});
  put_numbers(cpu, 3);
  copy_parameters(cpu, cuda);
  copy_parameters(cpu, again);
  for (int step = 0; step < 6; ++step) {
    INFO("step " << step);
    const Batch x(std::uint64_t(step), 1 + step), dy(9), y(1), dx(1), y2(2), dx2(2);
    if (step == 0) CHECK_THROWS_AS(cuda.forward(device, x.map(), y2.map()), ek::CudaError);
    cuda.reserve(device, x.map());
    cpu.forward(ek::serial, x.map(), y.map());
    cpu.backward(ek::serial, dy.map(), x.map(), dx.map());
    const auto made = calls_of([&] {
      cuda.forward(device, x.map(), y2.map());
      cuda.backward(device, dy.map(), x.map(), dx2.map());
    });
    CHECK(made.second == Calls{});
    CHECK(made.first == (cuda.frozen() ? 3 : 4));
    CHECK(distance(y.map(), y2.map()) < near);
    CHECK(distance(dx.map(), dx2.map()) < near);
    CHECK(distance(cpu.real.weight.gradient(), cuda.real.weight.gradient(), width) < 8 * near);
    CHECK(distance(cpu.real.bias.gradient(), cuda.real.bias.gradient(), width) < 8 * near);
    CHECK(cuda.sigma().count() == std::min(step + 1, 3));
    CHECK(cuda.sigma().value() == Approx(cpu.sigma().value()).epsilon(1e-5));
    if (step == 2) {
      again.restore(cuda.state());
      cpu.freeze();
      cuda.freeze();
      again.freeze();
      CHECK(again.average() == cuda.average());
    }
  }
  CHECK(distance(cuda.linear_map().scale.data(), cpu.linear_map().scale.data(), width) < near);
  const Batch x(1), y(2);
  ek::PreNorm<ek::FakeLayerNorm<float, ek::CudaStorage>, residual_test::Tanh<float>, float, ek::CudaStorage> block(
      std::move(cuda), residual_test::Tanh<float>(width));
  block.reserve(device, x.map());
  block.forward(device, x.map(), y.map());
  CHECK(y.map().allFinite());
}
