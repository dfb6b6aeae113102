#pragma once

// Benchmarks that time an operation and a reference in turns, so that a noisy machine disturbs both alike. The time
// that Google Benchmark shows is the operation's; the counters are medians of the ratios of neighbouring timings.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace paired {

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <class F>
double seconds(const F& f, int repeats) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) {
    f();
    benchmark::ClobberMemory();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repeats;
}

/// Runs `operation`, which moves `bytes`, and `reference` in turns. The counter `name` is how many times as fast as the
/// reference the operation is.
template <class Operation, class Reference>
void run(benchmark::State& state, double bytes, const char* name, const Operation& operation,
         const Reference& reference) {
  // Long enough for the clock, short enough that both see the same machine.
  const int repeats = std::max(1, static_cast<int>(2e-4 / std::max(seconds(operation, 3), 1e-9)));
  std::vector<double> ratios;
  seconds(reference, repeats);
  for (auto _ : state) {
    const double reference_time = seconds(reference, repeats), time = seconds(operation, repeats);
    state.SetIterationTime(time);
    ratios.push_back(reference_time / time);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes * static_cast<double>(state.iterations())));
  state.counters[name] = median(ratios);
}

}  // namespace paired
