#pragma once

#include "nn/matrix.hpp"

#include <optional>
#include <string_view>

namespace nn {

enum class Placement { pre, post, rezero };

inline std::optional<Placement> placement_from(std::string_view name) {
  if (name == "pre") return Placement::pre;
  if (name == "post") return Placement::post;
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

}  // namespace nn
