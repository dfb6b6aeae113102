#pragma once

#include "evenkeel/taper/taper.hpp"
#include "nn/byte_text.hpp"
#include "nn/generate.hpp"
#include "nn/residual.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace nn {

enum class NormKind { rms, layer, taper_rms, taper_layer, fake_layer };

/// Which norms TaperNorm replaces, where the model has TaperNorms: those inside the blocks, or the last one, too.
enum class Tapered { internal, all };

struct TrainerOptions {
  LanguageModelShape shape;
  NormKind norm = NormKind::rms;
  Start start = Start::gpt2;
  Index base_width = 0;  // of Start::mup
  Index batch = 8;
  long steps = 1200;
  long warmup = 100;            // of the learning rate
  double learning_rate = 4e-3;  // at its peak
  double weight_decay = 0.1;
  std::uint64_t seed = 1;
  Tapered tapered = Tapered::internal;
  ek::TaperSchedule taper;   // of models with TaperNorms
  double taper_rate = 0.01;  // weight of the new batch in what the warmup measures
  double anchor = 0;         // weight of the scale anchor loss
};

/// What a step tells.
struct StepFigures {
  double loss = 0, anchor_loss = 0, gradient_norm = 0;
  double logit_scale = 0;  // root mean square of the logits
};

/// A language model, its optimizer and the state of its norms. Steps are a function of options and text alone, so a run
/// that was saved goes on as if it had never stopped.
class LanguageModelTrainer {
 public:
  virtual ~LanguageModelTrainer() = default;

  virtual StepFigures step() = 0;
  /// The mean loss of each of at most `windows` windows of the validation text, in nats per byte.
  virtual std::vector<double> window_losses(Index windows) = 0;
  /// The mean of window_losses.
  double validation_loss(Index windows) {
    const auto losses = window_losses(windows);
    return std::reduce(losses.begin(), losses.end()) / double(losses.size());
  }
  virtual Decoded generate(const std::vector<std::string>& prompts, const GenerateOptions& options) = 0;

  virtual void save(const std::string& path) = 0;
  virtual void load(const std::string& path) = 0;
  /// Values by which another model of the same shape can start, whatever its norms: the parameters but for those that
  /// only tapered norms have.
  virtual std::vector<float> weights() = 0;
  virtual void start_from(const std::vector<float>& weights) = 0;

  /// Of tapered norms: see LanguageModel::fold_norms.
  virtual void fold_norms() = 0;
  /// Of FakeLN: how many of the norms are frozen, in the order of for_each_norm.
  virtual void freeze_norms(int count) = 0;

  virtual double gate() const = 0;
  virtual double learning_rate(long step) const = 0;
  virtual long steps() const = 0;
  virtual double tokens_per_second() const = 0;
  /// Seconds in norms so far, of steps and everything else.
  virtual double norm_seconds() const = 0;
  virtual double norm_share() const = 0;  // of the time of steps
};

/// options.norm says which; text and device must outlive it.
std::unique_ptr<LanguageModelTrainer> make_trainer(const TrainerOptions& options, const ByteText& text,
                                                   const Eigen::ThreadPoolDevice& device);

}  // namespace nn
