#pragma once

#include "evenkeel/residual/post_norm.hpp"
#include "evenkeel/residual/pre_norm.hpp"
#include "evenkeel/residual/rezero.hpp"
#include "nn/matrix.hpp"

#include <optional>
#include <string_view>
#include <utility>
#include <variant>

namespace nn {

enum class Placement { pre, post, rezero };

inline std::optional<Placement> placement_from(std::string_view name) {
  if (name == "pre") return Placement::pre;
  if (name == "post") return Placement::post;
  if (name == "rezero") return Placement::rezero;
  return std::nullopt;
}

/// A sublayer on its residual branch, the placement chosen at run time.
template <class T, class Norm, class Sublayer>
class Residual {
 public:
  Residual(Placement placement, Norm norm, Sublayer sublayer)
      : block_(make(placement, std::move(norm), std::move(sublayer))) {}

  template <class Device>
  void forward(const Device& device, const Matrix<T>& x, Matrix<T>& y) {
    std::visit([&](auto& block) { block.forward(device, x, y); }, block_);
  }

  template <class Device>
  void backward(const Device& device, const Matrix<T>& dy, const Matrix<T>& x, Matrix<T>& dx) {
    std::visit([&](auto& block) { block.backward(device, dy, x, dx); }, block_);
  }

  template <class F>
  void for_each_parameter(F&& f) {
    std::visit([&](auto& block) { block.for_each_parameter(f); }, block_);
  }

  Sublayer& sublayer() {
    return std::visit([](auto& block) -> Sublayer& { return block.sublayer; }, block_);
  }

 private:
  using Pre = ek::PreNorm<Norm, Sublayer>;
  using Post = ek::PostNorm<Norm, Sublayer>;
  using Zero = ek::ReZero<T, Sublayer>;
  using Block = std::variant<Pre, Post, Zero>;

  static Block make(Placement placement, Norm norm, Sublayer sublayer) {
    switch (placement) {
      case Placement::pre:
        return Pre(std::move(norm), std::move(sublayer));
      case Placement::post:
        return Post(std::move(norm), std::move(sublayer));
      default:
        return Zero(std::move(sublayer));
    }
  }

  Block block_;
};

}  // namespace nn
