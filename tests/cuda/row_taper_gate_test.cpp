// A gate in a device's memory: a captured graph follows it, and its ends have the bits of a gate of the host's.
#include "cuda/device_layers.hpp"

#include <set>
#include <string>

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

// The gradients with respect to the gate and the factor, of rows at a place, against the CPU's.
template <bool Centres>
void check_gate_gradients(const Placement& place, double gate) {
  INFO(place.name << ", length " << place.length << ", gate " << gate << ", centred " << Centres);
  RowTensors<float, float> t(row_data<float, float>(place), place);
  DeviceArray<Eigen::bfloat16> weight(place.length);
  weight.put(row_data<float, Eigen::bfloat16>(place).weight);
  const auto of = [&](const auto& on, const auto& storage) {
    using Storage = std::remove_cvref_t<decltype(storage)>;
    std::conditional_t<Centres, ek::TaperLayerNormSaved<float, Storage>, ek::TaperRmsNormSaved<float, Storage>> saved;
    saved.reserve(on, t.x.view());
    const auto w = t.weight.map(), c = t.bias.map();
    if constexpr (Centres)
      ek::taper_layer_norm(on, t.x.view(), w, c, ek::none, t.y.view(), saved,
                           {.gate = gate, .factor = 0.7, .eps = 1e-5});
    else
      ek::taper_rms_norm(on, t.x.view(), w, c, ek::none, t.y.view(), saved, {.gate = gate, .factor = 0.7, .eps = 1e-5});
    ek::TaperGateSaved<Storage> to;
    to.reserve(on, t.x.view());
    ek::taper_gate_gradients(on, t.dy.view(), t.x.view(), w, c, saved, to);
    const auto both = to.gradients();
    ek::taper_gate_gradients(on, t.dy.view(), t.x.view(), weight.map(), ek::none, saved, to);
    return Values{both.gate, both.factor, to.gradients().gate, to.gradients().factor};
  };
  const Values expected = of(ek::serial, ek::HostStorage());
  Values first;
  for (const Order order : orders) {
    use_order(order);
    const Values got = of(device, ek::CudaStorage());
    // In double; what the terms add up to is no more than a few of dy * xhat each.
    for (std::size_t k = 0; k < got.size(); ++k)
      CHECK(std::abs(got[k] - expected[k]) <= 1e-15 * 16 * double(place.rows() * place.length));
    if (place.length > 1) CHECK((gate == 1) == (got[1] == 0));
    if (first.empty()) first = got;
    CHECK(got == first);
  }
}

}  // namespace

TEST_CASE("taper_gate_gradients on a device are those of the CPU", "[cuda][taper]") {
  for (const Placement& place : {packed(3, 1), packed(9, 37), packed(2, 700), column_major(5, 40), packed(20, 8)})
    for (const double gate : {0.0, 0.3, 1.0}) {
      check_gate_gradients<false>(place, gate);
      check_gate_gradients<true>(place, gate);
    }
  RowTensors<float, float> t(row_data<float, float>(packed(4, 9)), packed(4, 9));
  ek::TaperRmsNormSaved<float, ek::CudaStorage> saved;
  saved.reserve(device, t.x.view());
  ek::TaperGateSaved<ek::CudaStorage> to;
  const auto w = t.weight.map();
  const auto gradients = [&] { ek::taper_gate_gradients(device, t.dy.view(), t.x.view(), w, w, saved, to); };
  CHECK_THROWS_AS(gradients(), ek::ShapeError);  // no forward yet
  ek::taper_rms_norm(device, t.x.view(), w, w, ek::none, t.y.view(), saved);
  CHECK_THROWS_AS(gradients(), ek::CudaError);  // no room
  CHECK(to.gradients().gate == 0);
  CHECK(!emulator::never_launched("detail/taper_gate_cuda.cuh").contains("gate_sums_kernel"));
}

TEST_CASE("a graph that was captured once follows a gate in the device's memory, with the bits of both ends",
          "[cuda][taper]") {
  use_order(Order::random);
  // Rows in lanes, in blocks, in clusters, and streamed.
  for (const Placement& place : {packed(9, 1), packed(9, 40), packed(2, 3000), packed(1, 17000), column_major(5, 40)}) {
    check_graph<ek::TaperRmsNorm>(place);
    check_graph<ek::TaperLayerNorm>(place);
  }
  auto missing = emulator::never_launched("detail/taper_gate_cuda.cuh");
  missing.erase("gate_sums_kernel");  // of the test above
  CHECK(missing == std::set<std::string>{});
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
