/// Plans of transformers.
///
///   standard     x + f(x), BaseInit's weights
///   gpt2         N(0, 0.02); attention_output and ffn_down N(0, 0.02 / sqrt(2 layers)); biases 0
///   deepnorm     norm(alpha x + f(x)); Xavier normal, value, attention_output and the FFN's matrices times beta
///                one stack of N: alpha = (2N)^(1/4), beta = (8N)^(-1/4)
///                both, N and M: encoder alpha = 0.81 (N^4 M)^(1/16), beta = 0.87 (N^4 M)^(-1/16); decoder (3M)^(1/4),
///                (12M)^(-1/4)
///   t_fixup      x + f(x) without norms; Xavier uniform, embeddings N(0, width^(-1/2)); embeddings times (9N)^(-1/4),
///                value, attention_output and the FFN's matrices times 0.67 N^(-1/4) in the encoder and (9M)^(-1/4) in
///                the decoder
///   mup          x + f(x), see below
///   layer_scale  x + lambda f(x), lambda a vector that starts at 0.1 up to 18 layers, 1e-5 up to 24, 1e-6 beyond
///   rezero       x + a f(x), a starts at 0
///   depth_scale  x + f(x) / sqrt(branches): two in a layer, three in the decoder of a network that has both
///
/// muP, in the formulation with the readout multiplier in the forward pass, m = width / base_width. All standard
/// deviations are those of the base width, with the fans that a weight has there:
///
///                            std              forward   Adam LR   decay      SGD LR   decay
///   embeddings, biases,      as at the base   1         1         1          m        1/m
///   norms
///   hidden                   base / sqrt(m)   1         1/m       m          1        1
///   head                     as at the base   1/m       1         1          m        1/m
///
///   attention logits q.k sqrt(d_head_base) / d_head, which is 1/sqrt(d_head) at the base. The decay's factors are for an
///   optimizer that multiplies it by the learning rate, as torch's AdamW does; biases and norms have none. All hidden
///   widths grow by the same m. With m = 1 it is the standard plan, to the bit.
///
/// Source: A. Radford et al., Language models are unsupervised multitask learners, 2019; H. Wang et al., DeepNet, 2022,
/// figure 2 and table 2; X. Huang et al., Improving transformer optimization through better initialization, ICML 2020,
/// section 3.2; G. Yang et al., Tensor programs V, 2022, table 8; H. Touvron et al., Going deeper with image
/// transformers, ICCV 2021; T. Bachlechner et al., ReZero is all you need, 2020.
#pragma once

#include "evenkeel/init/base_start.hpp"
#include "evenkeel/init/plan_table.hpp"
#include "evenkeel/residual/layer_scale_start.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace evenkeel {

/// Recipes of transformers, see the top of this file.
enum class TransformerRecipe { standard, gpt2, deepnorm, t_fixup, mup, layer_scale, rezero, depth_scale };

/// Whose learning rates muP scales.
enum class Optimizer { adam, sgd };

/// Options of transformer_plan.
struct TransformerOptions {
  Index encoder_layers = 0;  ///< 0 for a decoder alone
  Index decoder_layers = 0;  ///< 0 for an encoder alone
  Index width = 0;
  Index heads = 0;
  BaseInit base = BaseInit::recipe;  ///< of standard, layer_scale, rezero, depth_scale (Xavier) and mup (normal)
  double std = 0.02;                 ///< of BaseInit::normal
  double positional_std = 0.02;      ///< of gpt2; 0.01 in its first release

  // muP only.
  Index base_width = 0;
  Index base_heads = 0;
  Optimizer optimizer = Optimizer::adam;
  bool decay_times_learning_rate = true;  ///< false for an optimizer whose decay does not see the learning rate
  bool zero_head = false;                 ///< the head starts at 0
};

/// The two scales of DeepNorm.
struct DeepNormScales {
  double alpha = 1;  ///< norm(alpha * x + f(x))
  double beta = 1;   ///< of value, attention_output and the FFN's weights
};

/// DeepNorm of an encoder alone or a decoder alone. Throws ShapeError for layers under 1.
inline DeepNormScales deepnorm_scales(Index layers) {
  detail::require(layers >= 1, "deepnorm_scales", "layers", static_cast<double>(layers), "at least 1");
  const auto n = static_cast<double>(layers);
  return {.alpha = std::pow(2 * n, 0.25), .beta = std::pow(8 * n, -0.25)};
}

/// DeepNorm of one stack of a network that has both. Throws ShapeError for layers under 1.
inline DeepNormScales deepnorm_scales(Index encoder_layers, Index decoder_layers, Stack stack) {
  detail::require(encoder_layers >= 1, "deepnorm_scales", "encoder_layers", static_cast<double>(encoder_layers),
                  "at least 1");
  detail::require(decoder_layers >= 1, "deepnorm_scales", "decoder_layers", static_cast<double>(decoder_layers),
                  "at least 1");
  const auto n = static_cast<double>(encoder_layers), m = static_cast<double>(decoder_layers);
  if (stack == Stack::decoder) return {.alpha = std::pow(3 * m, 0.25), .beta = std::pow(12 * m, -0.25)};
  const double root = std::pow(n * n * n * n * m, 0.0625);
  return {.alpha = 0.81 * root, .beta = 0.87 / root};
}

namespace detail {

/// What one recipe differs in.
struct TransformerFacts {
  const char* name;
  const char* formula;
  bool base_free;    // the user may choose the base initialization
  bool norms;        // it has norms
  bool both_stacks;  // it is defined for an encoder with a decoder
};

inline TransformerFacts facts_of(TransformerRecipe recipe) {
  switch (recipe) {
    case TransformerRecipe::standard:
      return {"standard", "x + f(x)", true, true, true};
    case TransformerRecipe::gpt2:
      return {"GPT-2", "x + f(norm(x))", false, true, false};
    case TransformerRecipe::deepnorm:
      return {"DeepNorm", "norm(skip * x + f(x))", false, true, true};
    case TransformerRecipe::t_fixup:
      return {"T-Fixup", "x + f(x), no norm", false, false, true};
    case TransformerRecipe::mup:
      return {"muP", "x + f(norm(x))", true, true, true};
    case TransformerRecipe::layer_scale:
      return {"LayerScale", "x + lambda * f(norm(x)), lambda a learned vector", true, true, true};
    case TransformerRecipe::rezero:
      return {"ReZero", "x + a * f(x), a a learned number", true, true, true};
    case TransformerRecipe::depth_scale:
      return {"depth scale", "x + branch * f(norm(x))", true, true, true};
  }
  return {};
}

inline bool writes_residual(Role role) { return role == Role::attention_output || role == Role::ffn_down; }

/// The matrices that DeepNorm and T-Fixup scale; of a gated FFN all three.
inline bool scaled_in_branch(Role role) {
  return role == Role::value || role == Role::attention_output || role == Role::ffn_gate || role == Role::ffn_up ||
         role == Role::ffn_down;
}

/// One stack of a network, or its only one.
struct StackShape {
  Stack stack;
  Index layers;
  bool two;  // there is another stack
};

class TransformerPlanMaker {
 public:
  TransformerPlanMaker(TransformerRecipe recipe, const TransformerOptions& options)
      : recipe_(recipe), options_(options), facts_(facts_of(recipe)) {
    check();
    if (recipe == TransformerRecipe::mup)
      ratio_ = static_cast<double>(options.width) / static_cast<double>(options.base_width);
    base_ = options.base != BaseInit::recipe   ? options.base
            : recipe == TransformerRecipe::mup ? BaseInit::normal
                                               : BaseInit::xavier;
    numbers_ = {.std = options.std, .width = static_cast<double>(options.width) / ratio_};
  }

  Plan make() {
    const bool two = options_.encoder_layers > 0 && options_.decoder_layers > 0;
    parts_.recipe = facts_.name;
    parts_.formula = facts_.formula;
    parts_.title = title();
    if (options_.encoder_layers > 0) add_stack({Stack::encoder, options_.encoder_layers, two}, parts_.encoder);
    if (options_.decoder_layers > 0) add_stack({Stack::decoder, options_.decoder_layers, two}, parts_.decoder);
    add(Role::head, start(Role::head, {}));
    add(Role::bias, start(Role::bias, {}));
    if (facts_.norms) {
      add(Role::norm_weight, constant_start(1));
      add(Role::norm_bias, constant_start(0));
    }
    parts_.attention_scale = attention_scale();
    return Plan(std::move(parts_));
  }

 private:
  static constexpr const char* function = "transformer_plan";

  void check() const {
    const TransformerOptions& o = options_;
    require(o.encoder_layers >= 0, function, "encoder_layers", static_cast<double>(o.encoder_layers), "at least 0");
    require(o.decoder_layers >= 0, function, "decoder_layers", static_cast<double>(o.decoder_layers), "at least 0");
    if (o.encoder_layers + o.decoder_layers == 0)
      throw_shape_error(function, "encoder_layers and decoder_layers are 0, expected at least one layer");
    if (!facts_.both_stacks && o.encoder_layers > 0 && o.decoder_layers > 0)
      throw_shape_error(function, facts_.name,
                        " has one stack, expected encoder_layers or decoder_layers to be 0, not ", o.encoder_layers,
                        " and ", o.decoder_layers);
    check_heads("width", o.width, "heads", o.heads);
    require(std::isfinite(o.std) && o.std >= 0, function, "std", o.std, "a finite number of at least 0");
    require(std::isfinite(o.positional_std) && o.positional_std >= 0, function, "positional_std", o.positional_std,
            "a finite number of at least 0");
    require_base(function, facts_.name, o.base, facts_.base_free);
    if (o.base == BaseInit::kaiming)
      throw_shape_error(function, "base is BaseInit::kaiming, expected xavier, torch or normal for a transformer");
    if (recipe_ == TransformerRecipe::mup) {
      check_heads("base_width", o.base_width, "base_heads", o.base_heads);
    } else if (o.base_width != 0 || o.base_heads != 0) {
      throw_shape_error(function, "base_width is ", o.base_width, " and base_heads is ", o.base_heads,
                        ", expected 0: ", facts_.name, " has no base width");
    }
  }

  static void check_heads(const char* width_name, Index width, const char* heads_name, Index heads) {
    require(width >= 1, function, width_name, static_cast<double>(width), "at least 1");
    if (heads < 1 || width % heads != 0)
      throw_shape_error(function, heads_name, " is ", heads, ", expected a divisor of the ", width_name, " ", width);
  }

  std::string title() const {
    std::string text = std::string(facts_.name) + ":";
    if (options_.encoder_layers > 0) text += " encoder of " + std::to_string(options_.encoder_layers) + " layers,";
    if (options_.decoder_layers > 0) text += " decoder of " + std::to_string(options_.decoder_layers) + " layers,";
    text += " width " + std::to_string(options_.width) + ", heads " + std::to_string(options_.heads);
    if (recipe_ == TransformerRecipe::mup)
      text += "; width ratio " + value_text(ratio_) + (options_.optimizer == Optimizer::adam ? ", Adam" : ", SGD");
    return text;
  }

  double attention_scale() const {
    const Index features_of_head = options_.width / options_.heads;
    const double d_head = static_cast<double>(features_of_head);
    if (recipe_ != TransformerRecipe::mup) return 1 / std::sqrt(d_head);
    const Index base = options_.base_width / options_.base_heads;
    // The same expression as above where it is the same number.
    if (base * options_.heads == options_.width) return 1 / std::sqrt(d_head);
    return std::sqrt(static_cast<double>(base)) / d_head;
  }

  void add_stack(const StackShape& shape, std::vector<BlockScales>& blocks) {
    constexpr std::array roles{Role::embedding,        Role::positional, Role::query,  Role::key,     Role::value,
                               Role::attention_output, Role::ffn_gate,   Role::ffn_up, Role::ffn_down};
    for (const Role role : roles) add(stack_role(role, shape), start(role, shape));
    const BlockScales scales = block(shape);
    if (scales.learned_scale) add(stack_role(Role::branch_scale, shape), constant_start(*scales.learned_scale));
    blocks.assign(static_cast<std::size_t>(shape.layers), scales);
  }

  static RoleOf stack_role(Role role, const StackShape& shape) {
    return shape.two ? RoleOf(role, shape.stack) : RoleOf(role);
  }

  DeepNormScales deepnorm(const StackShape& shape) const {
    return shape.two ? deepnorm_scales(options_.encoder_layers, options_.decoder_layers, shape.stack)
                     : deepnorm_scales(shape.layers);
  }

  BlockScales block(const StackShape& shape) const {
    BlockScales scales;
    if (recipe_ == TransformerRecipe::deepnorm) scales.skip = deepnorm(shape).alpha;
    if (recipe_ == TransformerRecipe::layer_scale) scales.learned_scale = layer_scale_start(shape.layers);
    if (recipe_ == TransformerRecipe::rezero) scales.learned_scale = 0;
    if (recipe_ == TransformerRecipe::depth_scale) {
      const Index in_layer = shape.two && shape.stack == Stack::decoder ? 3 : 2;
      scales.branch = 1 / std::sqrt(static_cast<double>(in_layer * shape.layers));
    }
    return scales;
  }

  StartRule start(Role role, const StackShape& shape) const {
    StartRule start = base_start(base_, role, numbers_);
    const bool embedding = role == Role::embedding || role == Role::positional;
    const auto layers = static_cast<double>(shape.layers);
    if (recipe_ == TransformerRecipe::gpt2 && role != Role::bias) {
      start = {.draw = Draw::normal, .number = role == Role::positional ? options_.positional_std : 0.02};
      if (writes_residual(role)) start.number = gpt2_residual_std(shape.layers);
    }
    if (recipe_ == TransformerRecipe::deepnorm) {
      if (start.draw == Draw::xavier_uniform) start.draw = Draw::xavier_normal;
      if (scaled_in_branch(role)) start.factor = deepnorm(shape).beta;
    }
    if (recipe_ == TransformerRecipe::t_fixup) {
      if (embedding) start.factor = std::pow(9 * layers, -0.25);
      if (scaled_in_branch(role))
        start.factor = shape.stack == Stack::encoder ? 0.67 * std::pow(layers, -0.25) : std::pow(9 * layers, -0.25);
    }
    if (recipe_ == TransformerRecipe::mup) scale_width(role, start);
    return start;
  }

  static bool hidden(Role role) { return role == Role::query || role == Role::key || scaled_in_branch(role); }

  /// Fans are taken back to the base width: both of a hidden weight, fan_in of the head and of a bias, which stands beside
  /// one of them. Embeddings start from no fan.
  void scale_width(Role role, StartRule& start) const {
    if (hidden(role)) {
      start.factor = 1 / std::sqrt(ratio_);
      start.out_ratio = ratio_;
    }
    start.in_ratio = ratio_;
    if (role == Role::head && options_.zero_head) start = constant_start(0);
  }

  void add(const RoleOf& of, const StartRule& start) {
    RolePlan plan{.start = start, .weight_decay = never_decayed(of.role) ? 0.0 : 1.0};
    if (recipe_ == TransformerRecipe::mup) {
      const bool is_hidden = hidden(of.role);
      if (of.role == Role::head) plan.forward = 1 / ratio_;
      if (options_.optimizer == Optimizer::adam)
        plan.learning_rate = is_hidden ? 1 / ratio_ : 1;
      else
        plan.learning_rate = is_hidden ? 1 : ratio_;
      const bool compensated = options_.decay_times_learning_rate && plan.weight_decay != 0;
      if (compensated && options_.optimizer == Optimizer::adam) plan.weight_decay = is_hidden ? ratio_ : 1;
      if (compensated && options_.optimizer == Optimizer::sgd) plan.weight_decay = is_hidden ? 1 : 1 / ratio_;
    }
    parts_.entries.push_back({of, plan});
  }

  TransformerRecipe recipe_;
  TransformerOptions options_;
  TransformerFacts facts_;
  double ratio_ = 1;
  BaseInit base_ = BaseInit::xavier;
  BaseNumbers numbers_;
  PlanParts parts_;
};

}  // namespace detail

/// The plan of a transformer. Its roles are embedding, positional, query, key, value, attention_output, ffn_gate, ffn_up,
/// ffn_down in each stack, head, bias and, but for T-Fixup, norm_weight and norm_bias; LayerScale and ReZero have a
/// branch_scale. In a network with an encoder and a decoder the first nine and branch_scale are named with their stack:
/// ek::encoder(ek::Role::value). Attention from decoder to encoder counts as the decoder's.
///
/// Throws ShapeError: no layers, a width under 1, heads that do not divide it, for muP the same of base_width and
/// base_heads, both of which other recipes must leave at 0, two stacks for GPT-2, a base for a recipe that has its own.
/// Example: see plan.hpp.
inline Plan transformer_plan(TransformerRecipe recipe, const TransformerOptions& options) {
  return detail::TransformerPlanMaker(recipe, options).make();
}

}  // namespace evenkeel
