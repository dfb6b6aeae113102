// What every norm over rows must show on a CUDA device, whatever its formula.
#pragma once

#include "cuda/builds.hpp"
#include "cuda/row_norms.hpp"
#include "support/catch.hpp"
#include "support/tolerance.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace cuda_test {

// Fewer multiprocessors than any device has, so that few rows are more than the grid has blocks.
inline constexpr ek::CudaFacts small{1, 232448, 90};
inline constexpr ek::CudaFacts without_clusters{1, 101376, 80};

// One width for each kind of kernel: narrow and full accesses; lanes, blocks of 256 and more, clusters, streams.
inline const std::vector<Index> kernel_widths = build == Build::thread
                                                    ? std::vector<Index>{7, 96, 1027, 8200, 17000}
                                                    : std::vector<Index>{7, 96, 768, 1027, 4096, 8200, 40960};
// Both sides of every border between plans, for some type.
inline const std::vector<Index> widths =
    build == Build::plain ? std::vector<Index>{1,    7,    31,   33,   96,   127,  200,   255,   768,  1000,
                                               1026, 1027, 2048, 4096, 4099, 8200, 16384, 32769, 40960}
                          : kernel_widths;

// Grids that loop over short rows; few long ones, since the emulator is slow, and few where a block has one row however
// short that is.
inline Index rows_for(Index length, std::size_t turn) {
  if (length <= 96) return build != Build::plain ? 66 : length <= 7 ? 600 : 132;
  return length < 8000 && turn % 3 == 0 ? 9 : turn % 3 == 1 ? 3 : 1;
}
inline std::vector<Placement> placements(Index length, std::size_t turn) {
  const Index rows = rows_for(length, turn), few = std::min<Index>(rows, 21), samples = few % 3 == 0 ? 3 : 1;
  return {packed(rows, length),
          shifted(rows, length),
          channels(samples, length, few / samples),
          odd_pitch(rows, length),
          heads(rows % 3 == 0 ? 3 : 1, rows % 3 == 0 ? rows / 3 : rows, length),
          shifted_by_two(rows, length),
          column_major(few, length),
          wide_pitch(rows, length)};
}

// Whether the norm's parameters differ from sample to sample.
template <class Norm>
inline constexpr bool has_samples = requires(Placement place) {
  Norm::samples(place);
};

template <class Norm, class T, class W>
RowData data_for(const Placement& place) {
  if constexpr (has_samples<Norm>)
    return row_data<T, W>(place, Norm::samples(place));
  else
    return row_data<T, W>(place);
}

template <class Saved, class Device, class Tensors>
void reserve(Saved& saved, const Device& device, const Tensors& t) {
  if constexpr (requires { saved.samples; })
    saved.reserve(device, t.x.view(), t.samples);
  else
    saved.reserve(device, t.x.view());
}

template <class Norm, class Device, class T, class W>
void run(const Device& device, RowTensors<T, W>& t, const DeviceTensor<T>& y, const DeviceTensor<T>& dx,
         const RunOptions& options) {
  typename Norm::template Saved<ek::accumulator_t<T>, StorageOf<Device>> saved;
  reserve(saved, device, t);
  Norm::forward(device, t, y, saved, options);
  Norm::backward(device, t, dx, saved, options);
}
template <class Norm, class Device, class T, class W>
Results run(const Device& device, RowTensors<T, W>& t, const RunOptions& options) {
  for (DeviceTensor<T>* tensor : {&t.y, &t.sum, &t.dx, &t.dsecond}) tensor->poison();
  if (options.mode == ek::GradientMode::overwrite)
    for (DeviceArray<W>* array : {&t.dweight, &t.dbias, &t.dalpha, &t.dshift}) array->poison();
  run<Norm>(device, t, t.y, t.dx, options);
  return Norm::results(t);
}

// By the digits: Eigen 3.4 gives the epsilon of half as 2^-13.
template <class S, class A>
double store_error(double value) {
  if (std::is_same_v<S, A>) return 0;
  return std::ldexp(value, -std::numeric_limits<S>::digits) + 0.5 * double(std::numeric_limits<S>::denorm_min());
}

// The largest error in units of what it may be: tolerance() for the computation, and one rounding where the result is
// stored in a narrower type.
template <class T, class W>
double worst_error(const Result& got, const Result& expected, double scale = 1) {
  using A = ek::accumulator_t<T>;
  if (got.values.size() != expected.values.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    const double error = std::abs(got.values[i] - expected.values[i]);
    if (error == 0) continue;
    if (!(error < INFINITY)) return INFINITY;
    const double computed =
        scale * support::tolerance(expected.summed, expected.magnitude[i], double(std::numeric_limits<A>::epsilon()));
    const double size = std::abs(expected.values[i]) + computed;
    worst = std::max(
        worst, error / (computed + scale * (expected.parameter ? store_error<W, A>(size) : store_error<T, A>(size))));
  }
  return worst;
}

template <class Norm, class T>
Results expected_of(const RowData& data, const RunOptions& options) {
  if constexpr (requires { Norm::template expected_of<T>(data, options); })
    return Norm::template expected_of<T>(data, options);
  else
    return Norm::expected(data, options);
}

inline bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

template <class Norm, class T, class W>
std::string describe(const Placement& place, const RowData& d) {
  return std::string(Norm::name) + ", " + place.name + ", " + std::to_string(d.rows) + " x " +
         std::to_string(d.length) + ", scalars of " + std::to_string(sizeof(T)) + " and " + std::to_string(sizeof(W)) +
         " bytes";
}

// Forward and backward at one place against the reference; what is not the tensors' own stays.
template <class Norm, class T, class W>
void check_case(const Placement& place, const RunOptions& options = {}, const ek::CudaFacts& facts = small) {
  const RowData data = data_for<Norm, T, W>(place);
  INFO((describe<Norm, T, W>(place, data)));
  RowTensors<T, W> t(data, place);
  const Results got = run<Norm>(ek::CudaStream(nullptr, facts), t, options),
                expected = expected_of<Norm, T>(data, options);
  REQUIRE(got.size() == expected.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    INFO(expected[k].name);
    CHECK((worst_error<T, W>(got[k], expected[k])) <= 1);
  }
  for (const DeviceTensor<T>* tensor : {&t.y, &t.sum, &t.dx, &t.dsecond}) CHECK(tensor->gaps_untouched());
}

// dx in the memory of dy, then y in that of x, give the bits of apart.
template <class Norm, class T, class W>
void check_in_place(const Placement& place, const ek::CudaFacts& facts = small) {
  const RowData data = data_for<Norm, T, W>(place);
  INFO((describe<Norm, T, W>(place, data)));
  const ek::CudaStream device(nullptr, facts);
  RowTensors<T, W> t(data, place);
  const Results apart = run<Norm>(device, t, {});
  run<Norm>(device, t, t.y, t.dy, {});
  CHECK(same_bits(t.dy.values(), apart[1].values));
  t.dy.put(data.dy);
  typename Norm::template Saved<ek::accumulator_t<T>, ek::CudaStorage> saved;
  reserve(saved, device, t);
  Norm::forward(device, t, t.x, saved, {});
  CHECK(same_bits(t.x.values(), apart[0].values));
}

// Strided rows that are neighbours: fewer than a tile of 32 has, more, and such as lie in several samples; at places that
// are not aligned, and on a device with fewer blocks than tiles.
template <class Norm, class T, class W>
void check_across(const std::vector<Index>& lengths, Index rows) {
  std::size_t turn = 0;
  for (const Index length : lengths)
    for (const Placement& at : {column_major(8, length), column_major(rows, length), channels(3, length, 11)}) {
      if (length > 8000 && at.rows() > 8) continue;
      Placement place = at;
      place.offset = Index(turn % 3);
      use_order(orders[turn++ % orders.size()]);
      check_case<Norm, T, W>(place, {}, {1, 232448, 90});
      if (length < 500) check_in_place<Norm, T, W>(place);
    }
}

// Every width, each in another order, packed and at one other place in turn. With one place a width, types but float
// take every second width.
template <class Norm, class T, class W>
void check_widths(std::size_t places = 1) {
  const std::size_t step = build == Build::plain && places == 1 && !std::is_same_v<T, float> ? 2 : 1;
  std::size_t turn = 0;
  for (std::size_t w = sizeof(T) / 2 % step; w < widths.size(); w += step) {
    // 17000 is long enough for a cluster, but for the smallest types.
    const Index length = build != Build::plain && sizeof(T) > 2 ? std::min<Index>(widths[w], 17000) : widths[w];
    for (std::size_t k = 0; k < places; ++k) {
      const auto all = placements(length, turn);
      const Placement& place = all[turn % 2 == 0 ? 0 : 1 + turn / 2 % (all.size() - 1)];
      use_order(orders[turn % orders.size()], turn + 1);
      check_case<Norm, T, W>(place, {.unit_offset = turn / 2 % 2 == 1});
      if (length < 8000 && turn % 3 == 0) check_in_place<Norm, T, W>(place);
      ++turn;
    }
  }
}

// The CPU's results on the same memory, which the emulator's device shares with it. What a sanitizer would see of the CPU
// is not the matter here, and its compilation takes long.
template <class Norm, class T, class W>
void compare_with_cpu() {
  use_order(Order::random);
  for (const Index length : {1, 7, 200, 1027, 4096}) {
    for (const Placement& place : {packed(6, length), column_major(6, length), column_major(40, length)}) {
      if (place.rows() > 6 && length > 1100) continue;
      const RowData data = data_for<Norm, T, W>(place);
      INFO((describe<Norm, T, W>(place, data)));
      RowTensors<T, W> t(data, place);
      const Results on_cpu = run<Norm>(ek::serial, t, {}), on_cuda = run<Norm>(ek::CudaStream(nullptr, small), t, {});
      Results expected = expected_of<Norm, T>(data, {});
      for (std::size_t k = 0; k < expected.size(); ++k) {
        INFO(expected[k].name);
        expected[k].values = on_cpu[k].values;
        CHECK((worst_error<T, W>(on_cuda[k], expected[k], 2)) <= 1);
      }
    }
  }
}

template <class Norm, class T, class W>
void check_against_cpu() {
  if constexpr (build == Build::plain) compare_with_cpu<Norm, T, W>();
}

// Results do not depend on who runs when. layer_norm and dyt show it for each kind of kernel.
template <class Norm, class T, class W>
void check_bits(const std::vector<Index>& lengths = {7, 96, 1027, 8200}) {
  if (build != Build::plain) return;  // no fault of memory that check_widths() would not have
  for (const Index length : lengths) {
    const Index rows = length <= 96 ? 132 : length < 8000 ? 5 : length < 10000 ? 3 : 1;
    for (const Placement& place : {packed(rows, length), column_major(3, length)}) {
      if (place.stride > 1 && length != 96) continue;
      const RowData data = data_for<Norm, T, W>(place);
      INFO((describe<Norm, T, W>(place, data)));
      RowTensors<T, W> t(data, place);
      use_order(Order::forward);
      const Results first = run<Norm>(ek::CudaStream(nullptr, small), t, {});
      for (const Order order : {Order::forward, Order::reverse, Order::random, Order::skew})
        for (const std::uint64_t seed : {1, 2}) {
          use_order(order, seed);
          const Results again = run<Norm>(ek::CudaStream(nullptr, small), t, {});
          for (std::size_t k = 0; k < first.size(); ++k) {
            INFO(first[k].name << ", order " << int(order) << ", seed " << seed);
            CHECK(same_bits(first[k].values, again[k].values));
          }
        }
    }
  }
}

}  // namespace cuda_test
