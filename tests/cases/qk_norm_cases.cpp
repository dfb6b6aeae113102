#include "cases/row_run.hpp"
#include "cases/table.hpp"
#include "evenkeel/norms/qk_norm.hpp"

#include <cmath>

using namespace cases_test;

namespace {

using Eigen::Index;

// The mode is named by whoever makes the layer, in every form of its constructor.
static_assert(!std::is_constructible_v<ek::QkNorm<float>, ek::QkHeads>);
static_assert(std::is_constructible_v<ek::QkNorm<float>, ek::QkNormMode, ek::QkHeads>);

template <class T>
std::vector<T> memory_of(const Values& values) {
  std::vector<T> memory;
  for (const double v : values) memory.push_back(static_cast<T>(v));
  return memory;
}

// The queries of a layer whose query weight is `weight`.
template <class T, class Device>
Values normalized(const Device& device, const Case& c, ek::QkNormMode mode, const Values& weight) {
  const Tensor q = c.tensor("/inputs/q");
  const Index tokens = q.shape.at(0), heads = q.shape.at(1), features = q.shape.at(2), width = heads * features;
  ek::QkNorm<T> norm(mode, {.queries = heads, .keys = heads, .features = features}, {.eps = c.number("/params/eps")});
  REQUIRE(std::size_t(norm.q_norm.weight.size()) == weight.size());
  for (std::size_t i = 0; i < weight.size(); ++i) norm.q_norm.weight.value()[i] = static_cast<T>(weight[i]);
  const std::vector<T> in = memory_of<T>(q.values);
  std::vector<T> q_out(in.size(), norms_test::nan_of<T>()), k_out = q_out;
  norm.forward(device, ek::heads_view(in.data(), tokens, width, heads, features),
               ek::heads_view(in.data(), tokens, width, heads, features),
               ek::heads_view(q_out.data(), tokens, width, heads, features),
               ek::heads_view(k_out.data(), tokens, width, heads, features));
  Values values;
  for (const T v : q_out) values.push_back(static_cast<double>(v));
  return values;
}

void check_qk_norm(const Case& c) {
  const auto check = [&](ek::QkNormMode mode, const std::string& listed, const std::string& gamma) {
    INFO(listed);
    const Values weight = c.values("/params/" + gamma), expected = c.values("/expected/" + listed);
    for_each_type(c, [&]<class T>(Type<T>, const std::string& type) {
      const Values y = normalized<T>(ek::serial, c, mode, weight);
      expect(c, type, "y", y, expected);
      for (int repetition = 1; repetition < 10; ++repetition)
        CHECK(bit_difference(normalized<T>(ek::serial, c, mode, weight), y) == "");
      for (const int threads : support::thread_counts) {
        const support::ThreadPool pool(threads);
        CHECK(bit_difference(normalized<T>(pool.device(), c, mode, weight), y) == "");
      }
      if (mode != ek::QkNormMode::per_head) return;
      // Each head has the root mean square 1 before its weight, whatever its scale.
      for (std::size_t head = 0; head < y.size(); head += weight.size()) {
        double square = 0;
        for (std::size_t i = 0; i < weight.size(); ++i) square += y[head + i] * y[head + i] / (weight[i] * weight[i]);
        const double rms = std::sqrt(square / double(weight.size()));
        CHECK(std::abs(rms - 1) <= c.number("/params/eps") + 4 * epsilon_of<T>());
      }
    });
  };
  check(ek::QkNormMode::per_head, "per_head", "gamma_head");
  check(ek::QkNormMode::full_width, "full", "gamma_full");

  // A layer's weight has the length of its mode (REQUIRE above); the functions behind it refuse the other one.
  const auto q = memory_of<float>(c.values("/inputs/q"));
  std::vector<float> y(q.size(), 77);
  const auto head = norms_test::vector_of<float>(c.values("/params/gamma_head")),
             full = norms_test::vector_of<float>(c.values("/params/gamma_full"));
  const Index count = full.size() / head.size();
  const auto refuses = [&](const auto& weight, Index heads, Index features) {
    auto out = ek::heads_view(y.data(), 1, full.size(), heads, features);
    CHECK_THROWS_AS(
        ek::rms_norm(ek::serial, ek::heads_view(q.data(), 1, full.size(), heads, features), weight, out, ek::none),
        ek::ShapeError);
  };
  refuses(full, count, head.size());
  refuses(head, 1, full.size());
  for (const float value : y) CHECK(value == 77);
}

}  // namespace

void cases_test::add_qk_norm_cases(Table& table) { table["qk_norm.forward"] = check_qk_norm; }
