/// The plan of a network: for each parameter what it starts from, how its learning rate and weight decay are scaled and
/// what its layer's output is multiplied by; for each residual block its scales; for attention the scale of its logits.
///
/// A depth or width recipe is right only as a whole: DeepNorm's weights want its residual scale, muP's weights its
/// learning rates and its multiplier. So one object holds all of it, and it is made whole: transformer_plan,
/// residual_net_plan. What is initialized is filled, never multiplied, so doing it twice changes nothing.
///
/// Example:
///
///   const ek::Plan plan = ek::transformer_plan(ek::TransformerRecipe::deepnorm,
///                                              {.decoder_layers = 12, .width = 768, .heads = 12});
///   plan.initialize(ek::Role::value, w_v, ek::fans_of_linear(768, 768), ek::RandomStream(42, "0.value"));
///   const double alpha = plan.block(0).skip;           // norm(alpha * x + f(x))
///   std::cout << plan;                                 // plan_table.hpp
#pragma once

#include "evenkeel/init/initializers.hpp"
#include "evenkeel/init/role.hpp"

#include <cmath>
#include <concepts>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace evenkeel {

/// How a parameter starts.
enum class Draw {
  constant,
  normal,         ///< N(0, number)
  xavier_normal,  ///< the number is the gain, for xavier and kaiming
  xavier_uniform,
  kaiming_normal,
  torch_uniform  ///< U(-number / sqrt(fan_in), number / sqrt(fan_in))
};

/// What a parameter is filled with: a distribution whose standard deviation is multiplied by `factor`.
struct StartRule {
  Draw draw = Draw::constant;
  double number = 0;           ///< the constant; the standard deviation; the gain
  double factor = 1;           ///< what the recipe multiplies the standard deviation by
  FanMode mode = FanMode::in;  ///< of kaiming_normal
  double in_ratio = 1;         ///< muP: fan_in is divided by this first, which makes it the fan at the base width
  double out_ratio = 1;
};

/// All that a plan says about one parameter.
struct RolePlan {
  StartRule start;
  double learning_rate = 1;
  double weight_decay = 1;
  double forward = 1;  ///< what the output of its layer is multiplied by
};

/// The scales of one residual block: x_next = skip * x + branch * f(x / beta), times a learned scale on f where there is
/// one, and a norm around it where the recipe has one.
struct BlockScales {
  double skip = 1;                           ///< DeepNorm's alpha
  double branch = 1;                         ///< NFNet's alpha, the depth scale
  double beta = 1;                           ///< NFNet: the branch reads x / beta
  std::optional<double> learned_scale = {};  ///< what branch_scale starts at: LayerScale, ReZero, SkipInit, Fixup
  bool transition = false;                   ///< NFNet, first of a stage: the shortcut reads x / beta, too
};

namespace detail {

/// What a plan is made of.
struct PlanParts {
  struct Entry {
    RoleOf of;
    RolePlan plan;
  };
  std::string recipe;   // its name in messages
  std::string title;    // the first line of the table
  std::string formula;  // of a block
  std::vector<Entry> entries;
  std::vector<BlockScales> encoder, decoder;  // a network with one stack has its blocks in either
  std::optional<double> attention_scale;
};

}  // namespace detail

/// See the top of this file. Functions of a role throw ShapeError where the recipe has no such role, or where the network
/// has two stacks and the role does not say which, and name the roles that there are.
class Plan {
 public:
  /// Made by transformer_plan and residual_net_plan.
  explicit Plan(detail::PlanParts parts) : parts_(std::move(parts)) {}

  /// The recipe's name, as in messages: "DeepNorm".
  const std::string& recipe() const { return parts_.recipe; }
  /// All about one role.
  const RolePlan& role(const RoleOf& of) const { return find("Plan::role", of); }
  /// Whether the recipe has this role, as named.
  bool has(const RoleOf& of) const { return lookup(of) != nullptr; }

  /// What the optimizer's learning rate is multiplied by.
  double learning_rate_factor(const RoleOf& of) const { return find("Plan::learning_rate_factor", of).learning_rate; }
  /// What the optimizer's weight decay is multiplied by; 0 for biases, norms and scales.
  double weight_decay_factor(const RoleOf& of) const { return find("Plan::weight_decay_factor", of).weight_decay; }
  /// What the output of the parameter's layer is multiplied by in the forward pass (muP's head).
  double forward_multiplier(const RoleOf& of) const { return find("Plan::forward_multiplier", of).forward; }

  /// The standard deviation of the values, 0 for a constant. Throws ShapeError for a fan under 1 that it depends on.
  double std(const RoleOf& of, Fans fans = {}) const {
    const StartRule& start = find("Plan::std", of).start;
    if (start.draw == Draw::torch_uniform) return bound_of("Plan::std", start, fans) / std::sqrt(3.0);
    return std_of("Plan::std", start, fans);
  }

  /// What no value exceeds in magnitude: the bound of a uniform distribution, infinity for a normal one, a constant's
  /// own. Throws ShapeError for a fan under 1 that it depends on.
  double bound(const RoleOf& of, Fans fans = {}) const {
    const StartRule& start = find("Plan::bound", of).start;
    if (start.draw == Draw::constant) return std::abs(start.number);
    if (start.draw == Draw::torch_uniform) return bound_of("Plan::bound", start, fans);
    if (start.draw == Draw::xavier_uniform) return detail::uniform_bound(std_of("Plan::bound", start, fans));
    return std::numeric_limits<double>::infinity();
  }

  /// Fills a parameter. `fans` are those of its weight, at the full width, for a bias those of the weight beside it; a
  /// Fans{} serves roles that have no use for them. A tensor without elements is left alone. Memory order and sources are
  /// those of ek::normal; with an ek::CudaRandom the parameter lies on its device. Throws ShapeError for a fan under 1 that the distribution depends on.
  template <RandomScalar T, RandomSource Source>
  void initialize(const RoleOf& of, T* data, Index size, Fans fans, Source&& source) const {
    const char* const function = "Plan::initialize";
    const StartRule& start = find(function, of).start;
    if (size == 0) return;
    switch (start.draw) {
      case Draw::constant:
        // U(v, v) is v, to the bit, and lies where the source writes, which may be a device; a sequential source is not
        // to be moved on.
        if constexpr (std::same_as<std::remove_cvref_t<Source>, TorchRandom>)
          constant(data, size, start.number);
        else
          source.fill_uniform(data, size, start.number, start.number);
        return;
      case Draw::normal:
      case Draw::xavier_normal:
      case Draw::kaiming_normal:
        detail::fill_normal(function, data, size, 0, std_of(function, start, fans), source);
        return;
      case Draw::xavier_uniform:
      case Draw::torch_uniform: {
        const double bound = start.draw == Draw::torch_uniform ? bound_of(function, start, fans)
                                                               : detail::uniform_bound(std_of(function, start, fans));
        detail::fill_uniform(function, data, size, -bound, bound, source);
      }
    }
  }

  template <Fillable Tensor, RandomSource Source>
  void initialize(const RoleOf& of, Tensor&& tensor, Fans fans, Source&& source) const {
    initialize(of, tensor.data(), detail::contiguous_size("Plan::initialize", tensor), fans, source);
  }

  /// Fills a parameter that starts from a constant: norms, scales, most biases. Throws ShapeError for a role that is
  /// drawn.
  template <RandomScalar T>
  void initialize(const RoleOf& of, T* data, Index size) const {
    const StartRule& start = find("Plan::initialize", of).start;
    if (start.draw != Draw::constant)
      detail::throw_shape_error("Plan::initialize", role_text(of), " of ", recipe(), " is drawn at random, expected ",
                                "fans and a source of random numbers");
    constant(data, size, start.number);
  }

  template <Fillable Tensor>
  void initialize(const RoleOf& of, Tensor&& tensor) const {
    initialize(of, tensor.data(), detail::contiguous_size("Plan::initialize", tensor));
  }

  /// What q.k is multiplied by before the softmax. Throws ShapeError for a plan without attention.
  double attention_scale() const {
    if (!parts_.attention_scale)
      detail::throw_shape_error("Plan::attention_scale",
                                "a residual net has no attention, expected a transformer's plan");
    return *parts_.attention_scale;
  }

  /// Blocks of a network with one stack: transformer layers, or residual blocks from the first stage on.
  Index blocks() const { return static_cast<Index>(only_stack("Plan::blocks").size()); }
  Index blocks(Stack stack) const { return static_cast<Index>(stack_blocks(stack).size()); }
  /// The scales of block i, from 0. Throws ShapeError for no such block, and for two stacks of which none is named.
  const BlockScales& block(Index i) const { return at(only_stack("Plan::block"), i); }
  const BlockScales& block(Stack stack, Index i) const { return at(stack_blocks(stack), i); }

  /// What the plan is made of, for plan_table.
  const detail::PlanParts& parts() const { return parts_; }

 private:
  const RolePlan* lookup(const RoleOf& of) const {
    for (const auto& entry : parts_.entries)
      if (entry.of.role == of.role && entry.of.stack == of.stack && entry.of.layer == of.layer) return &entry.plan;
    if (!of.stack) return nullptr;
    // Roles that belong to no stack, and a network with one stack, may be named with it.
    const bool two = !parts_.encoder.empty() && !parts_.decoder.empty();
    if (!two && stack_blocks(*of.stack).empty()) return nullptr;
    RoleOf anywhere = of;
    anywhere.stack.reset();
    return lookup(anywhere);
  }

  const RolePlan& find(const char* function, const RoleOf& of) const {
    if (const RolePlan* const plan = lookup(of)) return *plan;
    std::string names;
    for (const auto& entry : parts_.entries) names += (names.empty() ? "" : ", ") + role_text(entry.of);
    detail::throw_shape_error(function, parts_.recipe, " has no ", role_text(of), ", expected one of ", names);
  }

  const std::vector<BlockScales>& stack_blocks(Stack stack) const {
    return stack == Stack::encoder ? parts_.encoder : parts_.decoder;
  }
  const std::vector<BlockScales>& only_stack(const char* function) const {
    if (!parts_.encoder.empty() && !parts_.decoder.empty())
      detail::throw_shape_error(function, "the network has an encoder and a decoder, expected the name of one of them");
    return parts_.encoder.empty() ? parts_.decoder : parts_.encoder;
  }
  static const BlockScales& at(const std::vector<BlockScales>& blocks, Index i) {
    if (i < 0 || i >= static_cast<Index>(blocks.size()))
      detail::throw_shape_error("Plan::block", "block is ", i, ", expected one of the ", blocks.size(),
                                " blocks, from 0");
    return blocks[static_cast<std::size_t>(i)];
  }

  static double std_of(const char* function, const StartRule& start, const Fans& fans) {
    switch (start.draw) {
      case Draw::normal:
        return start.factor * start.number;
      case Draw::xavier_normal:
      case Draw::xavier_uniform:
        detail::require_fans(function, fans, true, true);
        return start.factor * (start.number * std::sqrt(2.0 / (static_cast<double>(fans.in) / start.in_ratio +
                                                               static_cast<double>(fans.out) / start.out_ratio)));
      case Draw::kaiming_normal: {
        const double fan = detail::fan_of(function, fans, start.mode);
        return start.factor *
               (start.number / std::sqrt(fan / (start.mode == FanMode::in ? start.in_ratio : start.out_ratio)));
      }
      case Draw::constant:
      case Draw::torch_uniform:
        break;
    }
    return 0;
  }
  static double bound_of(const char* function, const StartRule& start, const Fans& fans) {
    detail::require_fans(function, fans, true, false);
    return start.factor * (start.number / std::sqrt(static_cast<double>(fans.in) / start.in_ratio));
  }

  detail::PlanParts parts_;
};

}  // namespace evenkeel
