// What norms over channels must show in every layout: called for each of them by its own test.
#pragma once

#include "norms/norm_under_test.hpp"
#include "support/channel_reference.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

namespace norms_test {

using reference::Act;
using reference::ChannelResult;
using reference::Channels;

// Where element (n, c, s) lies, and how the library is told.
template <class T>
struct ChannelsFirst {  // N, C, space
  using Tensor = Eigen::Tensor<T, 3, Eigen::RowMajor>;
  using Mask = Eigen::Tensor<bool, 2, Eigen::RowMajor>;
  static constexpr int axis = 1, sample_axis = 0;
  static constexpr const char* name = "N,C,space";
  static Tensor make(const Channels& p) { return Tensor(p.N, p.C, p.S); }
  static T& at(Tensor& t, std::size_t n, std::size_t c, std::size_t s) { return t(n, c, s); }
  static Mask mask(const Channels& p) {
    Mask m(p.N, p.S);
    for (std::size_t n = 0; n < p.N; ++n)
      for (std::size_t s = 0; s < p.S; ++s) m(n, s) = p.valid(n, s);
    return m;
  }
};
template <class T>
struct ChannelsLast {  // N, space, C
  using Tensor = Eigen::Tensor<T, 3, Eigen::RowMajor>;
  using Mask = Eigen::Tensor<float, 3, Eigen::RowMajor>;
  static constexpr int axis = -1, sample_axis = 0;
  static constexpr const char* name = "N,space,C";
  static Tensor make(const Channels& p) { return Tensor(p.N, p.S, p.C); }
  static T& at(Tensor& t, std::size_t n, std::size_t c, std::size_t s) { return t(n, s, c); }
  static Mask mask(const Channels& p) {
    Mask m(p.N, p.S, 1);
    for (std::size_t n = 0; n < p.N; ++n)
      for (std::size_t s = 0; s < p.S; ++s) m(n, s, 0) = p.valid(n, s) ? 1.0f : 0.0f;
    return m;
  }
};
template <class T>
struct ColumnMajor {  // space, C, N with space fastest: the same memory as N,C,space
  using Tensor = Eigen::Tensor<T, 3>;
  using Mask = Eigen::Tensor<double, 2>;
  static constexpr int axis = 1, sample_axis = -1;
  static constexpr const char* name = "column-major space,C,N";
  static Tensor make(const Channels& p) { return Tensor(p.S, p.C, p.N); }
  static T& at(Tensor& t, std::size_t n, std::size_t c, std::size_t s) { return t(s, c, n); }
  static Mask mask(const Channels& p) {
    Mask m(p.S, p.N);
    for (std::size_t n = 0; n < p.N; ++n)
      for (std::size_t s = 0; s < p.S; ++s) m(s, n) = p.valid(n, s);
    return m;
  }
};
template <class T>
struct SamplesFastest {  // N, C, space column-major: no reduced axis of one sample is contiguous
  using Tensor = Eigen::Tensor<T, 3>;
  using Mask = Eigen::Tensor<float, 2>;
  static constexpr int axis = 1, sample_axis = 0;
  static constexpr const char* name = "column-major N,C,space";
  static Tensor make(const Channels& p) { return Tensor(p.N, p.C, p.S); }
  static T& at(Tensor& t, std::size_t n, std::size_t c, std::size_t s) { return t(n, c, s); }
  static Mask mask(const Channels& p) {
    Mask m(p.N, p.S);
    for (std::size_t n = 0; n < p.N; ++n)
      for (std::size_t s = 0; s < p.S; ++s) m(n, s) = p.valid(n, s) ? 1.0f : 0.0f;
    return m;
  }
};

template <class Layout>
auto tensor_of(const Channels& p, const Values& values) {
  auto t = Layout::make(p);
  using T = std::remove_cvref_t<decltype(*t.data())>;
  for (std::size_t n = 0; n < p.N; ++n)
    for (std::size_t c = 0; c < p.C; ++c)
      for (std::size_t s = 0; s < p.S; ++s)
        Layout::at(t, n, c, s) = values.empty() ? nan_of<T>() : static_cast<T>(values[p.at(n, c, s)]);
  return t;
}
template <class Layout, class Tensor>
Values logical(const Channels& p, Tensor& t) {
  Values v(p.size());
  for (std::size_t n = 0; n < p.N; ++n)
    for (std::size_t c = 0; c < p.C; ++c)
      for (std::size_t s = 0; s < p.S; ++s) v[p.at(n, c, s)] = double(Layout::at(t, n, c, s));
  return v;
}

template <class T>
Channels channels(std::size_t N, std::size_t C, std::size_t S, std::uint64_t seed, double mean = 0.25,
                  double spread = 1.5) {
  Channels p;
  p.N = N, p.C = C, p.S = S;
  p.x = support::normal<T>(p.size(), seed, mean, spread);
  p.dy = support::normal<T>(p.size(), seed + 1);
  p.weight = support::normal<T>(C, seed + 2, 0.5);
  p.bias = support::normal<T>(C, seed + 3);
  return p;
}

// Every third position of a sample is padding, and holds what must not be seen.
template <class T>
void add_mask(Channels& p) {
  p.mask.assign(p.N * p.S, 1);
  for (std::size_t i = 0; i < p.mask.size(); i += 3) {
    p.mask[i] = 0;
    for (std::size_t c = 0; c < p.C; ++c)
      p.x[p.at(i / p.S, c, i % p.S)] = p.dy[p.at(i / p.S, c, i % p.S)] = i % 2 ? double(nan_of<T>()) : 1e30;
  }
}

struct ChannelOutputs {
  Values y, dx, dresidual, dweight, dbias;
};

/// `norm` is called as norm(x, residual, mask, weight, bias, y, saved), `backward` likewise.
template <class Layout, class T, class Forward, class Backward>
void check_channels(const Channels& p, const Forward& forward, const Backward& backward) {
  INFO(Layout::name << " " << p.N << " x " << p.C << " x " << p.S << ", ghost " << p.ghost << ", groups " << p.groups
                    << ", activation " << int(p.activation) << ", residual " << !p.residual.empty() << ", mask "
                    << !p.mask.empty() << ", scalar of " << sizeof(T) << " bytes");
  const auto x = tensor_of<Layout>(p, p.x), dy = tensor_of<Layout>(p, p.dy);
  const auto residual = tensor_of<Layout>(p, p.residual);
  auto y = tensor_of<Layout>(p, {}), dx = tensor_of<Layout>(p, {}), dresidual = tensor_of<Layout>(p, {});
  const auto mask = Layout::mask(p);
  const Vector<T> weight = vector_of<T>(p.weight), bias = vector_of<T>(p.bias);
  Vector<T> dweight = Vector<T>::Constant(Eigen::Index(p.C), nan_of<T>()), dbias = dweight;
  ek::ChannelNormSaved<ek::accumulator_t<T>> saved;
  forward(x, residual, mask, weight, bias, y, saved);
  backward(dy, x, residual, mask, weight, bias, saved, dx, dresidual, dweight, dbias);
  const ChannelResult expected = reference::channel_norm(p);
  const double epsilon = epsilon_of<T>();
  const auto near = [&](const Values& got, const Values& exact, const Values& magnitude, std::size_t summed) {
    return worst_error(got, exact, magnitude, summed, epsilon);
  };
  CHECK(near(logical<Layout>(p, y), expected.y, expected.y_magnitude, expected.summed) <= 1);
  CHECK(near(logical<Layout>(p, dx), expected.dx, expected.dx_magnitude, expected.summed) <= 1);
  CHECK(near(values_of(dweight), expected.dweight, expected.dweight_magnitude, p.N * p.S) <= 1);
  CHECK(near(values_of(dbias), expected.dbias, expected.dbias_magnitude, p.N * p.S) <= 1);
  if (!p.residual.empty()) {
    Values size(p.size());
    for (std::size_t i = 0; i < size.size(); ++i) size[i] = std::abs(p.dy[i]) * (1 + expected.y_magnitude[i]);
    CHECK(near(logical<Layout>(p, dresidual), expected.dresidual, size, expected.summed) <= 1);
  }
  const std::size_t sets = p.N / p.ghost;
  for (std::size_t set = 0; set < sets; ++set)
    for (std::size_t g = 0; g < p.groups; ++g) {
      const auto m = saved.moments(Eigen::Index(g), Eigen::Index(set));
      const std::size_t i = set * p.groups + g;
      CHECK(double(m.count) == expected.count[i]);
      CHECK(std::abs(double(m.mean()) - expected.mean[i]) <= support::tolerance(expected.summed, 5, epsilon));
      CHECK(std::abs(double(m.variance()) - expected.variance[i]) <=
            support::tolerance(expected.summed, 17 * (1 + expected.variance[i]), epsilon));
    }
}

}  // namespace norms_test
