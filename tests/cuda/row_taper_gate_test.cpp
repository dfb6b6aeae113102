// A gate in a device's memory: a captured graph follows it, and its ends have the bits of a gate of the host's.
#include "cuda/device_layers.hpp"

using namespace cuda_test;

namespace {

// A step captured once, launched at each step of the schedule, beside a layer whose gate is a number of the host's.
template <template <class, class, class> class Layer>
void check_graph(const Placement& place) {
  const Index length = place.length;
  RowTensors<float, float> t(row_data<float, float>(place), place);
  // The gate is 1, about 0.3 and 0 in the end.
  const ek::TaperSchedule schedule{.warmup_steps = 1, .end_step = 1001};
  ek::CudaTaper taper(schedule);
  ek::Taper host(schedule);
  Layer<float, ek::CudaStorage, ek::CudaTaper> layer(length, taper);
  Layer<float, ek::CudaStorage, ek::Taper> plain(length, host);
  put_numbers(plain, 4);
  copy_parameters(plain, layer);
  layer.calibrate(0.7);
  plain.calibrate(0.7);
  layer.scale_weight.value()[0] = plain.scale_weight.value()[0] = 2;
  layer.saved.reserve(device, t.x.view());
  plain.saved.reserve(device, t.x.view());
  std::vector<emulator::Graph> graphs;
  for (const auto mode : {ek::GradientMode::accumulate, ek::GradientMode::overwrite}) {
    const auto made = calls_of([&] {
      graphs.emplace_back([&] {
        layer.add_forward(device, t.x.view(), t.second.view(), t.sum.view(), t.y.view());
        layer.add_backward(device, t.dy.view(), t.later.view(), t.sum.view(), t.dx.view(), mode);
      });
    });
    CHECK(made.second == Calls{});
  }
  const auto gradients_of = [](auto& of) {
    std::vector<Values> all;
    of.for_each_parameter([&](ek::ParameterRef<float> p) { all.emplace_back(p.gradient, p.gradient + p.size); });
    return all;
  };
  const auto results_now = [&](auto& of) {
    std::vector<Values> all{t.y.values(), t.dx.values()};
    for (const Values& gradient : gradients_of(of)) all.push_back(gradient);
    for (DeviceTensor<float>* tensor : {&t.y, &t.dx}) tensor->poison();
    return all;
  };
  for (const Index step : {0, 1, 632, 1001, 1002}) {
    while (taper.step() < step) {
      CHECK(calls_of([&] { taper.advance(device); }).second == Calls{{"cudaMemcpyAsync", 1}});
      host.advance();
    }
    for (const auto mode : {ek::GradientMode::accumulate, ek::GradientMode::overwrite}) {
      INFO(place.name << ", length " << length << ", gate " << host.gate() << ", mode " << int(mode));
      for (auto* parameter :
           {&layer.weight, &layer.scale_weight, &layer.bias, &plain.weight, &plain.scale_weight, &plain.bias})
        ek::CudaStorage::fill(parameter->gradient(), parameter->size(), 3.f);
      graphs[std::size_t(mode == ek::GradientMode::overwrite)].launch();
      const auto got = results_now(layer);
      plain.add_forward(device, t.x.view(), t.second.view(), t.sum.view(), t.y.view());
      plain.add_backward(device, t.dy.view(), t.later.view(), t.sum.view(), t.dx.view(), mode);
      const auto expected = results_now(plain);
      for (std::size_t k = 0; k < expected.size(); ++k) {
        INFO("result " << k);
        if (host.gate() == 0 || host.gate() == 1)
          CHECK(same_bits(got[k], expected[k]));
        else
          CHECK(distance(got[k].data(), expected[k].data(), Index(got[k].size())) < near);
      }
    }
  }
}

}  // namespace

TEST_CASE("a graph that was captured once follows a gate in the device's memory, with the bits of both ends",
          "[cuda][taper]") {
  use_order(Order::random);
  // Rows in lanes, in blocks, in clusters, and streamed.
  for (const Placement& place : {packed(9, 1), packed(9, 40), packed(2, 3000), packed(1, 17000), column_major(5, 40)}) {
    check_graph<ek::TaperRmsNorm>(place);
    check_graph<ek::TaperLayerNorm>(place);
  }
  CHECK(emulator::never_launched("detail/taper_gate_cuda.cuh").empty());
}

TEST_CASE("a layer with its gate in the device's memory calibrates, keeps a final norm, and comes back",
          "[cuda][taper]") {
  const ek::TaperSchedule schedule{.warmup_steps = 1, .end_step = 3};
  ek::CudaTaper taper(schedule), again_taper(schedule);
  using Layer = ek::TaperRmsNorm<float, ek::CudaStorage, ek::CudaTaper>;
  Layer layer(width, taper), again(width, again_taper), final_norm(width, taper, {.tapered = false});
  ek::RmsNorm<float, ek::CudaStorage> plain(width);
  for (Index step = 0; step < 5; ++step, taper.advance(device), again_taper.advance(device)) {
    INFO("step " << step);
    const Batch x{std::uint64_t(step)}, y(1), dx(1), y2(2), dx2(2);
    const auto run = [&](auto& norm, const Batch& to, const Batch& back) {
      norm.saved.reserve(device, x.map());
      norm.forward(device, x.map(), to.map());
      norm.backward(device, x.map(), x.map(), back.map());
    };
    if (step == 2) {
      again.restore(layer.state());
      copy_parameters(layer, again);
      again_taper.restore(device, taper.state());
    }
    run(layer, y, dx);
    if (step >= 2) {
      run(again, y2, dx2);
      CHECK(distance(y.map(), y2.map()) == 0);
      CHECK(distance(dx.map(), dx2.map()) == 0);
    }
    run(final_norm, y, dx);
    run(plain, y2, dx2);
    CHECK(distance(y.map(), y2.map()) == 0);
    CHECK(distance(dx.map(), dx2.map()) == 0);
    CHECK(calls_of([&] { final_norm.forward(device, x.map(), y.map()); }).first == 1);
  }
  CHECK(layer.denominator().count() == 1);
  CHECK(layer.calibrated());
  // The calibration asks the device for numbers, which a captured stream refuses.
  ek::CudaTaper late({.warmup_steps = 0, .end_step = 2});
  Layer uncalibrated(width, late);
  const Batch x(1), y(2);
  uncalibrated.saved.reserve(device, x.map());
  bool refused = false;
  const emulator::Graph graph([&] {
    try {
      uncalibrated.forward(device, x.map(), y.map());
    } catch (const ek::CudaError&) {
      refused = true;
    }
  });
  CHECK(refused);
}
