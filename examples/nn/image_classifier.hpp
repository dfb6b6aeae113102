#pragma once

#include "evenkeel/init/residual_net_plan.hpp"
#include "evenkeel/parameter.hpp"
#include "nn/embedding.hpp"
#include "nn/matrix.hpp"
#include "nn/ranks.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace nn {

/// The norm of an image classifier: four of activations, two of weights.
enum class ImageNorm { batch, group, instance, dyt, weight, scaled_ws, none };

std::optional<ImageNorm> image_norm_from(std::string_view name);
std::string name_of(ImageNorm norm);
/// standard, fixup, nfnet, skip_init, layer_scale or depth_scale.
std::optional<ek::ResidualNetRecipe> recipe_from(std::string_view name);
/// What a recipe is meant for where nothing else is asked for.
ImageNorm norm_of(ek::ResidualNetRecipe recipe);
/// Fixup and SkipInit are recipes for networks without norms, NFNet for standardized weights; the others go with all.
bool goes_with(ek::ResidualNetRecipe recipe, ImageNorm norm);
/// SgdOptions::single_rate: Fixup asks for a tenth, SkipInit's scales learn as fast as weights. At depth 26, rate 0.4 and a
/// norm of gradients of at most 1 SkipInit's loss at step 100 is 0.68 so, and 0.81 with a tenth (2026-12-01).
double single_rate_of(ek::ResidualNetRecipe recipe);

struct ImageClassifierShape {
  Index height = 28, width = 28;
  Index classes = 10;
  std::array<Index, 3> channels{8, 16, 32};  ///< of the stages; the second and third begin with a stride of 2
  Index depth = 14;                          ///< stem, two layers a block, classifier: even, at least 8
  ImageNorm norm = ImageNorm::batch;
  ek::ResidualNetRecipe recipe = ek::ResidualNetRecipe::standard;
  Ranks* ranks = nullptr;  ///< where given, BatchNorm is over the images of all of them
};

/// A residual network of 3x3 convolutions with the norms before them (K. He et al., "Identity Mappings in Deep Residual
/// Networks", 2016), set up as a residual_net_plan says:
///
///     h = act(norm(x)),  f = conv(act(norm(conv(h)))),  y = x + scale * f
///
/// The first block of the second and the third stage has stride 2 and a 1x1 convolution of h in place of x. Means over
/// all positions and a linear layer make the logits.
class ImageClassifier {
 public:
  /// Throws ShapeError for a depth that is odd or below 8, and where recipe and norm do not go together.
  ImageClassifier(const ImageClassifierShape& shape, std::uint64_t seed);
  ~ImageClassifier();

  /// images (images, height * width), of mean 0 and variance 1 over the data; returns logits (images, classes), which
  /// stay until the next call.
  const Matrix<float>& forward(const Eigen::ThreadPoolDevice& device, const Matrix<float>& images, bool training);
  /// Of the last forward in training. Parameter gradients are accumulated.
  void backward(const Eigen::ThreadPoolDevice& device, const Matrix<float>& dlogits);

  void for_each_parameter(const std::function<void(ek::ParameterRef<float>)>& f);
  void zero_gradient();
  /// Adaptive gradient clipping; returns the share of output units that were clipped.
  double clip_gradient(const Eigen::ThreadPoolDevice& device, double clip);
  /// The norm of all gradients, which are then scaled down to `limit` where it is larger and limit is not 0.
  double clip_gradient_norm(const Eigen::ThreadPoolDevice& device, double limit);

  const ek::Plan& plan() const;

 private:
  struct Network;
  std::unique_ptr<Network> network_;
};

}  // namespace nn
