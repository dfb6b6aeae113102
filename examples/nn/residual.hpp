#pragma once

#include "evenkeel/residual/deep_norm.hpp"
#include "evenkeel/residual/post_norm.hpp"
#include "evenkeel/residual/pre_norm.hpp"
#include "evenkeel/residual/residual_sum.hpp"
#include "evenkeel/residual/rezero.hpp"
#include "nn/fold.hpp"
#include "nn/language_model_shape.hpp"
#include "nn/matrix.hpp"

#include <stdexcept>
#include <type_traits>
#include <utility>
#include <variant>

namespace nn {

/// y = x + f(x), for inference: what is left of a pre-norm block whose norm has been folded into f.
template <class T, class Sublayer>
struct FoldedBlock {
  template <class Device>
  void forward(const Device& device, const Matrix<T>& x, Matrix<T>& y) {
    sublayer.forward(device, x, y);
    ek::residual_sum(device, x, y, y);
  }
  template <class Device>
  void backward(const Device&, const Matrix<T>&, const Matrix<T>&, Matrix<T>&) {
    throw std::logic_error("FoldedBlock::backward: a folded block is for inference");
  }
  template <class F>
  void for_each_parameter(F&& f) {
    sublayer.for_each_parameter(f);
  }

  Sublayer sublayer;
};

/// A sublayer on its residual branch, the placement chosen at run time.
template <class T, class Norm, class Sublayer>
class Residual {
 public:
  Residual(const LanguageModelShape& shape, Norm norm, Sublayer sublayer)
      : block_(make(shape, std::move(norm), std::move(sublayer))) {}

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

  auto& norm() { return std::get<Pre>(block_).norm.norm(); }

  /// Leaves out the norm, once what it does is in the sublayer's first layer.
  void fold_norm() {
    if (!std::holds_alternative<Pre>(block_)) throw std::logic_error("fold_norm: the norm has been folded already");
    Pre& pre = std::get<Pre>(block_);
    fold_into(pre.norm.norm(), pre.sublayer.projection());
    block_ = Folded{Sublayer(std::move(pre.sublayer))};
  }

  Sublayer& sublayer() {
    return std::visit([](auto& block) -> Sublayer& { return block.sublayer; }, block_);
  }

 private:
  static constexpr bool tapers = requires(Norm & norm) { norm.norm().linear_map(); };
  using Pre = ek::PreNorm<Norm, Sublayer>;
  using Post = ek::PostNorm<Norm, Sublayer>;
  using Deep = ek::DeepNorm<Norm, Sublayer>;
  using Zero = ek::ReZero<T, Sublayer>;
  using Folded = FoldedBlock<T, Sublayer>;
  // Norms that can be removed are for pre-norm.
  using Block =
      std::conditional_t<is_removable_norm<Norm>, std::variant<Pre, Folded>, std::variant<Pre, Post, Deep, Zero>>;

  static Block make(const LanguageModelShape& shape, Norm norm, Sublayer sublayer) {
    if constexpr (!is_removable_norm<Norm>) {
      if (shape.placement == Placement::post) return Post(std::move(norm), std::move(sublayer));
      if (shape.placement == Placement::deepnorm)
        return Deep(std::move(norm), std::move(sublayer), plan_of(shape, Start::deepnorm).block(0).skip);
      if (shape.placement == Placement::rezero) return Zero(std::move(sublayer));
    }
    return Pre(std::move(norm), std::move(sublayer));
  }

  Block block_;
};

}  // namespace nn
