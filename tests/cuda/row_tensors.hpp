// The numbers and tensors of one forward and backward of a norm over rows.
#pragma once

#include "cuda/device_tensor.hpp"
#include "support/data.hpp"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace cuda_test {

struct RunOptions {
  double eps = 1e-5;
  bool unit_offset = false;
  ek::Rounding rounding = ek::Rounding::round_once;
  ek::GradientMode mode = ek::GradientMode::overwrite;
};

// Numbers that the types hold exactly. `second` is a residual or a gate, `later` the gradient from the sum's later uses.
struct RowData {
  Index rows, length, samples;
  Values x, second, dy, later;  // (rows, length)
  Values weight, bias;          // (samples, length); one sample but for adaptive norms
  double alpha = 0.5, shift = -0.25;

  reference::Slab slab() const { return {std::size_t(rows), std::size_t(length), 1}; }
};

// The middle and the last element stand out, so that a sum that misses one is seen in a long row too.
template <class T, class W>
RowData row_data(const Placement& place, Index samples = 1, double mean = 0.25, double spread = 1.5) {
  const auto n = std::size_t(place.length), size = std::size_t(place.rows()) * n;
  const std::uint64_t seed = size * 7 + n;
  RowData d{place.rows(),
            place.length,
            samples,
            support::normal<T>(size, seed, mean, spread),
            support::normal<T>(size, seed + 1, -0.5, 1.5),
            support::normal<T>(size, seed + 2),
            support::normal<T>(size, seed + 3),
            support::normal<W>(std::size_t(samples) * n, seed + 4, 0.5),
            support::normal<W>(std::size_t(samples) * n, seed + 5)};
  for (std::size_t r = 0; r < size && n > 8; r += n)
    for (const std::size_t i : {n / 2, n - 1}) {
      d.x[r + i] = double(static_cast<T>(mean + 5 * spread));
      d.dy[r + i] = 4;
    }
  return d;
}

// Storage that a device's functions take.
template <class Device>
using StorageOf = std::conditional_t<ek::CpuDevice<Device>, ek::HostStorage, ek::CudaStorage>;

// The tensors of one forward and backward. Results are poisoned at first.
template <class T_, class W_>
struct RowTensors {
  using T = T_;
  using W = W_;
  using A = ek::accumulator_t<T>;
  using Matrix = Eigen::Map<Eigen::Array<W, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

  RowTensors(const RowData& data, const Placement& place)
      : x(place),
        second(place),
        dy(place),
        later(place),
        y(place),
        sum(place),
        dx(place),
        dsecond(place),
        weight(data.samples * data.length),
        bias(data.samples * data.length),
        dweight(data.samples * data.length),
        dbias(data.samples * data.length),
        alpha(1),
        shift(1),
        dalpha(1),
        dshift(1),
        samples(data.samples),
        length(data.length) {
    x.put(data.x);
    second.put(data.second);
    dy.put(data.dy);
    later.put(data.later);
    weight.put(scalars(data.weight));
    bias.put(scalars(data.bias));
    alpha.put(scalars({data.alpha}));
    shift.put(scalars({data.shift}));
  }
  static std::vector<W> scalars(const Values& values) { return support::as<W>(values); }
  Matrix by_sample(const DeviceArray<W>& array) const { return {array.data(), samples, length}; }

  DeviceTensor<T> x, second, dy, later, y, sum, dx, dsecond;
  DeviceArray<W> weight, bias, dweight, dbias, alpha, shift, dalpha, dshift;
  Index samples, length;
};

// A result: what it must be, what its terms add up to, how many numbers were summed on the way, and in which type it is
// stored.
struct Result {
  const char* name;
  Values values, magnitude = {};
  std::size_t summed = 0;
  bool parameter = false;  // stored as parameters are, not as data
};
using Results = std::vector<Result>;

}  // namespace cuda_test
