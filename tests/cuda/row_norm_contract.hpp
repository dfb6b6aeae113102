// What a norm over rows promises beside its formula: sums that add up, rows that do not meet, errors before any work.
#pragma once

#include "cuda/row_norm_checks.hpp"

#include <cmath>
#include <vector>

namespace cuda_test {

// Gradients of parameters are added to what is there; the last kernels run for each kind of row pass.
template <class Norm, class T, class W>
void check_accumulation() {
  if (has_samples<Norm>) return;  // scale and shift are activations
  use_order(Order::random);
  for (const Index length : {7, 768, 1027}) {
    const Placement place = packed(9, length);
    const RowData data = data_for<Norm, T, W>(place);
    INFO((describe<Norm, T, W>(place, data)));
    RowTensors<T, W> t(data, place);
    for (DeviceArray<W>* array : {&t.dweight, &t.dbias, &t.dalpha, &t.dshift})
      array->put(std::vector<W>(array->get().size(), W(3)));
    const RunOptions options{.mode = ek::GradientMode::accumulate};
    const Results got = run<Norm>(ek::CudaStream(nullptr, small), t, options);
    Results expected = expected_of<Norm, T>(data, options);
    for (std::size_t k = 0; k < got.size(); ++k) {
      INFO(expected[k].name);
      for (std::size_t i = 0; expected[k].parameter && i < expected[k].values.size(); ++i) {
        expected[k].values[i] += 3;
        expected[k].magnitude[i] += 3;
      }
      CHECK((worst_error<T, W>(got[k], expected[k])) <= 1);
    }
  }
}

// Without rows there is nothing to read; sums over no rows are 0.
template <class Norm, class T, class W>
void check_zero_rows() {
  const Placement place = packed(0, 33);
  RowTensors<T, W> t(data_for<Norm, T, W>(place), place);
  for (const Result& result : run<Norm>(ek::CudaStream(nullptr, small), t, {}))
    for (const double value : result.values) CHECK(value == 0);
  if (has_samples<Norm>) return;
  t.dweight.put(std::vector<W>(33, W(3)));
  run<Norm>(ek::CudaStream(nullptr, small), t, {.mode = ek::GradientMode::accumulate});
  for (const double value : t.dweight.values()) CHECK(value == 3);
}

// A NaN ruins its own row and no other.
template <class Norm, class T, class W>
void check_isolation() {
  use_order(Order::random);
  for (const Index length : {7, 33, 96, 768, 1027, 8200}) {
    const Placement place = packed(6, length);
    RowData data = data_for<Norm, T, W>(place);
    INFO((describe<Norm, T, W>(place, data)));
    RowTensors<T, W> t(data, place);
    const Results clean = run<Norm>(ek::CudaStream(nullptr, small), t, {});
    for (const Index at : {Index(0), length / 2, length - 1}) {
      Values x = data.x;
      x[std::size_t(2 * length + at)] = NAN;
      t.x.put(x);
      const Results got = run<Norm>(ek::CudaStream(nullptr, small), t, {});
      for (std::size_t k = 0; k < got.size(); ++k) {
        if (clean[k].values.size() != x.size()) continue;  // sums over rows
        INFO(clean[k].name << ", NaN at " << at);
        CHECK(std::isnan(got[k].values[std::size_t(2 * length + at)]));
        for (Index r = 0; r < 6; ++r) {
          const auto row = [&](const Values& v) {
            return Values(v.begin() + r * length, v.begin() + (r + 1) * length);
          };
          if (r != 2) CHECK(same_bits(row(got[k].values), row(clean[k].values)));
        }
      }
    }
  }
}

// What may not be done throws before any work.
template <class Norm, class T, class W>
void check_errors() {
  const Placement place = packed(6, 33);
  const RowData data = data_for<Norm, T, W>(place);
  RowTensors<T, W> t(data, place);
  const ek::CudaStream device(nullptr, small);
  typename Norm::template Saved<ek::accumulator_t<T>, ek::CudaStorage> saved;
  const auto nothing_written = [&] {
    for (const DeviceTensor<T>* tensor : {&t.y, &t.sum, &t.dx, &t.dsecond}) CHECK(tensor->untouched());
    for (const DeviceArray<W>* array : {&t.dweight, &t.dbias, &t.dalpha, &t.dshift}) CHECK(array->untouched());
  };
  CHECK_THROWS_AS(Norm::forward(device, t, t.y, saved, {}), ek::CudaError);
  nothing_written();
  saved = {};
  CHECK_THROWS_AS(Norm::backward(device, t, t.dx, saved, {}), ek::ShapeError);
  nothing_written();
  reserve(saved, device, t);
  for (const Placement& wrong : {packed(6, 34), packed(5, 33)}) {
    const DeviceTensor<T> other(wrong);
    CHECK_THROWS_AS(Norm::forward(device, t, other, saved, {}), ek::ShapeError);
    CHECK(other.untouched());
  }
  nothing_written();
  const auto launches = [] { return emulator::record().calls["cudaLaunchKernelEx"]; };
  Norm::forward(device, t, t.y, saved, {});
  const int before = launches();
  for (const Placement& wrong : {packed(6, 34), packed(5, 33)}) {
    const DeviceTensor<T> other(wrong);
    CHECK_THROWS_AS(Norm::backward(device, t, other, saved, {}), ek::ShapeError);
    CHECK(other.untouched());
  }
  saved.scratch = {};
  t.dx.poison();
  CHECK_THROWS_AS(Norm::backward(device, t, t.dx, saved, {}), ek::CudaError);
  CHECK(t.dx.untouched());
  CHECK(launches() == before);
}

template <class Norm, class T, class W>
void check_contract() {
  if (build != Build::plain) return;  // no kernel that check_widths() would not run
  check_accumulation<Norm, T, W>();
  check_zero_rows<Norm, T, W>();
  check_isolation<Norm, T, W>();
  check_errors<Norm, T, W>();
}

// round_normalized: xhat is rounded before it meets the weight. Only where xhat lies close to the middle of two numbers
// may the last bit differ from the formula's; round_once differs from it often.
template <class Norm, class T, class W>
void check_rounding() {
  use_order(Order::random);
  for (const Index length : {31, 768, 4096}) {
    const Placement place = packed(6, length);
    RowData data = data_for<Norm, T, W>(place);
    data.bias.assign(data.bias.size(), 0);
    INFO((describe<Norm, T, W>(place, data)));
    RowTensors<T, W> t(data, place);
    const ek::CudaStream device(nullptr, small);
    const Values once = run<Norm>(device, t, {})[0].values;
    const Values got = run<Norm>(device, t, {.rounding = ek::Rounding::round_normalized})[0].values;
    const reference::Options options{1e-5, false, [](double v) { return double(static_cast<T>(v)); }};
    const Values expected = Norm::rounded(data, options);
    std::size_t equal = 0, differ = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      equal += got[i] == double(static_cast<T>(expected[i]));
      differ += got[i] != once[i];
    }
    CHECK(double(equal) >= 0.99 * double(got.size()));
    CHECK(double(differ) >= 0.1 * double(got.size()));
  }
}

}  // namespace cuda_test
