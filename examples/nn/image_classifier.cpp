#include "nn/image_classifier.hpp"

#include "evenkeel/clipping.hpp"
#include "evenkeel/init/gains.hpp"
#include "evenkeel/residual/layer_scale.hpp"
#include "evenkeel/residual/rezero.hpp"
#include "nn/activated_norm.hpp"
#include "nn/convolution.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace nn {

namespace {

using Device = Eigen::ThreadPoolDevice;
using ek::ResidualNetRecipe;

// In the order of the enumerators.
constexpr const char* norm_names[] = {"batch", "group", "instance", "dyt", "weight", "scaled_ws", "none"};
constexpr const char* recipe_names[] = {"standard", "fixup", "nfnet", "layer_scale", "skip_init", "depth_scale"};

std::unique_ptr<ActivatedNorm> make_norm(const ImageClassifierShape& shape, Index channels, double beta) {
  switch (shape.norm) {
    case ImageNorm::batch:
      if (shape.ranks != nullptr) return std::make_unique<ActivatedSyncBatchNorm>(channels, *shape.ranks);
      return std::make_unique<ActivatedBatchNorm>(channels);
    case ImageNorm::group:
      return std::make_unique<ActivatedGroupNorm>(channels, std::max<Index>(1, channels / 4));
    case ImageNorm::instance:
      return std::make_unique<ActivatedInstanceNorm>(channels);
    case ImageNorm::dyt:
      return std::make_unique<ActivatedDyt>(channels);
    default:
      break;
  }
  // NFNet: x / beta has variance 1, and the gain gives back what the ReLU takes from it.
  const double scale = shape.recipe == ResidualNetRecipe::nfnet ? ek::NfnetGain::relu / beta : 1.0;
  return std::make_unique<ScaledRelu>(scale, shape.recipe == ResidualNetRecipe::fixup);
}

/// Makes convolutions as the plan says.
class ConvolutionMaker {
 public:
  ConvolutionMaker(const ImageClassifierShape& shape, const ek::Plan& plan, std::uint64_t seed)
      : plan_(plan), seed_(seed) {
    if (shape.norm == ImageNorm::weight) kind_ = WeightKind::weight_norm;
    if (shape.norm == ImageNorm::scaled_ws) kind_ = WeightKind::scaled_standardization;
    // Norms and Fixup bring biases of their own.
    const bool plain = shape.norm == ImageNorm::none || kind_ != WeightKind::plain;
    with_bias_ = plain && shape.recipe != ResidualNetRecipe::fixup;
  }

  Convolution operator()(const ek::RoleOf& role, const std::string& name, const ConvolutionShape& shape) const {
    Matrix<float> weight(shape.outputs, shape.inputs * shape.taps());
    const ek::Fans fans =
        ek::fans_of({shape.outputs, shape.inputs, shape.kernel, shape.kernel}, {.input = {1}, .output = {0}});
    plan_.initialize(role, weight, fans, ek::RandomStream(seed_, name));
    return {shape, kind_, weight, with_bias_};
  }

 private:
  const ek::Plan& plan_;
  std::uint64_t seed_;
  WeightKind kind_ = WeightKind::plain;
  bool with_bias_ = false;
};

using Join = std::variant<ek::ConstantJoin<float>, ek::ConstantJoin<float, double>, ek::ScalarJoin<float>,
                          ek::FeatureJoin<float>>;

Join make_join(const ek::BlockScales& scales, ResidualNetRecipe recipe, Index channels) {
  if (scales.learned_scale && recipe == ResidualNetRecipe::layer_scale)
    return ek::FeatureJoin<float>(channels, *scales.learned_scale, {.axis = 1});
  if (scales.learned_scale) return ek::ScalarJoin<float>(*scales.learned_scale);
  if (scales.branch != 1) return ek::ConstantJoin<float, double>(scales.branch);
  return ek::ConstantJoin<float>();
}

/// Gradients on their way back, of which blocks share the memory.
struct Gradients {
  PlanesBuffer branch, inner, shortcut;
};

class Block {
 public:
  Block(const ImageClassifierShape& shape, const ek::Plan& plan, const ConvolutionMaker& convolution, Index number,
        const ConvolutionShape& first)
      : join_(make_join(plan.block(number), shape.recipe, first.outputs)),
        norm1_(make_norm(shape, first.inputs, plan.block(number).beta)),
        norm2_(make_norm(shape, first.outputs, 1)),
        conv1_(convolution(ek::branch_layer(1), name(number, "conv1"), first)),
        conv2_(convolution(ek::branch_layer(2), name(number, "conv2"),
                           {first.outputs, first.outputs, first.out_height(), first.out_width()})) {
    if (first.stride == 1) return;
    ConvolutionShape shortcut = first;
    shortcut.kernel = 1;
    shortcut_.emplace(convolution(ek::Role::shortcut, name(number, "shortcut"), shortcut));
  }

  /// Returns y, which the next block reads as its x.
  Planes forward(const Device& device, const Planes& x, bool training) {
    const auto out = [&](PlanesBuffer& memory) {
      const ConvolutionShape& s = conv2_.shape();
      return memory.get(x.dimension(0), s.outputs, s.height * s.width);
    };
    Planes h1 = h1_.like(x), u = out(u_), h2 = out(h2_), f = out(f_), y = out(y_);
    norm1_->forward(device, x, h1, training);
    conv1_.forward(device, h1, u);
    // While the ranks exchange what they know of u, the shortcut has work to do.
    ek::Pending norm2 = norm2_->start_forward(device, u, h2, training);
    if (shortcut_) shortcut_->forward(device, h1, y);
    norm2.finish();
    conv2_.forward(device, h2, f);
    const Planes stream = shortcut_ ? y : x;
    std::visit([&](auto& join) { join.join(device, stream, f, y); }, join_);
    return y;
  }

  /// Turns dy into dx, in another memory.
  void backward(const Device& device, const Planes& dy, const Planes& x, Planes dx, Gradients& gradients) {
    const Planes h1 = h1_.like(x), u = u_.like(dy), h2 = h2_.like(dy), f = f_.like(dy);
    Planes branch = gradients.branch.like(dy), inner = gradients.inner.like(dy);
    const Planes df = std::visit(
        [&](auto& join) {
          if constexpr (std::remove_reference_t<decltype(join)>::passes_gradient) return dy;
          join.pull(device, dy, f, branch);
          return branch;
        },
        join_);
    conv2_.backward(device, df, h2, inner);
    ek::Pending norm2 = norm2_->start_backward(device, inner, u, h2, inner);
    if (shortcut_) shortcut_->backward(device, dy, h1, gradients.shortcut.like(x));
    norm2.finish();
    conv1_.backward(device, inner, h1, dx);
    if (shortcut_) {
      const Planes through = gradients.shortcut.like(x);
      ek::residual_sum(device, dx, through, dx);
      norm1_->backward(device, dx, x, h1, dx);
    } else {
      norm1_->backward(device, dx, x, h1, dx);
      ek::residual_sum(device, dx, dy, dx);
    }
  }

  /// f(parameter, output units, role)
  template <class F>
  void for_each_parameter(const F& f) {
    const auto norm = [&](ek::ParameterRef<float> p) { f(p, Index(1), ek::Role::norm_weight); };
    const auto weight = [&](ek::Role role) {
      return [&f, role](ek::ParameterRef<float> p, Index units) { f(p, units, role); };
    };
    norm1_->for_each_parameter(norm);
    conv1_.for_each_parameter(weight(ek::Role::branch_layer));
    norm2_->for_each_parameter(norm);
    conv2_.for_each_parameter(weight(ek::Role::branch_layer));
    if (shortcut_) shortcut_->for_each_parameter(weight(ek::Role::shortcut));
    std::visit(
        [&](auto& join) {
          join.for_each_parameter([&](ek::ParameterRef<float> p) { f(p, Index(1), ek::Role::branch_scale); });
        },
        join_);
  }

 private:
  static std::string name(Index number, const char* what) { return std::to_string(number) + "." + what; }

  Join join_;
  std::unique_ptr<ActivatedNorm> norm1_, norm2_;
  Convolution conv1_, conv2_;
  std::optional<Convolution> shortcut_;
  PlanesBuffer h1_, u_, h2_, f_, y_;
};

ek::Plan make_plan(const ImageClassifierShape& shape) {
  const char* const function = "ImageClassifier";
  if (shape.depth < 8 || shape.depth % 2 != 0)
    ek::detail::throw_shape_error(function, "depth is ", shape.depth, ", expected an even number from 8 on");
  if (!goes_with(shape.recipe, shape.norm))
    ek::detail::throw_shape_error(function, "the recipe does not go with the norm");
  const Index blocks = shape.depth / 2 - 1;
  return ek::residual_net_plan(shape.recipe, {.stages = {(blocks + 2) / 3, (blocks + 1) / 3, blocks / 3}});
}

}  // namespace

struct ImageClassifier::Network {
  Network(const ImageClassifierShape& network_shape, std::uint64_t seed)
      : shape(network_shape),
        plan(make_plan(shape)),
        convolution(shape, plan, seed),
        stem(convolution(ek::Role::stem, "stem", {1, shape.channels[0], shape.height, shape.width})) {
    ConvolutionShape next{shape.channels[0], 0, shape.height, shape.width};
    const Index count = shape.depth / 2 - 1;
    for (std::size_t stage = 0; stage < 3; ++stage) {
      next.stride = stage == 0 ? 1 : 2;
      for (Index i = 0; i < (count + 2 - Index(stage)) / 3; ++i) {
        next.outputs = shape.channels[stage];
        blocks.emplace_back(shape, plan, convolution, Index(blocks.size()), next);
        next = {next.outputs, next.outputs, next.out_height(), next.out_width()};
      }
    }
    final_norm = make_norm(shape, shape.channels[2], final_beta());
    plan.initialize(ek::Role::classifier, weight.value(), weight.size(),
                    ek::fans_of_linear(shape.channels[2], shape.classes), ek::RandomStream(seed, "classifier"));
  }

  /// What the stream's variance is after the last block, in NFNet's books.
  double final_beta() const {
    const ek::BlockScales& last = plan.block(plan.blocks() - 1);
    const double before = last.transition ? 1 : last.beta * last.beta;
    return std::sqrt(before + last.branch * last.branch);
  }

  template <class F>
  void for_each_parameter(const F& f) {
    stem.for_each_parameter([&](ek::ParameterRef<float> p, Index units) { f(p, units, ek::Role::stem); });
    for (Block& block : blocks) block.for_each_parameter(f);
    final_norm->for_each_parameter([&](ek::ParameterRef<float> p) { f(p, Index(1), ek::Role::norm_weight); });
    f(weight.ref(), shape.classes, ek::Role::classifier);
    f(bias.ref(), Index(1), ek::Role::classifier);
  }

  ImageClassifierShape shape;
  ek::Plan plan;
  ConvolutionMaker convolution;
  Convolution stem;
  std::vector<Block> blocks;
  std::unique_ptr<ActivatedNorm> final_norm;
  ek::Parameter<float> weight{"weight", shape.classes* shape.channels[2]};  // (classes, channels)
  ek::Parameter<float> bias{"bias", shape.classes, false};                  // (classes)

  std::vector<Planes> streams;  // what each block reads, and what the last one wrote
  PlanesBuffer images, stem_out, final_out;
  Matrix<float> means, logits, dmeans;
  Gradients gradients;
  PlanesBuffer dstream[2];
};

ImageClassifier::ImageClassifier(const ImageClassifierShape& shape, std::uint64_t seed)
    : network_(std::make_unique<Network>(shape, seed)) {}
ImageClassifier::~ImageClassifier() = default;

const ek::Plan& ImageClassifier::plan() const { return network_->plan; }

const Matrix<float>& ImageClassifier::forward(const Device& device, const Matrix<float>& images, bool training) {
  Network& n = *network_;
  const Index count = images.rows(), channels = n.shape.channels[2];
  Planes x = n.images.get(count, 1, images.cols());
  std::copy_n(images.data(), images.size(), x.data());
  n.streams.clear();  // assigning to a map would copy what it shows
  n.streams.push_back(n.stem_out.get(count, n.shape.channels[0], images.cols()));
  n.stem.forward(device, x, n.streams[0]);
  for (Block& block : n.blocks) n.streams.push_back(block.forward(device, n.streams.back(), training));
  const Planes last = n.streams.back();
  Planes h = n.final_out.like(last);
  n.final_norm->forward(device, last, h, training);
  n.means = Eigen::Map<const Matrix<float>>(h.data(), count * channels, last.dimension(2)).rowwise().mean();
  n.means.resize(count, channels);
  n.logits.noalias() =
      n.means * Eigen::Map<const Matrix<float>>(n.weight.value(), n.shape.classes, channels).transpose();
  n.logits.rowwise() += Eigen::Map<const Eigen::RowVectorXf>(n.bias.value(), n.shape.classes);
  return n.logits;
}

void ImageClassifier::backward(const Device& device, const Matrix<float>& dlogits) {
  Network& n = *network_;
  const Index channels = n.shape.channels[2];
  Eigen::Map<Matrix<float>>(n.weight.gradient(), n.shape.classes, channels).noalias() += dlogits.transpose() * n.means;
  Eigen::Map<Eigen::RowVectorXf>(n.bias.gradient(), n.shape.classes) += dlogits.colwise().sum();
  n.dmeans.noalias() = dlogits * Eigen::Map<const Matrix<float>>(n.weight.value(), n.shape.classes, channels);

  const std::size_t blocks = n.blocks.size();
  const auto dstream = [&](std::size_t b) { return n.dstream[b % 2].like(n.streams[b]); };
  const Planes& last = n.streams[blocks];
  Planes dlast = dstream(blocks);
  const Index positions = last.dimension(2);
  Eigen::Map<Matrix<float>>(dlast.data(), n.dmeans.size(), positions).colwise() =
      Eigen::Map<const Eigen::VectorXf>(n.dmeans.data(), n.dmeans.size()) / float(positions);
  n.final_norm->backward(device, dlast, last, n.final_out.like(last), dlast);
  for (std::size_t b = blocks; b-- > 0;)
    n.blocks[b].backward(device, dstream(b + 1), n.streams[b], dstream(b), n.gradients);
  const Planes first = dstream(0);
  n.stem.backward(device, first, n.images.get(first.dimension(0), 1, first.dimension(2)));
}

void ImageClassifier::for_each_parameter(const std::function<void(ek::ParameterRef<float>)>& f) {
  network_->for_each_parameter([&](ek::ParameterRef<float> p, Index, ek::Role) { f(p); });
}

void ImageClassifier::zero_gradient() {
  for_each_parameter([](ek::ParameterRef<float> p) { std::fill_n(p.gradient, p.size, 0.0f); });
}

double ImageClassifier::clip_gradient(const Device& device, double clip) {
  using Map = Eigen::Map<Matrix<float>>;
  std::vector<ek::ClippedParameter<float>> parameters;
  network_->for_each_parameter([&](ek::ParameterRef<float> p, Index units, ek::Role role) {
    if (units == 1)
      parameters.emplace_back(p, role);
    else
      parameters.emplace_back(Map(p.value, units, p.size / units), Map(p.gradient, units, p.size / units), role, 0);
  });
  return ek::adaptive_gradient_clipping(device, parameters, {.clip = clip}).share();
}

double ImageClassifier::clip_gradient_norm(const Device& device, double limit) {
  std::vector<ek::ParameterRef<float>> parameters;
  for_each_parameter([&](ek::ParameterRef<float> p) { parameters.push_back(p); });
  if (limit > 0) return ek::clip_global_gradient_norm(device, parameters, limit);
  return ek::global_gradient_norm(device, parameters);
}

std::optional<ImageNorm> image_norm_from(std::string_view name) {
  const auto found = std::find(std::begin(norm_names), std::end(norm_names), name);
  if (found == std::end(norm_names)) return std::nullopt;
  return static_cast<ImageNorm>(found - std::begin(norm_names));
}

std::string name_of(ImageNorm norm) { return norm_names[std::size_t(norm)]; }

std::optional<ResidualNetRecipe> recipe_from(std::string_view name) {
  const auto found = std::find(std::begin(recipe_names), std::end(recipe_names), name);
  if (found == std::end(recipe_names)) return std::nullopt;
  return static_cast<ResidualNetRecipe>(found - std::begin(recipe_names));
}

ImageNorm norm_of(ResidualNetRecipe recipe) {
  if (recipe == ResidualNetRecipe::fixup || recipe == ResidualNetRecipe::skip_init) return ImageNorm::none;
  return recipe == ResidualNetRecipe::nfnet ? ImageNorm::scaled_ws : ImageNorm::batch;
}

bool goes_with(ResidualNetRecipe recipe, ImageNorm norm) {
  if (recipe == ResidualNetRecipe::fixup) return norm == ImageNorm::none;
  if (recipe == ResidualNetRecipe::nfnet) return norm == ImageNorm::scaled_ws;
  if (recipe != ResidualNetRecipe::skip_init) return true;
  return norm == ImageNorm::none || norm == ImageNorm::weight || norm == ImageNorm::scaled_ws;
}

double single_rate_of(ResidualNetRecipe recipe) { return recipe == ResidualNetRecipe::skip_init ? 1 : 0.1; }

}  // namespace nn
