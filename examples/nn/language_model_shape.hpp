#pragma once

#include "evenkeel/init/transformer_plan.hpp"
#include "nn/matrix.hpp"

#include <optional>
#include <string_view>

namespace nn {

enum class Placement { pre, post, deepnorm, rezero };

inline std::optional<Placement> placement_from(std::string_view name) {
  if (name == "pre") return Placement::pre;
  if (name == "post") return Placement::post;
  if (name == "deepnorm") return Placement::deepnorm;
  if (name == "rezero") return Placement::rezero;
  return std::nullopt;
}

struct LanguageModelShape {
  Index vocabulary = 256;
  Index depth = 4;
  Index width = 128;
  Index heads = 4;
  Index context = 128;
  Placement placement = Placement::pre;

  /// 8/3 of the width makes SwiGLU's three matrices as large as the two of a feed forward of 4 times the width.
  Index hidden() const { return (8 * width / 3 + 15) / 16 * 16; }
};

/// How weights start, and what of it the depth or the width changes.
enum class Start { gpt2, standard, xavier, deepnorm, mup };

inline std::optional<Start> start_from(std::string_view name) {
  if (name == "gpt2") return Start::gpt2;
  if (name == "standard") return Start::standard;
  if (name == "xavier") return Start::xavier;
  if (name == "deepnorm") return Start::deepnorm;
  if (name == "mup") return Start::mup;
  return std::nullopt;
}

/// N(0, 0.02) at the width `base_width` for standard and mup, which are the same there. xavier is DeepNorm's start without
/// its beta.
inline ek::Plan plan_of(const LanguageModelShape& shape, Start start, Index base_width = 0) {
  ek::TransformerOptions options{.decoder_layers = shape.depth, .width = shape.width, .heads = shape.heads};
  if (start == Start::gpt2) return ek::transformer_plan(ek::TransformerRecipe::gpt2, options);
  if (start == Start::deepnorm) return ek::transformer_plan(ek::TransformerRecipe::deepnorm, options);
  options.base = start == Start::xavier ? ek::BaseInit::xavier : ek::BaseInit::normal;
  if (start == Start::standard || start == Start::xavier)
    return ek::transformer_plan(ek::TransformerRecipe::standard, options);
  options.base_width = base_width;
  options.base_heads = shape.heads;
  return ek::transformer_plan(ek::TransformerRecipe::mup, options);
}

}  // namespace nn
