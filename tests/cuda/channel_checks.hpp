#pragma once

// BatchNorm, GroupNorm and InstanceNorm on a CUDA device, against their formulas in long double.

#include "cuda/device_memory.hpp"
#include "support/catch.hpp"
#include "support/channel_reference.hpp"
#include "support/data.hpp"
#include "support/shapes.hpp"
#include "support/tolerance.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace cuda_test {

namespace ek = evenkeel;
using ek::Index;
using reference::Act;
using reference::ChannelResult;
using reference::Channels;
using support::Counts;
using Values = std::vector<double>;

// Where element (n, c, s) lies: N,C,space; N,space,C; or with samples fastest, where no access has neighbours.
enum class Order { first, last, scattered };
enum class Norm { batch, group, instance };

inline std::size_t place(const Channels& p, Order order, std::size_t n, std::size_t c, std::size_t s) {
  if (order == Order::first) return (n * p.C + c) * p.S + s;
  if (order == Order::last) return (n * p.S + s) * p.C + c;
  return n + p.N * (c + p.C * s);
}
inline Values in_memory(const Channels& p, Order order, const Values& values) {
  Values memory(values.size());
  for (std::size_t n = 0; n < p.N && !values.empty(); ++n)
    for (std::size_t c = 0; c < p.C; ++c)
      for (std::size_t s = 0; s < p.S; ++s) memory[place(p, order, n, c, s)] = values[p.at(n, c, s)];
  return memory;
}
inline Values logical(const Channels& p, Order order, const Values& memory) {
  Values values(memory.size());
  for (std::size_t n = 0; n < p.N; ++n)
    for (std::size_t c = 0; c < p.C; ++c)
      for (std::size_t s = 0; s < p.S; ++s) values[p.at(n, c, s)] = memory[place(p, order, n, c, s)];
  return values;
}

template <class T>
Channels channels(std::size_t N, std::size_t C, std::size_t S, std::uint64_t seed = 1, double mean = 0.25,
                  double spread = 1.5) {
  Channels p;
  p.N = N, p.C = C, p.S = S, p.ghost = N, p.groups = C;
  p.x = support::normal<T>(p.size(), seed, mean, spread);
  p.dy = support::normal<T>(p.size(), seed + 1);
  p.weight = support::normal<T>(C, seed + 2, 0.5);
  p.bias = support::normal<T>(C, seed + 3);
  return p;
}
// Every third position of a sample is padding, and holds what must not be seen.
inline void add_mask(Channels& p) {
  p.mask.assign(p.N * p.S, 1);
  for (std::size_t i = 0; i < p.mask.size(); i += 3) {
    p.mask[i] = 0;
    for (std::size_t c = 0; c < p.C; ++c)
      p.x[p.at(i / p.S, c, i % p.S)] = p.dy[p.at(i / p.S, c, i % p.S)] = i % 2 ? NAN : 1e4;
  }
}

// How a case is run, beside its data.
struct Run {
  Order order = Order::first;
  Norm norm = Norm::batch;
  bool x_in_place = false, residual_in_place = false, dy_in_place = false;
  std::size_t before_x = 0, before_y = 0, before_dy = 0, before_dx = 0, before_weight = 0;  // elements: misaligned
  bool accumulates = false;
  ek::CudaFacts facts{4, 232448, 90};
};

struct Outputs {
  Values y, dx, dresidual, dweight, dbias, moments, statistics;
};

// The axes of a case, and what the spec says of them.
template <class T, class F>
void with_tensor(const Channels& p, Order order, T* data, const F& f) {
  const auto N = Index(p.N), C = Index(p.C), S = Index(p.S);
  if (order == Order::first) return f(Eigen::TensorMap<Eigen::Tensor<T, 3, Eigen::RowMajor>>(data, N, C, S));
  if (order == Order::last) return f(Eigen::TensorMap<Eigen::Tensor<T, 3, Eigen::RowMajor>>(data, N, S, C));
  f(Eigen::TensorMap<Eigen::Tensor<T, 3>>(data, N, C, S));
}

inline ek::detail::ChannelSpec spec_of(const Channels& p, const Run& run) {
  const int axis = run.order == Order::last ? 2 : 1;
  if (run.norm == Norm::group)
    return ek::detail::group_norm_spec("test", {.groups = Index(p.groups), .eps = p.eps, .axis = axis});
  if (run.norm == Norm::instance) return ek::detail::instance_norm_spec({.eps = p.eps, .axis = axis});
  return ek::detail::batch_norm_spec({.eps = p.eps, .axis = axis, .ghost = p.ghost == p.N ? 0 : Index(p.ghost)});
}

// All that a forward and a backward write, on the device. Residual and Masked choose the code, Activation is p's.
template <class T, class P, class Activation, bool Residual, bool Masked>
Outputs run_on_device(const Channels& p, const Run& run) {
  using A = ek::accumulator_t<T>;
  const ek::CudaStream device(nullptr, run.facts);
  const Order order = run.order;
  DeviceMemory<T> x(in_memory(p, order, p.x), run.before_x), dy(in_memory(p, order, p.dy), run.before_dy);
  DeviceMemory<T> residual(in_memory(p, order, p.residual)), own_y(p.size(), run.before_y),
      own_dx(p.size(), run.before_dx), dresidual(p.residual.size());
  DeviceMemory<P> weight(p.weight, run.before_weight), bias(p.bias), dweight(p.C), dbias(p.C);
  if (run.accumulates)
    for (std::size_t c = 0; c < p.C; ++c) dweight.data()[c] = dbias.data()[c] = P(1);
  Values mask_memory(p.mask.size());  // one value for each position, in the order of the positions
  for (std::size_t n = 0; n < p.N && Masked; ++n)
    for (std::size_t s = 0; s < p.S; ++s)
      mask_memory[order == Order::scattered ? n + p.N * s : n * p.S + s] = p.mask[n * p.S + s];
  DeviceMemory<unsigned char> mask(mask_memory);

  using Parameter = Eigen::Map<Eigen::Array<P, Eigen::Dynamic, 1>>;
  const Parameter w(weight.data(), Index(p.C)), b(bias.data(), Index(p.C));
  Parameter dw(dweight.data(), Index(p.C)), db(dbias.data(), Index(p.C));
  ek::ChannelNormSaved<A, ek::CudaStorage> saved;
  Outputs out;
  const auto with_mask = [&](const auto& f) {
    if constexpr (!Masked)
      f(ek::none);
    else if (order == Order::scattered)
      f(Eigen::TensorMap<Eigen::Tensor<unsigned char, 2>>(mask.data(), Index(p.N), Index(p.S)));
    else
      f(Eigen::TensorMap<Eigen::Tensor<unsigned char, 2, Eigen::RowMajor>>(mask.data(), Index(p.N), Index(p.S)));
  };
  with_tensor(p, order, x.data(), [&](auto x_map) {
    using Map = decltype(x_map);
    const auto map = [&](T* data) { return Map(data, x_map.dimensions()); };
    auto residual_map = map(residual.data());
    auto y_map = run.x_in_place ? x_map : run.residual_in_place ? residual_map : map(own_y.data());
    auto dx_map = map(run.dy_in_place ? dy.data() : own_dx.data());
    auto dresidual_map = map(dresidual.data());
    const auto spec = spec_of(p, run);
    saved.reserve_for(device, x_map, spec);
    with_mask([&](const auto& mask_map) {
      ek::None nothing;
      const auto forward = [&](const auto& added) {
        ek::detail::channel_norm<Activation>("test", device, x_map, added, mask_map, w, b, y_map, saved, spec);
      };
      const auto backward = [&](const auto& added, auto& dadded) {
        ek::detail::channel_norm_backward<Activation>(
            "test", device, map(dy.data()), x_map, added, mask_map, w, b, saved, dx_map, dadded, dw, db,
            run.accumulates ? ek::GradientMode::accumulate : ek::GradientMode::overwrite);
      };
      if constexpr (Residual)
        forward(residual_map);
      else
        forward(ek::none);
      out.y = logical(p, order, DeviceMemory<T>::read(y_map.data(), p.size()));
      if (run.x_in_place || run.residual_in_place) return;
      if constexpr (Residual)
        backward(residual_map, dresidual_map);
      else
        backward(ek::none, nothing);
      out.dx = logical(p, order, DeviceMemory<T>::read(dx_map.data(), p.size()));
      if (Residual) out.dresidual = logical(p, order, dresidual.values());
    });
  });
  out.dweight = dweight.values();
  out.dbias = dbias.values();
  const auto sets = std::size_t(saved.samples() * saved.groups());
  out.moments = DeviceMemory<double>::read(saved.moments_data(), 4 * sets);
  out.statistics = DeviceMemory<A>::read(saved.statistics.data(), 3 * sets);
  return out;
}

// Of one store, at most. Eigen 3.4's numeric_limits of half are wrong.
template <class T>
inline constexpr double rounding = 0;
template <>
inline constexpr double rounding<Eigen::half> = 0x1p-11;
template <>
inline constexpr double rounding<Eigen::bfloat16> = 0x1p-8;

// The largest error in units of what is allowed: rounding in A on the way, and once more where T is stored.
template <class Stored, class A>
double worst_error(const Values& got, const Values& exact, const Values& magnitude, std::size_t summed) {
  if (got.size() != exact.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - exact[i]);
    if (error == 0) continue;
    if (!(error < INFINITY)) return INFINITY;
    double allowed = support::tolerance(summed, magnitude[i], double(std::numeric_limits<A>::epsilon()));
    if (!std::is_same_v<Stored, A>) allowed += std::abs(exact[i]) * rounding<Stored> + 3e-8;  // half's last denormal
    worst = std::max(worst, error / allowed);
  }
  return worst;
}

template <class T, class P, class Activation = ek::Identity, bool Residual = false, bool Masked = false>
Outputs check(Channels p, const Run& run) {
  using A = ek::accumulator_t<T>;
  static constexpr const char* orders[] = {"N,C,space", "N,space,C", "samples fastest"};
  INFO(orders[int(run.order)] << ", " << p.N << " x " << p.C << " x " << p.S << ", ghost " << p.ghost << ", groups "
                              << p.groups << ", residual " << Residual << ", mask " << Masked << ", scalar of "
                              << sizeof(T) << " bytes");
  p.activation = std::is_same_v<Activation, ek::Relu> ? Act::relu : Act::identity;
  Outputs got = run_on_device<T, P, Activation, Residual, Masked>(p, run);
  const ChannelResult expected = reference::channel_norm(p);
  CHECK(worst_error<T, A>(got.y, expected.y, expected.y_magnitude, expected.summed) <= 1);
  if (!run.x_in_place && !run.residual_in_place) {
    CHECK(worst_error<T, A>(got.dx, expected.dx, expected.dx_magnitude, expected.summed) <= 1);
    if (run.accumulates)
      for (std::size_t c = 0; c < p.C; ++c) got.dweight[c] -= 1, got.dbias[c] -= 1;
    CHECK(worst_error<P, A>(got.dweight, expected.dweight, expected.dweight_magnitude, p.N * p.S) <= 1);
    CHECK(worst_error<P, A>(got.dbias, expected.dbias, expected.dbias_magnitude, p.N * p.S) <= 1);
    if (Residual) {
      Values size(p.size());
      for (std::size_t i = 0; i < size.size(); ++i) size[i] = std::abs(p.dy[i]) * (1 + expected.y_magnitude[i]);
      CHECK(worst_error<T, A>(got.dresidual, expected.dresidual, size, expected.summed) <= 1);
    }
  }
  const double epsilon = double(std::numeric_limits<A>::epsilon());
  const std::size_t sets = p.N / p.ghost * p.groups;
  REQUIRE(got.moments.size() == 4 * sets);
  double mean_error = 0, variance_error = 0;
  for (std::size_t i = 0; i < sets; ++i) {
    const double count = got.moments[i], mean = got.moments[sets + i] + got.moments[2 * sets + i],
                 variance = count > 0 ? got.moments[3 * sets + i] / count : 0;
    if (count != expected.count[i]) FAIL_CHECK("set " << i << " has count " << count);
    const double spread = std::sqrt(expected.variance[i]);
    mean_error = std::max(
        mean_error, std::abs(mean - expected.mean[i]) / support::tolerance(expected.summed, spread + 1e-30, epsilon));
    variance_error =
        std::max(variance_error, std::abs(variance - expected.variance[i]) /
                                     support::tolerance(expected.summed, spread * spread + 1e-30, epsilon));
  }
  CHECK(mean_error <= 1);
  CHECK(variance_error <= 1);
  return got;
}

template <class T, class P>
struct Types {
  using Data = T;
  using Parameter = P;
};

inline constexpr bool slow = emulator::thread_sanitizer;

// Every awkward number of channels and positions.
template <class T, class P>
void check_shapes() {
  for (Order order : {Order::first, Order::last})
    for (std::size_t C : Counts{1, 3, 7, 8, 31, 33, 64, 100})
      for (std::size_t S : Counts{1, 5, 49, 1000})
        if (C * S < (slow ? 400 : 64000)) check<T, P>(channels<T>(3, C, S, C + S), {.order = order});
  check<T, P>(channels<T>(3, 5, 7), {.order = Order::scattered});
}

}  // namespace cuda_test
