// Queries and keys of a fused buffer (tokens, [queries | keys | values]), in place and apart.
#include "evenkeel/norms/qk_norm.hpp"

#include "norms/norm_under_test.hpp"
#include "support/devices.hpp"
#include "support/gradient_check.hpp"

using namespace norms_test;

namespace {

// Fewer heads of keys than of queries, and a row that is longer than its parts.
template <class T>
struct Fused {
  static constexpr ek::QkHeads heads{.queries = 4, .keys = 2, .features = 20};
  static constexpr ek::Index tokens = 9, pitch = (4 + 2 + 2) * 20 + 3;
  std::vector<T> memory;

  explicit Fused(int seed) : memory(support::as<T>(support::normal<T>(tokens * pitch, std::uint64_t(seed)))) {}
  explicit Fused(T value) : memory(std::size_t(tokens * pitch), value) {}

  ek::AxisView<T> q() { return ek::heads_view(memory.data(), tokens, pitch, heads.queries, heads.features); }
  ek::AxisView<T> k() { return ek::heads_view(memory.data() + 80, tokens, pitch, heads.keys, heads.features); }
  Values values_of(const ek::AxisView<T>& v) const {
    Values values;
    for (ek::Index t = 0; t < v.outer[0]; ++t)
      for (ek::Index h = 0; h < v.outer[1]; ++h)
        for (ek::Index i = 0; i < v.length; ++i)
          values.push_back(double(v.data[t * v.outer_stride[0] + h * v.outer_stride[1] + i * v.stride]));
    return values;
  }
  Values q_values() { return values_of(q()); }
  Values k_values() { return values_of(k()); }
  // What belongs to neither queries nor keys.
  Values rest() const {
    Values values;
    for (ek::Index t = 0; t < tokens; ++t)
      for (ek::Index i = 120; i < pitch; ++i) values.push_back(double(memory[std::size_t(t * pitch + i)]));
    return values;
  }
};

template <class T>
void set(ek::Parameter<T>& p, std::uint64_t seed) {
  const auto values = support::normal<T>(std::size_t(p.size()), seed, 1, 0.5);
  for (std::size_t i = 0; i < values.size(); ++i) p.value()[i] = T(values[i]);
}
template <class T>
Values of(const T* p, ek::Index size) {
  return Values(p, p + size);
}

template <class Norm>
auto reference_norm(const Slab& s, const Values& x, const Values& w, const reference::Options& o) {
  return std::is_same_v<Norm, ek::RmsNorm<float>> ? reference::rms_norm(s, x, w, {}, o)
                                                  : reference::layer_norm(s, x, w, {}, o);
}
template <class Norm>
auto reference_norm_backward(const Slab& s, const Values& dy, const Values& x, const Values& w,
                             const reference::Options& o) {
  return std::is_same_v<Norm, ek::RmsNorm<float>> ? reference::rms_norm_backward(s, dy, x, w, o)
                                                  : reference::layer_norm_backward(s, dy, x, w, o);
}

// Training: q and k stay in the fused buffer, the normalized ones lie apart; their gradients go back into a fused one.
template <class Norm>
void check_against_reference(ek::QkNormMode mode) {
  Fused<float> x(1), y(77.0f), dy(2), dx(77.0f);
  const auto heads = Fused<float>::heads;
  ek::QkNorm<float, Norm> norm(mode, heads, {.eps = 1e-3}, ek::Affine::weight);
  set(norm.q_norm.weight, 3);
  set(norm.k_norm.weight, 4);
  norm.forward(ek::serial, x.q(), x.k(), y.q(), y.k());
  norm.backward(ek::serial, dy.q(), dy.k(), x.q(), x.k(), dx.q(), dx.k());
  CHECK(y.rest() == Fused<float>(77.0f).rest());
  CHECK(dx.rest() == y.rest());

  const auto check = [&](ek::Index count, const Values& in, const Values& out, const Values& dout, const Values& din,
                         ek::Parameter<float>& weight) {
    const bool per_head = mode == ek::QkNormMode::per_head;
    const auto length = std::size_t(per_head ? heads.features : count * heads.features);
    REQUIRE(weight.size() == ek::Index(length));
    const Slab s{in.size() / length, length, 1};
    const Values w = of(weight.value(), weight.size());
    const auto forward = reference_norm<Norm>(s, in, w, {1e-3, false, {}});
    const auto backward = reference_norm_backward<Norm>(s, dout, in, w, {1e-3, false, {}});
    const double epsilon = epsilon_of<float>();
    CHECK(worst_error(out, forward.y, forward.y_magnitude, length, epsilon) <= 1);
    CHECK(worst_error(din, backward.dx, backward.dx_magnitude, length, epsilon) <= 1);
    CHECK(worst_error(of(weight.gradient(), weight.size()), backward.dweight, backward.dweight_magnitude, in.size(),
                      epsilon) <= 1);
  };
  check(heads.queries, x.q_values(), y.q_values(), dy.q_values(), dx.q_values(), norm.q_norm.weight);
  check(heads.keys, x.k_values(), y.k_values(), dy.k_values(), dx.k_values(), norm.k_norm.weight);

  // In place, forward and backward give the same bits, and only a forward apart allows a backward.
  Fused<float> in_place(1), gradient(2);
  norm.backward(ek::serial, gradient.q(), gradient.k(), x.q(), x.k(), gradient.q(), gradient.k());
  CHECK(gradient.q_values() == dx.q_values());
  CHECK(gradient.k_values() == dx.k_values());
  CHECK(gradient.rest() == Fused<float>(2).rest());
  norm.forward(ek::serial, in_place.q(), in_place.k(), in_place.q(), in_place.k());
  CHECK(in_place.q_values() == y.q_values());
  CHECK(in_place.k_values() == y.k_values());
  CHECK(in_place.rest() == x.rest());
  CHECK_THROWS_WITH(
      norm.backward(ek::serial, gradient.q(), gradient.k(), in_place.q(), in_place.k(), gradient.q(), gradient.k()),
      support::contains_text("in-place forward"));
}

}  // namespace

TEST_CASE("qk_norm equals the worked example", "[norms][qk_norm]") {
  double q[8] = {1, 2, 3, 4, 10, -20, 30, -40}, k[4] = {1, 1, 1, 1};
  ek::QkNorm<double> norm(ek::QkNormMode::per_head, {.queries = 2, .keys = 1, .features = 4}, {.eps = 1e-6});
  const double weight[4] = {1, 2, .5, -1};
  for (int i = 0; i < 4; ++i) norm.q_norm.weight.value()[i] = weight[i];
  const auto qv = ek::heads_view(q, 1, 8, 2, 4), kv = ek::heads_view(k, 1, 4, 1, 4);
  norm.forward(ek::serial, qv, kv, qv, kv);
  const double expected[4] = {0.3651483473268884, 1.4605933893075536, 0.5477225209903326, -1.4605933893075536};
  for (int i = 0; i < 4; ++i) CHECK(std::abs(q[i] - expected[i]) < 1e-15 * 8);

  double wide[8] = {1, 2, 3, 4, 10, -20, 30, -40};
  ek::QkNorm<double> full(ek::QkNormMode::full_width, {.queries = 2, .keys = 1, .features = 4}, {.eps = 1e-6});
  const auto wv = ek::heads_view(wide, 1, 8, 2, 4);
  full.forward(ek::serial, wv, kv, wv, kv);
  const double root = std::sqrt((30 + 3000) / 8.0 + 1e-6);
  CHECK(std::abs(wide[0] - 1 / root) < 1e-15);
  CHECK(std::abs(wide[7] + 40 / root) < 1e-14);
}

TEST_CASE("qk_norm per head and over the full width equals the reference", "[norms][qk_norm]") {
  for (const auto mode : {ek::QkNormMode::per_head, ek::QkNormMode::full_width}) {
    check_against_reference<ek::RmsNorm<float>>(mode);
    check_against_reference<ek::LayerNorm<float>>(mode);
  }
}

TEST_CASE("qk_norm takes heads in any strides", "[norms][qk_norm]") {
  // Heads before rows, and features that are not neighbours.
  const Fused<float> source(5);
  std::vector<float> memory(source.memory.begin(), source.memory.begin() + 4 * 9 * 20), transposed(memory.size());
  for (std::size_t h = 0; h < 4; ++h)
    for (std::size_t t = 0; t < 9; ++t)
      for (std::size_t i = 0; i < 20; ++i) transposed[(i * 4 + h) * 9 + t] = memory[(h * 9 + t) * 20 + i];
  const ek::AxisView<float> head_major{.data = memory.data(), .outer = {9, 4}, .outer_stride = {20, 180}, .length = 20};
  const ek::AxisView<float> features_first{
      .data = transposed.data(), .outer = {9, 4}, .outer_stride = {1, 9}, .length = 20, .stride = 36};
  ek::QkNorm<float> norm(ek::QkNormMode::per_head, {.queries = 4, .keys = 4, .features = 20});
  set(norm.q_norm.weight, 6);
  std::copy_n(norm.q_norm.weight.value(), 20, norm.k_norm.weight.value());
  norm.forward(ek::serial, head_major, features_first, head_major, features_first);
  float worst = 0;
  for (std::size_t h = 0; h < 4; ++h)
    for (std::size_t t = 0; t < 9; ++t)
      for (std::size_t i = 0; i < 20; ++i)
        worst = std::max(worst, std::abs(transposed[(i * 4 + h) * 9 + t] - memory[(h * 9 + t) * 20 + i]));
  CHECK(worst < 2e-6f);

  ek::QkNorm<float> full(ek::QkNormMode::full_width, {.queries = 4, .keys = 4, .features = 20});
  CHECK_THROWS_WITH(full.forward(ek::serial, head_major, head_major, head_major, head_major),
                    support::contains_text("QkNorm::forward: q has heads 180 apart, expected 20"));
}

TEST_CASE("qk_norm gives the same bits on every device", "[norms][qk_norm][devices]") {
  const auto run = [](const auto& device, auto& norm) {
    Fused<float> x(7), y(0.0f), dx(8);
    norm.forward(device, x.q(), x.k(), y.q(), y.k());
    norm.backward(device, dx.q(), dx.k(), x.q(), x.k(), dx.q(), dx.k());
    Values all = y.q_values();
    for (const Values& v : {y.k_values(), dx.q_values(), dx.k_values()}) all.insert(all.end(), v.begin(), v.end());
    norm.for_each_parameter([&](ek::ParameterRef<float> p) {
      all.insert(all.end(), p.gradient, p.gradient + p.size);
      std::fill_n(p.gradient, p.size, 0.0f);
    });
    return all;
  };
  ek::QkNorm<float> rms(ek::QkNormMode::per_head, Fused<float>::heads);
  const Values of_rms = run(ek::serial, rms);
  support::for_each_device([&](const auto& device) { CHECK(run(device, rms) == of_rms); });
}

TEST_CASE("QkL2Norm scales unit queries, and its gradients equal central differences", "[norms][qk_norm]") {
  CHECK(std::abs(ek::qk_scale_start(512) - std::log2(512.0 * 511)) < 1e-12);
  for (const bool per_head : {false, true}) {
    Fused<double> x(9), y(0.0), dy(10), dx(0.0);
    ek::QkL2Norm<double> norm(Fused<double>::heads, 3, {.scale_per_head = per_head});
    REQUIRE(norm.scale.size() == (per_head ? 4 : 1));
    for (ek::Index g = 0; g < norm.scale.size(); ++g) norm.scale.value()[g] = 2 + double(g);
    norm.forward(ek::serial, x.q(), x.k(), y.q(), y.k());
    const Values q = y.q_values(), k = y.k_values();
    for (std::size_t row = 0; row < 9 * 4; ++row) {
      double squares = 0;
      for (std::size_t i = 0; i < 20; ++i) squares += q[row * 20 + i] * q[row * 20 + i];
      CHECK(std::abs(std::sqrt(squares) - (per_head ? 2 + double(row % 4) : 2)) < 1e-14);
    }
    double squares = 0;
    for (std::size_t i = 0; i < 20; ++i) squares += k[i] * k[i];
    CHECK(std::abs(squares - 1) < 1e-14);

    const Values scales = of(norm.scale.value(), norm.scale.size());
    const auto loss = [&](const Values& memory, const Values& s) {
      Fused<double> at(0.0), out(0.0);
      at.memory = memory;
      ek::QkL2Norm<double> other(Fused<double>::heads, 1, {.scale_per_head = per_head});
      std::copy(s.begin(), s.end(), other.scale.value());
      other.forward(ek::serial, at.q(), at.k(), out.q(), out.k());
      return support::weighted_sum(out.q_values(), dy.q_values()) +
             support::weighted_sum(out.k_values(), dy.k_values());
    };
    norm.scale.gradient()[0] = 5;
    norm.backward(ek::serial, dy.q(), dy.k(), x.q(), x.k(), dx.q(), dx.k());
    Fused<double> expected(0.0);
    expected.memory = support::central_differences([&](const Values& m) { return loss(m, scales); }, x.memory);
    CHECK(support::gradient_distance(dx.q_values(), expected.q_values()) < support::gradient_tolerance);
    CHECK(support::gradient_distance(dx.k_values(), expected.k_values()) < support::gradient_tolerance);
    Values dscale = of(norm.scale.gradient(), norm.scale.size());
    dscale[0] -= 5;  // accumulated
    CHECK(support::gradient_distance(
              dscale, support::central_differences([&](const Values& s) { return loss(x.memory, s); }, scales)) <
          support::gradient_tolerance);
    norm.backward(ek::serial, dy.q(), dy.k(), x.q(), x.k(), dx.q(), dx.k(), ek::GradientMode::overwrite);
    CHECK(std::abs(norm.scale.gradient()[0] - dscale[0]) < 1e-12);

    norm.forward(ek::serial, x.q(), x.k(), x.q(), x.k());
    CHECK(x.q_values() == q);
    CHECK_THROWS_AS(norm.backward(ek::serial, dy.q(), dy.k(), x.q(), x.k(), dx.q(), dx.k()), ek::ShapeError);
  }
}

TEST_CASE("qk_norm of bfloat16 data with float weights", "[norms][qk_norm]") {
  using Bfloat16 = Eigen::bfloat16;
  Fused<Bfloat16> x(11), y(Bfloat16(0.0f));
  ek::QkNorm<float> norm(ek::QkNormMode::per_head, Fused<float>::heads);
  set(norm.q_norm.weight, 12);
  norm.forward(ek::serial, x.q(), x.k(), y.q(), y.k());
  const auto expected =
      reference::rms_norm({36, 20, 1}, x.q_values(), of(norm.q_norm.weight.value(), 20), {}, {1e-6, false, {}});
  CHECK(worst_error(y.q_values(), expected.y, expected.y_magnitude, 0, 0x1p-7 / 12) <= 1);
}

TEST_CASE("qk_norm names what does not fit", "[norms][qk_norm][errors]") {
  Fused<float> x(13);
  ek::QkNorm<float> norm(ek::QkNormMode::per_head, {.queries = 3, .keys = 2, .features = 20});
  CHECK_THROWS_WITH(norm.forward(ek::serial, x.q(), x.k(), x.q(), x.k()),
                    "QkNorm::forward: q is a view of 9 rows of 4 heads of 20 features, inner 1, expected 3 heads of 20 "
                    "features, inner 1");
  ek::QkNorm<float> right(ek::QkNormMode::per_head, Fused<float>::heads);
  auto shifted = x.q();
  shifted.data += 1;
  CHECK_THROWS_WITH(right.forward(ek::serial, x.q(), x.k(), shifted, x.k()),
                    "QkNorm::forward: q_out overlaps q in part, expected the same memory or memory apart from it");
  CHECK(x.memory == Fused<float>(13).memory);
  std::string names;
  ek::QkNorm<float, ek::LayerNorm<float>> layer(ek::QkNormMode::per_head, Fused<float>::heads);
  layer.for_each_parameter([&](ek::ParameterRef<float> p) { names += std::string(p.name) + " "; });
  CHECK(names == "q_norm.weight q_norm.bias k_norm.weight k_norm.bias ");
  CHECK_THROWS_AS(ek::QkNorm<float>(ek::QkNormMode::full_width, {.queries = 0, .keys = 2, .features = 20}),
                  ek::ShapeError);
}
