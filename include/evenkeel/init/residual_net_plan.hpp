/// Plans of residual networks of convolutions: a stem, stages of blocks whose branches have m weight layers each, a
/// classifier.
///
///   standard     x + f(x), Kaiming normal or another BaseInit
///   fixup        without norms; Kaiming normal, all but the last layer of a branch times L^(-1/(2m-2)), L the number of
///                all blocks; the last layer and the classifier 0; scalar_bias 0 before each layer and each activation, one
///                branch_scale per branch, from 1. A branch of one layer (m = 1) is that last layer.
///   nfnet        x + alpha f(x / beta), alpha = 0.2, beta = sqrt(v), for weights that are standardized and activations
///                with NfnetGain. v is 1 before the first block; a block adds alpha^2 to it; the first block of a stage
///                hands x / beta to its shortcut, too, and leaves v = 1 + alpha^2. Kaiming normal with gain 1; the
///                classifier N(0, 0.01).
///   layer_scale  x + lambda f(x), lambda a vector that starts at 0.1 up to 18 blocks, 1e-5 up to 24, 1e-6 beyond
///   skip_init    x + a f(x), a starts at 0, without norms
///   depth_scale  x + f(x) / sqrt(L)
///
/// Source: H. Zhang, Y. Dauphin, T. Ma, Fixup initialization, ICLR 2019, section 3; A. Brock et al., High-performance
/// large-scale image recognition without normalization, 2021, section 3, and Characterizing signal propagation, ICLR 2021,
/// section 4; S. De, S. Smith, Batch normalization biases residual blocks towards the identity function, 2020.
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

/// Recipes of residual networks, see the top of this file.
enum class ResidualNetRecipe { standard, fixup, nfnet, layer_scale, skip_init, depth_scale };

/// Options of residual_net_plan.
struct ResidualNetOptions {
  std::vector<Index> stages = {};    ///< blocks of each stage, {3, 4, 6, 3} say
  Index branch_layers = 2;           ///< m, weight layers of a branch
  BaseInit base = BaseInit::recipe;  ///< of all but nfnet; the recipe's is Kaiming
  double gain = relu_gain;           ///< of Kaiming
  FanMode mode = FanMode::in;        ///< of Kaiming
  double std = 0.02;                 ///< of BaseInit::normal
  double alpha = 0.2;                ///< of nfnet
  bool learned_scale = false;        ///< nfnet: each branch has a branch_scale, which starts at 0 (SkipInit)
};

/// L^(-1/(2m-2)), Fixup's factor of all but the last layer of a branch; 1 for branches of one layer, which have no such
/// layer. Throws ShapeError for blocks or branch_layers under 1. Example: `ek::fixup_factor(16, 2)` is 0.25.
inline double fixup_factor(Index blocks, Index branch_layers) {
  detail::require(blocks >= 1, "fixup_factor", "blocks", static_cast<double>(blocks), "at least 1");
  detail::require(branch_layers >= 1, "fixup_factor", "branch_layers", static_cast<double>(branch_layers),
                  "at least 1");
  if (branch_layers == 1) return 1;
  return std::pow(static_cast<double>(blocks), -1.0 / static_cast<double>(2 * branch_layers - 2));
}

namespace detail {

struct ResidualNetFacts {
  const char* name;
  const char* formula;
  bool base_free;
  bool norms;
};

inline ResidualNetFacts facts_of(ResidualNetRecipe recipe) {
  switch (recipe) {
    case ResidualNetRecipe::standard:
      return {"standard", "x + f(x)", true, true};
    case ResidualNetRecipe::fixup:
      return {"Fixup", "x + a * f(x), a a learned number, no norm", false, false};
    case ResidualNetRecipe::nfnet:
      return {"NFNet", "x + branch * f(x / beta), no norm; in a transition shortcut(x / beta) + branch * f(x / beta)",
              false, false};
    case ResidualNetRecipe::layer_scale:
      return {"LayerScale", "x + lambda * f(x), lambda a learned vector", true, true};
    case ResidualNetRecipe::skip_init:
      return {"SkipInit", "x + a * f(x), a a learned number, no norm", true, false};
    case ResidualNetRecipe::depth_scale:
      return {"depth scale", "x + branch * f(x)", true, true};
  }
  return {};
}

class ResidualNetPlanMaker {
 public:
  ResidualNetPlanMaker(ResidualNetRecipe recipe, const ResidualNetOptions& options)
      : recipe_(recipe), options_(options), facts_(facts_of(recipe)) {
    check();
    for (const Index stage : options.stages) blocks_ += stage;
    base_ = options.base != BaseInit::recipe ? options.base : BaseInit::kaiming;
    numbers_ = {.std = options.std,
                .gain = recipe == ResidualNetRecipe::nfnet ? linear_gain : options.gain,
                .mode = options.mode};
  }

  Plan make() {
    parts_.recipe = facts_.name;
    parts_.formula = facts_.formula;
    parts_.title = std::string(facts_.name) + ": stages of " + list_text(options_.stages, ", ") + " blocks, " +
                   std::to_string(options_.branch_layers) + " layers in a branch";
    add(Role::stem, base(Role::stem));
    for (Index layer = 1; layer <= options_.branch_layers; ++layer) add(branch_layer(layer), branch_start(layer));
    add(Role::shortcut, base(Role::shortcut));
    add(Role::classifier, classifier_start());
    if (recipe_ == ResidualNetRecipe::fixup) add(Role::scalar_bias, constant_start(0));
    add(Role::bias, base(Role::bias));
    if (facts_.norms) {
      add(Role::norm_weight, constant_start(1));
      add(Role::norm_bias, constant_start(0));
    }
    add_blocks();
    if (const auto& start = parts_.decoder.front().learned_scale) add(Role::branch_scale, constant_start(*start));
    return Plan(std::move(parts_));
  }

 private:
  static constexpr const char* function = "residual_net_plan";

  void check() const {
    if (options_.stages.empty())
      throw_shape_error(function, "stages is empty, expected the blocks of at least one stage");
    for (const Index stage : options_.stages)
      require(stage >= 1, function, "a stage", static_cast<double>(stage), "at least 1 block");
    require(options_.branch_layers >= 1, function, "branch_layers", static_cast<double>(options_.branch_layers),
            "at least 1");
    require(std::isfinite(options_.std) && options_.std >= 0, function, "std", options_.std,
            "a finite number of at least 0");
    require_gain(function, options_.gain);
    require(std::isfinite(options_.alpha) && options_.alpha > 0, function, "alpha", options_.alpha,
            "a finite number above 0");
    require_base(function, facts_.name, options_.base, facts_.base_free);
    if (options_.learned_scale && recipe_ != ResidualNetRecipe::nfnet)
      throw_shape_error(function, "learned_scale is set, expected it for NFNet alone, not for ", facts_.name);
  }

  StartRule base(Role role) const { return base_start(base_, role, numbers_); }

  StartRule branch_start(Index layer) const {
    StartRule start = base(Role::branch_layer);
    if (recipe_ == ResidualNetRecipe::fixup) {
      if (layer == options_.branch_layers) return constant_start(0);
      start.factor = fixup_factor(blocks_, options_.branch_layers);
    }
    return start;
  }

  StartRule classifier_start() const {
    if (recipe_ == ResidualNetRecipe::fixup) return constant_start(0);
    if (recipe_ == ResidualNetRecipe::nfnet) return {.draw = Draw::normal, .number = 0.01};
    return base(Role::classifier);
  }

  void add_blocks() {
    double variance = 1;
    for (const Index stage : options_.stages) {
      for (Index i = 0; i < stage; ++i) {
        BlockScales scales;
        if (recipe_ == ResidualNetRecipe::fixup) scales.learned_scale = 1;
        if (recipe_ == ResidualNetRecipe::layer_scale) scales.learned_scale = layer_scale_start(blocks_);
        if (recipe_ == ResidualNetRecipe::skip_init) scales.learned_scale = 0;
        if (recipe_ == ResidualNetRecipe::depth_scale) scales.branch = 1 / std::sqrt(static_cast<double>(blocks_));
        if (recipe_ == ResidualNetRecipe::nfnet) {
          scales.branch = options_.alpha;
          scales.beta = std::sqrt(variance);
          scales.transition = i == 0;
          if (options_.learned_scale) scales.learned_scale = 0;
          variance = (i == 0 ? 1 : variance) + options_.alpha * options_.alpha;
        }
        parts_.decoder.push_back(scales);
      }
    }
  }

  void add(const RoleOf& of, const StartRule& start) {
    parts_.entries.push_back({of, {.start = start, .weight_decay = never_decayed(of.role) ? 0.0 : 1.0}});
  }

  ResidualNetRecipe recipe_;
  ResidualNetOptions options_;
  ResidualNetFacts facts_;
  Index blocks_ = 0;
  BaseInit base_ = BaseInit::kaiming;
  BaseNumbers numbers_;
  PlanParts parts_;
};

}  // namespace detail

/// The plan of a residual network. Its roles are stem, branch_layer(1) to branch_layer(m), shortcut, classifier, bias,
/// but for Fixup, NFNet and SkipInit norm_weight and norm_bias, for Fixup scalar_bias, and where branches have a learned
/// scale branch_scale. Blocks are counted through all stages, from 0.
///
/// Throws ShapeError: no stage, a stage without blocks, branch_layers under 1, a base for a recipe that has its own, an
/// alpha that is not above 0. Example:
///
///   const ek::Plan plan = ek::residual_net_plan(ek::ResidualNetRecipe::fixup, {.stages = {3, 4, 6, 3}});
///   plan.initialize(ek::branch_layer(1), kernel, fans, ek::RandomStream(42, "0.conv1"));
inline Plan residual_net_plan(ResidualNetRecipe recipe, const ResidualNetOptions& options) {
  return detail::ResidualNetPlanMaker(recipe, options).make();
}

}  // namespace evenkeel
