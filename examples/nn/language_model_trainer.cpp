#include "nn/language_model_trainer.hpp"

#include "evenkeel/norms/layer_norm.hpp"
#include "evenkeel/norms/rms_norm.hpp"
#include "evenkeel/taper/fake_norm.hpp"
#include "evenkeel/taper/scale_anchor.hpp"
#include "evenkeel/taper/taper_layer.hpp"
#include "nn/adamw.hpp"
#include "nn/checkpoint.hpp"
#include "nn/cross_entropy.hpp"
#include "nn/language_model.hpp"
#include "nn/program.hpp"
#include "nn/schedule.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace nn {
namespace {

template <class Norm>
class Trainer final : public LanguageModelTrainer {
 public:
  Trainer(const TrainerOptions& options, const ByteText& text, const Eigen::ThreadPoolDevice& device)
      : options_(options),
        text_(text),
        device_(device),
        taper_(options.taper, options.taper_rate),
        model_(options.shape, [this](bool last) { return make_norm(last); }),
        anchor_(taper_, {.lambda = options.anchor, .kind = anchor_kind(options.norm)}),
        adamw_(model_.parameters(), {.weight_decay = options.weight_decay}),
        batches_(options.seed, "batches") {
    const ek::Plan plan = plan_of(options.shape, options.start, options.base_width);
    model_.initialize(options.seed, plan);
    std::vector<AdamW<float>::Factors> factors;
    for (const auto& p : model_.parameters()) {
      const ek::Role role = role_of(p.name);
      factors.push_back({plan.learning_rate_factor(role), plan.weight_decay_factor(role)});
    }
    adamw_.set_factors(std::move(factors));
  }
  // The norms point to the taper.
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  StepFigures step() override {
    const auto start = std::chrono::steady_clock::now();
    const double norm_start = model_.norm_seconds();
    const Batch batch = text_.training_batch(batches_, steps_, options_.batch);
    StepFigures figures;
    const Matrix<float>& logits = model_.forward(device_, batch.tokens);
    figures.logit_scale = std::sqrt(double(logits.squaredNorm()) / double(logits.size()));
    figures.loss = softmax_cross_entropy(device_, logits, batch.targets, dlogits_);
    adamw_.zero_gradient();
    model_.backward(device_, batch.tokens, dlogits_, [&](const Matrix<float>& h, Matrix<float>& dh) {
      if (options_.anchor > 0) figures.anchor_loss = anchor_.add(device_, h, dh);
    });
    figures.gradient_norm = adamw_.clip_gradient(device_, 1.0);
    adamw_.step(device_, learning_rate(steps_));
    taper_.advance();
    ++steps_;
    step_seconds_ += seconds_since(start);
    norm_seconds_ += model_.norm_seconds() - norm_start;
    return figures;
  }

  std::vector<double> window_losses(Index windows) override {
    std::vector<double> means;
    const auto context = options_.shape.context;
    for (const Batch& b : text_.validation_batches(windows, options_.batch)) {
      const auto losses = token_losses(device_, model_.forward(device_, b.tokens), b.targets, dlogits_);
      for (auto window = losses.begin(); window != losses.end(); window += context)
        means.push_back(std::accumulate(window, window + context, 0.0) / double(context));
    }
    return means;
  }

  Decoded generate(const std::vector<std::string>& prompts, const GenerateOptions& options) override {
    return nn::generate(model_, device_, prompts, options);
  }

  void save(const std::string& path) override {
    Checkpoint file(Checkpoint::Mode::save, path);
    save_or_load(file);
    file.finish();
  }
  void load(const std::string& path) override {
    Checkpoint file(Checkpoint::Mode::load, path);
    save_or_load(file);
  }

  std::vector<float> weights() override {
    std::vector<float> all;
    for (const auto& p : model_.parameters())
      if (p.name != "scale_weight") all.insert(all.end(), p.value, p.value + p.size);
    return all;
  }
  void start_from(const std::vector<float>& weights) override {
    auto from = weights.begin();
    for (const auto& p : model_.parameters()) {
      if (p.name == "scale_weight") continue;  // begins as a copy of weight when the warmup ends
      if (weights.end() - from < p.size) break;
      std::copy_n(from, p.size, p.value);
      from += p.size;
    }
    if (from != weights.end()) throw std::invalid_argument("start_from: the weights are of another model");
  }

  void fold_norms() override {
    if constexpr (is_removable_norm<Norm>)
      model_.fold_norms();
    else
      throw std::logic_error("fold_norms: these norms cannot be folded away");
  }
  void freeze_norms(int count) override {
    int number = 0;
    model_.for_each_norm([&]([[maybe_unused]] Norm& norm) {
      if (number++ >= count) return;
      if constexpr (requires { norm.freeze(); }) {
        if (!norm.frozen()) norm.freeze();
      }
    });
  }

  double gate() const override { return is_tapered_norm<Norm> ? taper_.gate() : 1; }
  double learning_rate(long step) const override {
    return Schedule{options_.learning_rate, options_.warmup, options_.steps}(step);
  }
  long steps() const override { return steps_; }
  double tokens_per_second() const override {
    return double(timed_steps() * options_.batch * options_.shape.context) / step_seconds_;
  }
  double norm_seconds() const override { return model_.norm_seconds(); }
  double norm_share() const override { return norm_seconds_ / step_seconds_; }

 private:
  /// Linear layers are named after their role; what else there is belongs to norms and blocks.
  static ek::Role role_of(std::string_view name) {
    for (const ek::Role role :
         {ek::Role::embedding, ek::Role::query, ek::Role::attention_output, ek::Role::ffn_up, ek::Role::ffn_down})
      if (name == ek::role_name(role)) return role;
    return ek::Role::norm_weight;
  }

  long timed_steps() const { return steps_ - first_step_; }

  Norm make_norm(bool last) const {
    const Index width = options_.shape.width;
    if constexpr (is_tapered_norm<Norm>)
      return Norm(width, taper_, {.tapered = !last || options_.tapered == Tapered::all});
    else if constexpr (is_removable_norm<Norm>)
      return Norm(width, {.rate = options_.taper_rate});
    else
      return Norm(width);
  }

  void save_or_load(Checkpoint& file) {
    file.value("trainer.steps", steps_);
    adamw_.save_or_load(file);
    const auto state = [&](const std::string& name, auto& object) {
      auto numbers = object.state();
      file.value(name, numbers);
      if (!file.saving()) object.restore(numbers);
    };
    state("taper", taper_);
    state("anchor", anchor_);
    if constexpr (is_removable_norm<Norm>) {
      int number = 0;
      model_.for_each_norm([&](Norm& norm) { state("norm." + std::to_string(number++), norm); });
    }
    if (!file.saving()) first_step_ = steps_;
  }

  static ek::ScaleKind anchor_kind(NormKind norm) {
    return norm == NormKind::rms || norm == NormKind::taper_rms ? ek::ScaleKind::rms : ek::ScaleKind::sigma;
  }

  TrainerOptions options_;
  const ByteText& text_;
  const Eigen::ThreadPoolDevice& device_;
  ek::Taper taper_;
  LanguageModel<float, Norm> model_;
  ek::ScaleAnchor<float> anchor_;
  AdamW<float> adamw_;
  ek::RandomStream batches_;
  Matrix<float> dlogits_;
  long steps_ = 0, first_step_ = 0;
  double step_seconds_ = 0, norm_seconds_ = 0;
};

}  // namespace

std::unique_ptr<LanguageModelTrainer> make_trainer(const TrainerOptions& options, const ByteText& text,
                                                   const Eigen::ThreadPoolDevice& device) {
  switch (options.norm) {
    case NormKind::rms:
      return std::make_unique<Trainer<ek::RmsNorm<float>>>(options, text, device);
    case NormKind::layer:
      return std::make_unique<Trainer<ek::LayerNorm<float>>>(options, text, device);
    case NormKind::taper_rms:
      return std::make_unique<Trainer<ek::TaperRmsNorm<float>>>(options, text, device);
    case NormKind::taper_layer:
      return std::make_unique<Trainer<ek::TaperLayerNorm<float>>>(options, text, device);
    case NormKind::fake_layer:
      return std::make_unique<Trainer<ek::FakeLayerNorm<float>>>(options, text, device);
  }
  throw std::invalid_argument("make_trainer: no such norm");
}

}  // namespace nn
