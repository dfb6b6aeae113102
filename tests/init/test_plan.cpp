#include "evenkeel/init/residual_net_plan.hpp"
#include "evenkeel/init/transformer_plan.hpp"
#include "support/catch.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace ek = evenkeel;
using ek::Role;
using Recipe = ek::TransformerRecipe;
using NetRecipe = ek::ResidualNetRecipe;

namespace {

constexpr std::array in_stack{Role::embedding,        Role::positional, Role::query,  Role::key,     Role::value,
                              Role::attention_output, Role::ffn_gate,   Role::ffn_up, Role::ffn_down};
// What DeepNorm and T-Fixup scale.
constexpr std::array scaled{Role::value, Role::attention_output, Role::ffn_gate, Role::ffn_up, Role::ffn_down};

constexpr ek::Fans square{.in = 64, .out = 64}, wide{.in = 64, .out = 256};

bool is_one_of(Role role, const auto& list) { return std::find(list.begin(), list.end(), role) != list.end(); }

bool near(double got, double expected) { return std::abs(got - expected) <= 2e-15 * std::abs(expected); }

ek::Plan of(Recipe recipe, ek::Index encoder, ek::Index decoder, ek::BaseInit base = ek::BaseInit::recipe) {
  return ek::transformer_plan(
      recipe, {.encoder_layers = encoder, .decoder_layers = decoder, .width = 64, .heads = 4, .base = base});
}

// The standard deviation that every matrix and embedding of a stack should have.
void check_stack(const ek::Plan& plan, std::optional<ek::Stack> stack, double embedding, double branch) {
  for (const Role role : in_stack) {
    ek::RoleOf named(role);
    named.stack = stack;
    INFO(ek::role_text(named));
    const double xavier = std::sqrt(2.0 / 320);
    const bool is_embedding = role == Role::embedding || role == Role::positional;
    const double factor = is_embedding ? embedding : is_one_of(role, scaled) ? branch : 1;
    CHECK(near(plan.std(named, wide), factor * (is_embedding ? 0.125 : xavier)));
    CHECK(plan.learning_rate_factor(named) == 1);
    CHECK(plan.weight_decay_factor(named) == 1);
    CHECK(plan.forward_multiplier(named) == 1);
  }
}

void check_constant(const ek::Plan& plan, const ek::RoleOf& role, double value) {
  INFO(ek::role_text(role));
  std::vector<double> values(3, 7);
  plan.initialize(role, values);
  CHECK(values == std::vector<double>(3, value));
  CHECK(plan.std(role) == 0);
  CHECK(plan.weight_decay_factor(role) == 0);
}

void check_norms(const ek::Plan& plan) {
  check_constant(plan, Role::norm_weight, 1);
  check_constant(plan, Role::norm_bias, 0);
}

// What `call` throws; "" where it does not.
std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const ek::ShapeError& error) {
    return error.what();
  }
  return "";
}

const ek::RandomStream stream(42, "weight");

}  // namespace

TEST_CASE("DeepNorm's numbers for one stack") {
  struct Row {
    ek::Index layers;
    double alpha, beta;
  };
  for (const Row& row : {Row{1, 1.189207115002721, 0.5946035575013605}, Row{12, 2.213363839400643, 0.3194715521231362},
                         Row{96, 3.7224194364083982, 0.18995892141289814}}) {
    for (const bool encoder : {true, false}) {
      const ek::Plan plan = of(Recipe::deepnorm, encoder ? row.layers : 0, encoder ? 0 : row.layers);
      check_stack(plan, {}, 1, row.beta);
      check_stack(plan, encoder ? ek::Stack::encoder : ek::Stack::decoder, 1, row.beta);
      CHECK(plan.blocks() == row.layers);
      for (ek::Index i = 0; i < row.layers; ++i) {
        CHECK(near(plan.block(i).skip, row.alpha));
        CHECK(plan.block(i).branch == 1);
        CHECK(plan.block(i).beta == 1);
        CHECK_FALSE(plan.block(i).learned_scale);
      }
      check_norms(plan);
      check_constant(plan, Role::bias, 0);
      CHECK(near(plan.std(Role::head, wide), std::sqrt(2.0 / 320)));
      CHECK(plan.attention_scale() == 0.25);
      CHECK(plan.role(Role::value).start.draw == ek::Draw::xavier_normal);
    }
  }
}

TEST_CASE("DeepNorm's numbers for an encoder with a decoder") {
  struct Row {
    ek::Index n, m;
    double encoder_alpha, encoder_beta, decoder_alpha, decoder_beta;
  };
  for (const Row& row :
       {Row{6, 6, 1.417938140685523, 0.49698924077132345, 2.0597671439071177, 0.34329452398451965},
        Row{100, 50, 3.270925436652854, 0.21544361485693825, 3.4996355115805833, 0.20205155046766235}}) {
    const ek::Plan plan = of(Recipe::deepnorm, row.n, row.m);
    check_stack(plan, ek::Stack::encoder, 1, row.encoder_beta);
    check_stack(plan, ek::Stack::decoder, 1, row.decoder_beta);
    CHECK(plan.blocks(ek::Stack::encoder) == row.n);
    CHECK(plan.blocks(ek::Stack::decoder) == row.m);
    CHECK(near(plan.block(ek::Stack::encoder, row.n - 1).skip, row.encoder_alpha));
    CHECK(near(plan.block(ek::Stack::decoder, 0).skip, row.decoder_alpha));
    check_norms(plan);
    CHECK_FALSE(plan.has(Role::value));
    CHECK(plan.has(ek::encoder(Role::value)));
    CHECK(plan.has(ek::decoder(Role::norm_weight)));
  }
}

TEST_CASE("T-Fixup's numbers") {
  struct Row {
    ek::Index layers;
    double branch, embedding;  // of an encoder; those of a decoder are both the latter
  };
  for (const Row& row : {Row{1, 0.67, 0.5773502691896257}, Row{12, 0.3599809271608866, 0.31020161970069987},
                         Row{96, 0.2140459399225013, 0.18444698661672027}}) {
    const ek::Plan encoder = of(Recipe::t_fixup, row.layers, 0), decoder = of(Recipe::t_fixup, 0, row.layers);
    check_stack(encoder, {}, row.embedding, row.branch);
    check_stack(decoder, {}, row.embedding, row.embedding);
    CHECK(encoder.role(Role::value).start.draw == ek::Draw::xavier_uniform);
    CHECK_FALSE(encoder.has(Role::norm_weight));
    check_constant(encoder, Role::bias, 0);
    CHECK(encoder.block(0).skip == 1);
  }
  const ek::Plan both = of(Recipe::t_fixup, 100, 50);
  check_stack(both, ek::Stack::encoder, 0.18257418583505536, 0.21187260323128143);
  check_stack(both, ek::Stack::decoder, 0.21711852081087685, 0.21711852081087685);
}

TEST_CASE("GPT-2's numbers, which filling twice does not change") {
  struct Row {
    ek::Index layers;
    double residual;
  };
  for (const Row& row : {Row{1, 0.014142135623730949}, Row{12, 0.004082482904638631}, Row{96, 0.0014433756729740645}}) {
    const ek::Plan plan = of(Recipe::gpt2, 0, row.layers);
    for (const Role role : in_stack) {
      const bool residual = role == Role::attention_output || role == Role::ffn_down;
      CHECK(near(plan.std(role), residual ? row.residual : 0.02));
    }
    CHECK(plan.std(Role::head) == 0.02);
    check_constant(plan, Role::bias, 0);
    check_norms(plan);
  }
  const ek::Plan plan =
      ek::transformer_plan(Recipe::gpt2, {.decoder_layers = 12, .width = 64, .heads = 4, .positional_std = 0.01});
  CHECK(plan.std(Role::positional) == 0.01);
  CHECK(plan.std(Role::embedding) == 0.02);
  Eigen::MatrixXf once(64, 64), twice(64, 64), other(64, 64);
  plan.initialize(Role::ffn_down, once, square, stream);
  for (int i = 0; i < 2; ++i) plan.initialize(Role::ffn_down, twice, square, stream);
  CHECK(once == twice);
  ek::gpt2_residual_normal(other, 12, stream);
  CHECK(once == other);
}

TEST_CASE("what a plan fills is what the initializers fill") {
  Eigen::MatrixXf got(64, 48), expected(64, 48);
  const ek::Fans fans = ek::fans_of_linear(48, 64);
  const auto check = [&](const ek::Plan& plan, const ek::RoleOf& role) {
    plan.initialize(role, got, fans, stream);
    CHECK(got == expected);
    got.setZero();
    plan.initialize(role, got.data(), got.size(), fans, stream);
    CHECK(got == expected);
  };
  ek::xavier_uniform(expected, fans, stream);
  check(of(Recipe::standard, 2, 0), Role::query);
  ek::torch_linear_uniform(expected, fans, stream);
  check(of(Recipe::standard, 2, 0, ek::BaseInit::torch), Role::ffn_up);
  check(of(Recipe::standard, 2, 0, ek::BaseInit::torch), Role::bias);
  ek::normal(expected, 0, 1, stream);
  check(of(Recipe::standard, 2, 0, ek::BaseInit::torch), Role::embedding);
  ek::gpt2_normal(expected, stream);
  check(of(Recipe::standard, 2, 0, ek::BaseInit::normal), Role::embedding);
  ek::xavier_normal(expected, fans, stream, std::pow(16.0, -0.25));
  check(of(Recipe::deepnorm, 2, 0), Role::value);
  ek::kaiming_normal(expected, fans, stream, {.mode = ek::FanMode::out});
  check(ek::residual_net_plan(NetRecipe::standard, {.stages = {2}, .mode = ek::FanMode::out}), ek::branch_layer(2));
  ek::constant(expected, 0);
  check(ek::residual_net_plan(NetRecipe::fixup, {.stages = {2}}), ek::branch_layer(2));
  // The standard deviation of a uniform distribution is its bound over sqrt(3).
  CHECK(near(of(Recipe::standard, 2, 0, ek::BaseInit::torch).std(Role::query, fans), 1 / std::sqrt(3.0 * 48)));

  CHECK(of(Recipe::standard, 2, 0, ek::BaseInit::torch).bound(Role::query, fans) == 1 / std::sqrt(48.0));
  CHECK(near(of(Recipe::standard, 2, 0).bound(Role::query, fans), std::sqrt(6.0 / 112)));
  CHECK(of(Recipe::gpt2, 2, 0).bound(Role::query, fans) == std::numeric_limits<double>::infinity());
  CHECK(of(Recipe::layer_scale, 2, 0).bound(Role::branch_scale) == 0.1);

  // Constants leave a sequential source where it is, and lie where any other source writes.
  struct Elsewhere {
    std::vector<float> memory = std::vector<float>(3);
    void fill_uniform(float*, ek::Index count, double lo, double hi) {
      stream.fill_uniform(memory.data(), count, lo, hi);
    }
    void fill_normal(float*, ek::Index, double, double) {}
  } elsewhere;
  of(Recipe::layer_scale, 30, 0).initialize(Role::branch_scale, static_cast<float*>(nullptr), 3, {}, elsewhere);
  CHECK(elsewhere.memory == std::vector<float>(3, 1e-6f));

  // torch's Linear layer: weight and bias of one sequence.
  ek::TorchRandom random(5), same(5);
  const ek::Plan torch = of(Recipe::standard, 2, 0, ek::BaseInit::torch);
  torch.initialize(Role::query, got, fans, random);
  ek::torch_linear_uniform(expected, fans, same);
  CHECK(got == expected);
  of(Recipe::standard, 2, 0).initialize(Role::norm_weight, got, {}, random);
  CHECK((got.array() == 1).all());
  Eigen::MatrixXf nothing(0, 5);
  torch.initialize(Role::query, nothing, {}, random);
  CHECK(random.next_uniform<float>() == same.next_uniform<float>());
}

TEST_CASE("LayerScale, ReZero and the depth scale") {
  struct Row {
    ek::Index layers;
    double start, branch;
  };
  for (const Row& row : {Row{1, 0.1, 0.7071067811865475}, Row{12, 0.1, 0.20412414523193154}, Row{18, 0.1, 1.0 / 6},
                         Row{19, 1e-5, 0}, Row{24, 1e-5, 0}, Row{25, 1e-6, 0}, Row{96, 1e-6, 0.07216878364870323}}) {
    const ek::Plan plan = of(Recipe::layer_scale, 0, row.layers);
    CHECK(plan.block(row.layers - 1).learned_scale == row.start);
    check_constant(plan, Role::branch_scale, row.start);
    if (row.branch != 0) CHECK(near(of(Recipe::depth_scale, row.layers, 0).block(0).branch, row.branch));
    const ek::Plan rezero = of(Recipe::rezero, row.layers, 0);
    CHECK(rezero.block(0).learned_scale == 0.0);
    CHECK(rezero.block(0).branch == 1);
    check_constant(rezero, Role::branch_scale, 0);
    for (const ek::Plan* each : {&plan, &rezero}) {
      check_stack(*each, {}, 1, 1);
      check_norms(*each);
    }
  }
  const ek::Plan both = of(Recipe::depth_scale, 100, 50), scale = of(Recipe::layer_scale, 20, 30);
  CHECK(near(both.block(ek::Stack::encoder, 99).branch, 0.07071067811865475));
  CHECK(near(both.block(ek::Stack::decoder, 49).branch, 0.08164965809277261));
  check_constant(scale, ek::encoder(Role::branch_scale), 1e-5);
  check_constant(scale, ek::decoder(Role::branch_scale), 1e-6);
}

namespace {

ek::Plan mup(ek::Index width, ek::Index heads, ek::Optimizer optimizer, ek::BaseInit base = ek::BaseInit::recipe,
             bool decay_times_learning_rate = true) {
  return ek::transformer_plan(Recipe::mup, {.decoder_layers = 12,
                                            .width = width,
                                            .heads = heads,
                                            .base = base,
                                            .base_width = 64,
                                            .base_heads = 4,
                                            .optimizer = optimizer,
                                            .decay_times_learning_rate = decay_times_learning_rate});
}

}  // namespace

TEST_CASE("muP's numbers at four times the width") {
  struct Row {
    ek::Optimizer optimizer;
    bool decay_times_learning_rate;
    double vector_rate, hidden_rate, vector_decay, hidden_decay;
  };
  for (const Row& row : {Row{ek::Optimizer::adam, true, 1, 0.25, 1, 4}, Row{ek::Optimizer::adam, false, 1, 0.25, 1, 1},
                         Row{ek::Optimizer::sgd, true, 4, 1, 0.25, 1}, Row{ek::Optimizer::sgd, false, 4, 1, 1, 1}}) {
    const ek::Plan plan = mup(256, 8, row.optimizer, ek::BaseInit::recipe, row.decay_times_learning_rate);
    std::vector<Role> roles(in_stack.begin(), in_stack.end());
    roles.push_back(Role::head);
    for (const Role role : roles) {
      INFO(ek::role_name(role));
      const bool vector = role == Role::embedding || role == Role::positional || role == Role::head;
      CHECK(near(plan.std(role), vector ? 0.02 : 0.01));
      CHECK(plan.learning_rate_factor(role) == (vector ? row.vector_rate : row.hidden_rate));
      CHECK(plan.weight_decay_factor(role) == (vector ? row.vector_decay : row.hidden_decay));
      CHECK(plan.forward_multiplier(role) == (role == Role::head ? 0.25 : 1));
    }
    for (const Role role : {Role::bias, Role::norm_bias, Role::norm_weight}) {
      check_constant(plan, role, role == Role::norm_weight ? 1 : 0);
      CHECK(plan.learning_rate_factor(role) == row.vector_rate);
    }
    // 16 features in a head of the base, 32 here.
    CHECK(near(plan.attention_scale(), 4.0 / 32));
  }
  CHECK(near(mup(256, 16, ek::Optimizer::adam).attention_scale(), 0.25));
  const ek::Plan zero = ek::transformer_plan(
      Recipe::mup,
      {.decoder_layers = 1, .width = 256, .heads = 4, .base_width = 64, .base_heads = 4, .zero_head = true});
  CHECK(zero.std(Role::head) == 0);
  CHECK(zero.forward_multiplier(Role::head) == 0.25);
}

TEST_CASE("muP's fans are those of the base width, so that no fan of the full width comes on top") {
  // At the base: 64 features, 1000 tokens.
  const ek::Plan xavier = mup(256, 4, ek::Optimizer::adam, ek::BaseInit::xavier);
  const ek::Plan torch = mup(256, 4, ek::Optimizer::adam, ek::BaseInit::torch);
  CHECK(near(xavier.std(Role::ffn_up, {.in = 256, .out = 1024}), std::sqrt(2.0 / (64 + 256)) / 2));
  CHECK(near(xavier.std(Role::head, {.in = 256, .out = 1000}), std::sqrt(2.0 / (64 + 1000))));
  CHECK(near(xavier.std(Role::embedding), 0.125));
  CHECK(near(torch.std(Role::query, {.in = 256, .out = 256}), 1 / std::sqrt(3.0 * 64) / 2));
  CHECK(near(torch.std(Role::head, {.in = 256, .out = 1000}), 1 / std::sqrt(3.0 * 64)));
  CHECK(near(torch.std(Role::bias, {.in = 256, .out = 1000}), 1 / std::sqrt(3.0 * 64)));
  CHECK(torch.std(Role::embedding) == 1);
}

TEST_CASE("muP with a ratio of 1 is the standard plan to the bit") {
  for (const ek::BaseInit base : {ek::BaseInit::xavier, ek::BaseInit::torch, ek::BaseInit::normal}) {
    const ek::TransformerOptions options{
        .encoder_layers = 5, .decoder_layers = 7, .width = 96, .heads = 3, .base = base};
    ek::TransformerOptions with_base = options;
    with_base.base_width = 96;
    with_base.base_heads = 3;
    for (const ek::Optimizer optimizer : {ek::Optimizer::adam, ek::Optimizer::sgd}) {
      with_base.optimizer = optimizer;
      const ek::Plan plain = ek::transformer_plan(Recipe::standard, options);
      const ek::Plan plan = ek::transformer_plan(Recipe::mup, with_base);
      const auto& entries = plain.parts().entries;
      REQUIRE(plan.parts().entries.size() == entries.size());
      for (const auto& entry : entries) {
        INFO(ek::role_text(entry.of));
        const ek::RolePlan& got = plan.role(entry.of);
        CHECK(got.learning_rate == entry.plan.learning_rate);
        CHECK(got.weight_decay == entry.plan.weight_decay);
        CHECK(got.forward == entry.plan.forward);
        std::vector<double> a(500), b(500);
        const ek::Fans fans{.in = 96, .out = 250};
        plan.initialize(entry.of, a, fans, stream);
        plain.initialize(entry.of, b, fans, stream);
        CHECK(a == b);
      }
      CHECK(plan.attention_scale() == plain.attention_scale());
      CHECK(plan.block(ek::Stack::decoder, 6).branch == 1);
    }
  }
}

TEST_CASE("Fixup's numbers") {
  struct Row {
    ek::Index blocks, layers;
    double factor;
  };
  for (const Row& row :
       {Row{1, 1, 1}, Row{12, 1, 1}, Row{96, 1, 1}, Row{1, 2, 1}, Row{12, 2, 0.28867513459481287},
        Row{96, 2, 0.10206207261596575}, Row{1, 3, 1}, Row{12, 3, 0.537284965911771}, Row{96, 3, 0.3194715521231362}}) {
    INFO(row.blocks << " blocks of " << row.layers);
    std::vector<ek::Index> stages{row.blocks};
    if (row.blocks == 12) stages = {3, 4, 5};
    const ek::Plan plan = ek::residual_net_plan(NetRecipe::fixup, {.stages = stages, .branch_layers = row.layers});
    const double he = std::sqrt(2.0 / 64);
    for (ek::Index layer = 1; layer < row.layers; ++layer)
      CHECK(near(plan.std(ek::branch_layer(layer), wide), row.factor * he));
    CHECK(plan.std(ek::branch_layer(row.layers), wide) == 0);
    CHECK(plan.std(Role::classifier, wide) == 0);
    CHECK(plan.weight_decay_factor(Role::classifier) == 1);
    CHECK(near(plan.std(Role::stem, wide), he));
    CHECK(near(plan.std(Role::shortcut, wide), he));
    CHECK(near(ek::fixup_factor(row.blocks, row.layers), row.factor));
    check_constant(plan, Role::scalar_bias, 0);
    check_constant(plan, Role::branch_scale, 1);
    check_constant(plan, Role::bias, 0);
    CHECK(plan.blocks() == row.blocks);
    CHECK(plan.block(row.blocks - 1).learned_scale == 1.0);
    CHECK_FALSE(plan.has(Role::norm_weight));
    CHECK_FALSE(plan.has(ek::branch_layer(row.layers + 1)));
    CHECK_FALSE(plan.has(Role::branch_layer));
  }
}

TEST_CASE("NFNet's scales follow the variance of the stream") {
  const ek::Plan plan =
      ek::residual_net_plan(NetRecipe::nfnet, {.stages = {1, 2, 6, 3}, .branch_layers = 4, .learned_scale = true});
  // v of each block, written down by hand: alpha^2 = 0.04.
  const std::array<double, 12> variance{1, 1.04, 1.04, 1.08, 1.04, 1.08, 1.12, 1.16, 1.2, 1.24, 1.04, 1.08};
  CHECK(plan.blocks() == 12);
  for (ek::Index i = 0; i < 12; ++i) {
    INFO(i);
    CHECK(std::abs(plan.block(i).beta - std::sqrt(variance[std::size_t(i)])) < 1e-15);
    CHECK(plan.block(i).transition == (i == 0 || i == 1 || i == 3 || i == 9));
    CHECK(plan.block(i).branch == 0.2);
    CHECK(plan.block(i).skip == 1);
    CHECK(plan.block(i).learned_scale == 0.0);
  }
  const std::array<double, 4> published{1, 1.0198, 1.0392, 1.1136};
  const std::array<ek::Index, 4> first{0, 1, 3, 9};
  for (std::size_t s = 0; s < 4; ++s) CHECK(std::abs(plan.block(first[s]).beta - published[s]) < 5e-5);
  CHECK(near(plan.std(ek::branch_layer(4), wide), 0.125));
  CHECK(plan.std(Role::classifier) == 0.01);
  check_constant(plan, Role::branch_scale, 0);
  CHECK_FALSE(plan.has(Role::norm_weight));
  CHECK_FALSE(ek::residual_net_plan(NetRecipe::nfnet, {.stages = {2}}).has(Role::branch_scale));
}

TEST_CASE("the other residual nets") {
  const ek::Plan standard = ek::residual_net_plan(NetRecipe::standard, {.stages = {3, 4, 6, 3}, .gain = 2});
  CHECK(standard.blocks() == 16);
  CHECK(standard.block(15).branch == 1);
  CHECK(near(standard.std(ek::branch_layer(2), wide), 2.0 / 8));
  CHECK(near(standard.std(Role::classifier, wide), 1.0 / 8));  // no activation follows
  check_norms(standard);
  const ek::Plan scale = ek::residual_net_plan(NetRecipe::layer_scale, {.stages = {12, 13}});
  check_constant(scale, Role::branch_scale, 1e-6);
  const ek::Plan skip = ek::residual_net_plan(NetRecipe::skip_init, {.stages = {2}, .base = ek::BaseInit::torch});
  check_constant(skip, Role::branch_scale, 0);
  CHECK(near(skip.std(Role::stem, wide), 1 / std::sqrt(3.0 * 64)));
  CHECK_FALSE(skip.has(Role::norm_bias));
  const ek::Plan depth =
      ek::residual_net_plan(NetRecipe::depth_scale, {.stages = {8, 8}, .base = ek::BaseInit::xavier});
  CHECK(depth.block(3).branch == 0.25);
  CHECK(near(depth.std(ek::branch_layer(1), wide), std::sqrt(2.0 / 320)));
}

TEST_CASE("plans in every scalar, and over shares of a tensor") {
  const ek::Plan plan = of(Recipe::deepnorm, 0, 12);
  std::vector<double> doubles(1000);
  std::vector<float> floats(1000), parts(1000);
  std::vector<Eigen::bfloat16> rounded(1000);
  plan.initialize(Role::value, doubles, square, stream);
  plan.initialize(Role::value, floats, square, stream);
  plan.initialize(Role::value, rounded, square, stream);
  plan.initialize(Role::value, parts.data(), 333, square, stream);
  plan.initialize(Role::value, parts.data() + 333, 667, square, stream.from(333));
  CHECK(floats == parts);
  double squares = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    CHECK(float(rounded[i]) == float(Eigen::bfloat16(floats[i])));
    squares += doubles[i] * doubles[i];
  }
  CHECK(std::abs(std::sqrt(squares / 1000) / (0.3194715521231362 / 8) - 1) < 4 / std::sqrt(2000.0));
}

TEST_CASE("a plan prints as an aligned table") {
  const ek::Plan plan = of(Recipe::gpt2, 0, 2);
  CHECK(ek::plan_table(plan) ==
        "GPT-2: decoder of 2 layers, width 64, heads 4\n"
        "\n"
        "role              starts from  learning rate  weight decay  forward\n"
        "embedding         N(0, 0.02)   1              1             1\n"
        "positional        N(0, 0.02)   1              1             1\n"
        "query             N(0, 0.02)   1              1             1\n"
        "key               N(0, 0.02)   1              1             1\n"
        "value             N(0, 0.02)   1              1             1\n"
        "attention_output  N(0, 0.01)   1              1             1\n"
        "ffn_gate          N(0, 0.02)   1              1             1\n"
        "ffn_up            N(0, 0.02)   1              1             1\n"
        "ffn_down          N(0, 0.01)   1              1             1\n"
        "head              N(0, 0.02)   1              1             1\n"
        "bias              0            1              0             1\n"
        "norm_weight       1            1              0             1\n"
        "norm_bias         0            1              0             1\n"
        "\n"
        "x_next = x + f(norm(x))\n"
        "\n"
        "block         skip  branch  beta  learned scale  transition\n"
        "block 0 to 1  1     1       1     none           no\n"
        "\n"
        "attention logits = q.k * 0.25\n");
  std::ostringstream text;
  text << mup(256, 4, ek::Optimizer::sgd, ek::BaseInit::torch);
  CHECK(text.str().find("muP: decoder of 12 layers, width 256, heads 4; width ratio 4, SGD\n") == 0);
  CHECK(text.str().find("query             U(+-1/sqrt(fan_in)) at the base * 0.5  1              1             1\n") !=
        std::string::npos);
  text.str("");
  text << ek::residual_net_plan(NetRecipe::nfnet, {.stages = {1, 2}});
  CHECK(text.str().find("block 1  1     0.2     1.0198  none           yes\n"
                        "block 2  1     0.2     1.0198  none           no\n") != std::string::npos);
  CHECK(text.str().find("attention") == std::string::npos);
}

TEST_CASE("plans refuse what they cannot plan") {
  const auto transformer = [](Recipe recipe, const ek::TransformerOptions& options) {
    return message([&] { ek::transformer_plan(recipe, options); });
  };
  const auto net = [](NetRecipe recipe, const ek::ResidualNetOptions& options) {
    return message([&] { ek::residual_net_plan(recipe, options); });
  };
  CHECK(transformer(Recipe::deepnorm, {.width = 64, .heads = 4}) ==
        "transformer_plan: encoder_layers and decoder_layers are 0, expected at least one layer");
  CHECK(transformer(Recipe::deepnorm, {.encoder_layers = -1, .width = 64, .heads = 4}) ==
        "transformer_plan: encoder_layers is -1, expected at least 0");
  CHECK(transformer(Recipe::deepnorm, {.decoder_layers = -1, .width = 64, .heads = 4}) ==
        "transformer_plan: decoder_layers is -1, expected at least 0");
  CHECK(transformer(Recipe::deepnorm, {.decoder_layers = 1, .heads = 4}) ==
        "transformer_plan: width is 0, expected at least 1");
  CHECK(transformer(Recipe::deepnorm, {.decoder_layers = 1, .width = 64}) ==
        "transformer_plan: heads is 0, expected a divisor of the width 64");
  CHECK(transformer(Recipe::deepnorm, {.decoder_layers = 1, .width = 64, .heads = 5}) ==
        "transformer_plan: heads is 5, expected a divisor of the width 64");
  CHECK(transformer(Recipe::gpt2, {.encoder_layers = 6, .decoder_layers = 5, .width = 64, .heads = 4}) ==
        "transformer_plan: GPT-2 has one stack, expected encoder_layers or decoder_layers to be 0, not 6 and 5");
  CHECK(transformer(Recipe::mup, {.decoder_layers = 1, .width = 64, .heads = 4}) ==
        "transformer_plan: base_width is 0, expected at least 1");
  CHECK(transformer(Recipe::mup, {.decoder_layers = 1, .width = 64, .heads = 4, .base_width = 32, .base_heads = 3}) ==
        "transformer_plan: base_heads is 3, expected a divisor of the base_width 32");
  CHECK(transformer(Recipe::deepnorm, {.decoder_layers = 1, .width = 64, .heads = 4, .base_width = 32}) ==
        "transformer_plan: base_width is 32 and base_heads is 0, expected 0: DeepNorm has no base width");
  CHECK(transformer(Recipe::t_fixup, {.decoder_layers = 1, .width = 64, .heads = 4, .base = ek::BaseInit::torch}) ==
        "transformer_plan: T-Fixup brings its own initialization, expected base to be BaseInit::recipe");
  CHECK(transformer(Recipe::standard, {.decoder_layers = 1, .width = 64, .heads = 4, .base = ek::BaseInit::kaiming}) ==
        "transformer_plan: base is BaseInit::kaiming, expected xavier, torch or normal for a transformer");
  CHECK(transformer(Recipe::standard, {.decoder_layers = 1, .width = 64, .heads = 4, .std = -1}) ==
        "transformer_plan: std is -1, expected a finite number of at least 0");
  CHECK(transformer(Recipe::gpt2, {.decoder_layers = 1, .width = 64, .heads = 4, .positional_std = -1}) ==
        "transformer_plan: positional_std is -1, expected a finite number of at least 0");

  CHECK(net(NetRecipe::fixup, {}) == "residual_net_plan: stages is empty, expected the blocks of at least one stage");
  CHECK(net(NetRecipe::fixup, {.stages = {2, 0}}) == "residual_net_plan: a stage is 0, expected at least 1 block");
  CHECK(net(NetRecipe::fixup, {.stages = {2}, .branch_layers = 0}) ==
        "residual_net_plan: branch_layers is 0, expected at least 1");
  CHECK(net(NetRecipe::nfnet, {.stages = {2}, .alpha = 0}) ==
        "residual_net_plan: alpha is 0, expected a finite number above 0");
  CHECK(net(NetRecipe::standard, {.stages = {2}, .gain = -1}) ==
        "residual_net_plan: gain is -1, expected a finite number of at least 0");
  CHECK(net(NetRecipe::standard, {.stages = {2}, .std = -1}) ==
        "residual_net_plan: std is -1, expected a finite number of at least 0");
  CHECK(net(NetRecipe::nfnet, {.stages = {2}, .base = ek::BaseInit::torch}) ==
        "residual_net_plan: NFNet brings its own initialization, expected base to be BaseInit::recipe");
  CHECK(net(NetRecipe::fixup, {.stages = {2}, .learned_scale = true}) ==
        "residual_net_plan: learned_scale is set, expected it for NFNet alone, not for Fixup");
  CHECK(message([] { ek::fixup_factor(0, 2); }) == "fixup_factor: blocks is 0, expected at least 1");
  CHECK(message([] { ek::fixup_factor(2, 0); }) == "fixup_factor: branch_layers is 0, expected at least 1");
  CHECK(message([] { ek::deepnorm_scales(0); }) == "deepnorm_scales: layers is 0, expected at least 1");
  CHECK(message([] { ek::deepnorm_scales(0, 1, ek::Stack::encoder); }) ==
        "deepnorm_scales: encoder_layers is 0, expected at least 1");
  CHECK(message([] { ek::deepnorm_scales(1, 0, ek::Stack::encoder); }) ==
        "deepnorm_scales: decoder_layers is 0, expected at least 1");
}

TEST_CASE("a plan says which roles it has, and what a role needs") {
  const ek::Plan fixup = ek::residual_net_plan(NetRecipe::fixup, {.stages = {2}, .branch_layers = 2});
  const ek::Plan deep = of(Recipe::deepnorm, 2, 3), standard = of(Recipe::standard, 0, 3);
  const std::string fixup_roles =
      "expected one of stem, branch_layer 1, branch_layer 2, shortcut, classifier, "
      "scalar_bias, bias, branch_scale";
  CHECK(message([&] { fixup.std(Role::norm_weight); }) == "Plan::std: Fixup has no norm_weight, " + fixup_roles);
  CHECK(message([&] { fixup.role(ek::branch_layer(3)); }) == "Plan::role: Fixup has no branch_layer 3, " + fixup_roles);
  CHECK(message([&] { fixup.learning_rate_factor(Role::query); }) ==
        "Plan::learning_rate_factor: Fixup has no query, " + fixup_roles);
  CHECK(message([&] { fixup.weight_decay_factor(Role::query); }) ==
        "Plan::weight_decay_factor: Fixup has no query, " + fixup_roles);
  CHECK(message([&] { fixup.forward_multiplier(Role::query); }) ==
        "Plan::forward_multiplier: Fixup has no query, " + fixup_roles);
  CHECK(message([&] {
          deep.std(Role::value);
        }).starts_with("Plan::std: DeepNorm has no value, expected one of encoder embedding, encoder positional"));
  CHECK(message([&] {
          standard.std(ek::encoder(Role::value));
        }).starts_with("Plan::std: standard has no encoder value, expected one of embedding, "));
  Eigen::MatrixXd w = Eigen::MatrixXd::Constant(3, 4, 7);
  CHECK(message([&] {
          standard.initialize(Role::branch_scale, w, square, stream);
        }).starts_with("Plan::initialize: standard has no branch_scale, expected one of embedding, "));
  CHECK(message([&] { standard.initialize(Role::value, w, {.in = 0, .out = 3}, stream); }) ==
        "Plan::initialize: fans.in is 0, expected at least 1");
  CHECK(message([&] { standard.initialize(Role::value, w, {.in = 4}, stream); }) ==
        "Plan::initialize: fans.out is 0, expected at least 1");
  CHECK(message([&] { standard.std(Role::value); }) == "Plan::std: fans.in is 0, expected at least 1");
  CHECK(message([&] { standard.initialize(Role::value, w); }) ==
        "Plan::initialize: value of standard is drawn at random, expected fans and a source of random numbers");
  CHECK(message([&] { standard.initialize(Role::bias, w.topRows(2)); }) ==
        "Plan::initialize: the tensor has strides 1 and 3, expected 1 and 2, elements without gaps");
  CHECK(message([&] { fixup.attention_scale(); }) ==
        "Plan::attention_scale: a residual net has no attention, expected a transformer's plan");
  CHECK(message([&] { standard.block(3); }) == "Plan::block: block is 3, expected one of the 3 blocks, from 0");
  CHECK(message([&] { standard.block(-1); }) == "Plan::block: block is -1, expected one of the 3 blocks, from 0");
  CHECK(message([&] { standard.block(ek::Stack::encoder, 0); }) ==
        "Plan::block: block is 0, expected one of the 0 blocks, from 0");
  CHECK(message([&] { deep.block(0); }) ==
        "Plan::block: the network has an encoder and a decoder, expected the name of one of them");
  CHECK(message([&] { deep.blocks(); }) ==
        "Plan::blocks: the network has an encoder and a decoder, expected the name of one of them");
  CHECK((w.array() == 7).all());
}
