#include "nn/language_model.hpp"

#include "evenkeel/norms/layer_norm.hpp"
#include "evenkeel/norms/rms_norm.hpp"
#include "nn/adamw.hpp"
#include "nn/cross_entropy.hpp"
#include "nn/generate.hpp"
#include "support/catch.hpp"
#include "support/data.hpp"
#include "support/devices.hpp"
#include "support/gradient_check.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

// One device type throughout: the model is the largest template here, and another one would cost as much compile time
// again.
namespace {

namespace ek = evenkeel;
using nn::Index;
using nn::Placement;

constexpr Placement placements[] = {Placement::pre, Placement::post, Placement::deepnorm, Placement::rezero};

std::vector<std::uint8_t> random_bytes(std::size_t count, int vocabulary, std::uint64_t seed) {
  support::Random random(seed);
  std::vector<std::uint8_t> bytes(count);
  for (auto& b : bytes) b = std::uint8_t(random.uniform() * vocabulary);
  return bytes;
}

// Up to 40 entries of each parameter, spread over it: all 2000 would take minutes under a sanitizer.
template <class Norm>
void check_gradients(Placement placement, nn::Start start = nn::Start::gpt2) {
  const support::ThreadPool pool(2);
  const Eigen::ThreadPoolDevice& device = pool.device();
  nn::LanguageModel<double, Norm> model(
      {.vocabulary = 11, .depth = 2, .width = 8, .heads = 2, .context = 5, .placement = placement});
  model.initialize(1, nn::plan_of(model.shape(), start, 4));
  std::uint64_t seed = 0;
  for (auto p : model.parameters()) {  // away from ones and zeros, where gradients vanish or agree by chance
    const auto noise = support::normal<double>(std::size_t(p.size), ++seed, 0, 0.4);
    for (Index i = 0; i < p.size; ++i) p.value[i] += noise[std::size_t(i)];
  }
  const auto tokens = random_bytes(10, 11, 1), targets = random_bytes(10, 11, 2);
  nn::Matrix<double> dlogits, unused;
  nn::softmax_cross_entropy(device, model.forward(device, tokens), targets, dlogits);
  model.backward(device, tokens, dlogits);

  std::size_t number = 0;
  for (auto p : model.parameters()) {
    INFO("parameter " << number++ << ", " << p.name << ", " << p.size << " values");
    const Index stride = std::max<Index>(1, p.size / 40);
    std::vector<double> gradient, at;
    for (Index i = 0; i < p.size; i += stride) {
      gradient.push_back(p.gradient[i]);
      at.push_back(p.value[i]);
    }
    const auto put = [&](const std::vector<double>& values) {
      for (std::size_t i = 0; i < values.size(); ++i) p.value[Index(i) * stride] = values[i];
    };
    const auto differences = support::central_differences(
        [&](const std::vector<double>& values) {
          put(values);
          return nn::softmax_cross_entropy(device, model.forward(device, tokens), targets, unused);
        },
        at);
    put(at);
    CHECK(support::gradient_distance(gradient, differences) < support::gradient_tolerance);
    CHECK(std::any_of(gradient.begin(), gradient.end(), [](double g) { return g != 0; }));
  }
}

struct Trained {
  std::vector<double> losses;
  std::vector<float> parameters;
};

Trained train(const Eigen::ThreadPoolDevice& device, Placement placement, int steps) {
  // 192 tokens are more than one block of tokens, and 192 columns of queries, keys and values more than one of outputs.
  nn::LanguageModel<float, ek::LayerNorm<float>> model(
      {.depth = 2, .width = 64, .heads = 4, .context = 48, .placement = placement});
  model.initialize(1);
  nn::AdamW<float> adamw(model.parameters());
  nn::Matrix<float> dlogits;
  Trained trained;
  for (int step = 0; step < steps; ++step) {
    const auto tokens = random_bytes(192, 256, std::uint64_t(step) + 1), targets = random_bytes(192, 256, 99);
    const auto& logits = model.forward(device, tokens);
    trained.losses.push_back(nn::softmax_cross_entropy(device, logits, targets, dlogits));
    adamw.zero_gradient();
    model.backward(device, tokens, dlogits);
    adamw.clip_gradient(device, 1.0);
    adamw.step(device, 1e-2);
  }
  for (auto p : model.parameters()) trained.parameters.insert(trained.parameters.end(), p.value, p.value + p.size);
  return trained;
}

}  // namespace

TEST_CASE("examples: the language model's gradients, RMSNorm", "[examples]") {
  for (Placement placement : placements) {
    INFO("placement " << int(placement));
    check_gradients<ek::RmsNorm<double>>(placement);
  }
}

TEST_CASE("examples: the language model's gradients in muP, whose logits are scaled", "[examples]") {
  check_gradients<ek::RmsNorm<double>>(Placement::pre, nn::Start::mup);
}

TEST_CASE("examples: muP divides the logits of the same weights by the width's ratio", "[examples]") {
  const support::ThreadPool pool(1);
  nn::LanguageModel<double, ek::RmsNorm<double>> model(
      {.vocabulary = 11, .depth = 1, .width = 8, .heads = 1, .context = 5});
  const auto tokens = random_bytes(5, 11, 1);
  const auto largest = [&](nn::Start start) {
    model.initialize(1, nn::plan_of(model.shape(), start, 4));
    for (auto p : model.parameters())  // but for the embedding all weights 0: what enters reaches the head
      if (p.name != "embedding" && p.name != "weight") std::fill_n(p.value, p.size, 0.0);
    return model.forward(pool.device(), tokens).cwiseAbs().maxCoeff();
  };
  CHECK(largest(nn::Start::mup) == Approx(largest(nn::Start::standard) / 2).epsilon(1e-12));
}

TEST_CASE("examples: DeepNorm starts from Xavier, values and feed forward times beta", "[examples]") {
  using Model = nn::LanguageModel<float, ek::RmsNorm<float>>;
  const nn::LanguageModelShape shape{.vocabulary = 11, .depth = 2, .width = 64, .heads = 2, .context = 5};
  // Root mean square of part `part` of the first parameter of this name, cut into so many.
  const auto spread = [&](Model& model, const std::string& name, Index part, Index parts) {
    for (auto p : model.parameters()) {
      if (p.name != name) continue;
      const Index size = p.size / parts;
      return double(Eigen::Map<Eigen::VectorXf>(p.value + part * size, size).norm()) / std::sqrt(double(size));
    }
    return 0.0;
  };
  Model deep(shape), xavier(shape);
  deep.initialize(1, nn::plan_of(shape, nn::Start::deepnorm));
  xavier.initialize(1, nn::plan_of(shape, nn::Start::xavier));
  const double beta = std::pow(8.0 * 2, -0.25);
  const double square = std::sqrt(2.0 / (64 + 64)), hidden = std::sqrt(2.0 / double(64 + shape.hidden()));
  struct Expected {
    const char* name;
    Index part, parts;
    double std, factor;
  };
  for (const Expected& e : {Expected{"query", 0, 3, square, 1},
                            {"query", 1, 3, square, 1},
                            {"query", 2, 3, square, beta},
                            {"attention_output", 0, 1, square, beta},
                            {"ffn_up", 0, 2, hidden, beta},
                            {"ffn_up", 1, 2, hidden, beta},
                            {"ffn_down", 0, 1, hidden, beta}}) {
    INFO(e.name << ", part " << e.part);
    // 4096 numbers or more: four standard errors are 4.4%.
    CHECK(spread(xavier, e.name, e.part, e.parts) == Approx(e.std).epsilon(0.045));
    CHECK(spread(deep, e.name, e.part, e.parts) == Approx(e.std * e.factor).epsilon(0.045));
  }
}

TEST_CASE("examples: the language model's gradients, LayerNorm", "[examples]") {
  for (Placement placement : placements) {
    INFO("placement " << int(placement));
    check_gradients<ek::LayerNorm<double>>(placement);
  }
}

TEST_CASE("examples: training does not depend on the number of threads", "[examples]") {
  for (Placement placement : placements) {
    INFO("placement " << int(placement));
    const support::ThreadPool one(1);
    const Trained expected = train(one.device(), placement, 3);
    for (int threads : {2, 3}) {
      const support::ThreadPool several(threads);
      const Trained trained = train(several.device(), placement, 3);
      CHECK(trained.losses == expected.losses);
      CHECK(trained.parameters == expected.parameters);
    }
  }
}

TEST_CASE("examples: an untrained model knows nothing, and learns a repeated text by heart", "[examples]") {
  const support::ThreadPool pool(2);
  for (Placement placement : placements) {
    INFO("placement " << int(placement));
    nn::LanguageModel<float, ek::LayerNorm<float>> model(
        {.depth = 2, .width = 32, .heads = 2, .context = 16, .placement = placement});
    model.initialize(1);
    nn::AdamW<float> adamw(model.parameters());
    nn::Matrix<float> dlogits;
    const std::string text = "on an even keel. on an even keel. ";
    const std::vector<std::uint8_t> tokens(text.begin(), text.begin() + 32),
        targets(text.begin() + 1, text.begin() + 33);
    double first = 0, loss = 0;
    for (int step = 0; step < 200; ++step) {
      loss = nn::softmax_cross_entropy(pool.device(), model.forward(pool.device(), tokens), targets, dlogits);
      if (step == 0) first = loss;
      adamw.zero_gradient();
      model.backward(pool.device(), tokens, dlogits);
      adamw.clip_gradient(pool.device(), 1.0);
      adamw.step(pool.device(), 1e-2);
    }
    CHECK(first == Approx(std::log(256.0)).epsilon(0.05));
    CHECK(loss < 0.2);  // 0.17 is the price of the first bytes, which nothing foretells
    if (placement == Placement::pre) {
      const auto continued = nn::generate(model, pool.device(), {"on an ev"}, {.length = 8, .temperature = 0.1});
      CHECK(continued.texts.front() == "en keel.");
    }
  }
}
