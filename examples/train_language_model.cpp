// Trains a byte-level transformer on a text, with evenkeel's norms and residual blocks, on the CPU.
#include "evenkeel/norms/layer_norm.hpp"
#include "evenkeel/norms/rms_norm.hpp"
#include "nn/adamw.hpp"
#include "nn/byte_text.hpp"
#include "nn/cross_entropy.hpp"
#include "nn/curve_file.hpp"
#include "nn/language_model.hpp"
#include "nn/progress_bar.hpp"
#include "nn/sample.hpp"
#include "nn/schedule.hpp"
#include "nn/text_source.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <CLI/CLI.hpp>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>

namespace {

namespace ek = evenkeel;
using ek::Index;

struct Options {
  std::string norm = "rms";
  std::string placement = "pre";
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
  long sample_length = 400;
  std::string prompt = "In the beginning ";
};

constexpr const char* curve_header =
    "step,train_loss,validation_loss,learning_rate,gradient_norm,tokens_per_second,norm_share,seconds";

void add_options(CLI::App& app, Options& o) {
  app.add_option("--norm", o.norm, "rms or layer")->capture_default_str();
  app.add_option("--placement", o.placement, "pre, post or rezero")->capture_default_str();
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
  app.add_option("--sample-length", o.sample_length, "bytes to write at the end")->capture_default_str();
  app.add_option("--prompt", o.prompt, "what the sample continues")->capture_default_str();
}

void require(bool condition, const std::string& sentence) {
  if (!condition) throw std::runtime_error(sentence);
}

void check(const Options& o) {
  const auto positive = [](const char* name, auto value) {
    require(value >= 1, std::string(name) + " must be at least 1, not " + std::to_string(value));
  };
  require(o.norm == "rms" || o.norm == "layer", "--norm must be rms or layer, not " + o.norm);
  require(nn::placement_from(o.placement).has_value(), "--placement must be pre, post or rezero, not " + o.placement);
  positive("--depth", o.depth);
  positive("--width", o.width);
  positive("--heads", o.heads);
  positive("--context", o.context);
  positive("--batch", o.batch);
  positive("--steps", o.steps);
  positive("--threads", o.threads);
  require(o.threads <= 1024, "--threads must be at most 1024, not " + std::to_string(o.threads));
  require(std::isfinite(o.learning_rate) && o.learning_rate > 0, "--learning-rate must be positive");
  require(o.sample_length >= 0, "--sample-length must not be negative");
  require(!o.prompt.empty(), "--prompt must not be empty");
  const std::string heads = std::to_string(o.heads), width = std::to_string(o.width);
  require(o.width % o.heads == 0, "--heads " + heads + " do not divide --width " + width);
  require(o.width / o.heads % 2 == 0, "--width " + width + " gives each of " + heads +
                                          " heads an odd width; rotary positions turn pairs of numbers");
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
  require(text.bytes.size() >= fewest, (o.data.empty() ? text.name : o.data) + ": has " +
                                           std::to_string(text.bytes.size()) + " bytes, --context " +
                                           std::to_string(o.context) + " needs at least " + std::to_string(fewest));
  return text;
}

volatile std::sig_atomic_t interrupted = 0;

/// The first Ctrl-C ends the training after the current step, the second one ends the process.
void catch_interrupt() {
  std::signal(SIGINT, [](int) {
    interrupted = 1;
    std::signal(SIGINT, SIG_DFL);
  });
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string format(const char* pattern, auto... values) {
  char line[256];
  std::snprintf(line, sizeof line, pattern, values...);
  return line;
}

template <class Norm>
class Training {
 public:
  Training(const Options& options, const nn::ByteText& text, const Eigen::ThreadPoolDevice& device)
      : options_(options),
        text_(text),
        device_(device),
        model_({.depth = options.depth,
                .width = options.width,
                .heads = options.heads,
                .context = options.context,
                .placement = *nn::placement_from(options.placement)}),
        adamw_(model_.parameters()),
        batches_(options.seed, "batches") {
    model_.initialize(options.seed);
  }

  void run(nn::CurveFile& curve) {
    const nn::Schedule schedule{options_.learning_rate, std::min(100L, options_.steps / 10), options_.steps};
    const auto frequent = text_.validation_batches(64, options_.batch);
    const long interval = std::max(1L, options_.steps / 20);
    nn::ProgressBar bar(options_.steps);
    const auto start = std::chrono::steady_clock::now();
    double loss_sum = 0, gradient_norm = 0;
    for (long losses = 0; steps_ < options_.steps && !interrupted;) {
      const double loss = step(schedule(steps_), gradient_norm);
      loss_sum += loss;
      ++losses;
      bar.show(steps_, loss, tokens_per_second());
      const bool last = steps_ == options_.steps || interrupted;
      if (steps_ % interval != 0 && !last) continue;
      train_loss_ = loss_sum / double(losses);
      loss_sum = 0;
      losses = 0;
      // The last figure is the result, so it is worth more windows than those on the way.
      validation_loss_ = validation_loss(last ? text_.validation_batches(512, options_.batch) : frequent);
      seconds_ = seconds_since(start);
      curve.row(format("%ld,%.5f,%.5f,%.6g,%.5f,%.1f,%.4f,%.2f", steps_, train_loss_, validation_loss_,
                       schedule(steps_ - 1), gradient_norm, tokens_per_second(), norm_share(), seconds_));
      bar.clear();
      std::printf("step %5ld  train loss %.4f  validation loss %.4f  %.0f tokens/s\n", steps_, train_loss_,
                  validation_loss_, tokens_per_second());
      std::fflush(stdout);
    }
  }

  std::string sample() {
    return nn::sample(model_, device_, options_.prompt, options_.sample_length, 0.8, options_.seed);
  }

  void print_result(const std::string& text_name) const {
    std::printf(
        "\nvalidation loss %.4f nats per byte after %ld steps, %.0f tokens per second, norms %.1f%% of a step\n",
        validation_loss_, steps_, tokens_per_second(), 100 * norm_share());
    std::printf(
        "RESULT language_model norm=%s placement=%s depth=%td width=%td steps=%ld seed=%llu threads=%d train_loss=%.6f "
        "validation_loss=%.6f tokens_per_second=%.1f norm_share=%.4f seconds=%.1f data=%s\n",
        options_.norm.c_str(), options_.placement.c_str(), options_.depth, options_.width, steps_,
        static_cast<unsigned long long>(options_.seed), options_.threads, train_loss_, validation_loss_,
        tokens_per_second(), norm_share(), seconds_, text_name.c_str());
  }

 private:
  double step(double learning_rate, double& gradient_norm) {
    const auto start = std::chrono::steady_clock::now();
    const double norm_start = model_.norm_seconds();
    const nn::Batch batch = text_.training_batch(batches_, steps_, options_.batch);
    const double loss =
        nn::softmax_cross_entropy(device_, model_.forward(device_, batch.tokens), batch.targets, dlogits_);
    adamw_.zero_gradient();
    model_.backward(device_, batch.tokens, dlogits_);
    gradient_norm = adamw_.clip_gradient(device_, 1.0);
    adamw_.step(device_, learning_rate);
    ++steps_;
    step_seconds_ += seconds_since(start);
    norm_seconds_ += model_.norm_seconds() - norm_start;
    return loss;
  }

  double validation_loss(const std::vector<nn::Batch>& batches) {
    double sum = 0, tokens = 0;
    for (const nn::Batch& b : batches) {
      const auto& logits = model_.forward(device_, b.tokens);
      sum += nn::softmax_cross_entropy(device_, logits, b.targets, dlogits_) * double(b.tokens.size());
      tokens += double(b.tokens.size());
    }
    return sum / tokens;
  }

  double tokens_per_second() const { return double(steps_ * options_.batch * options_.context) / step_seconds_; }
  double norm_share() const { return norm_seconds_ / step_seconds_; }

  const Options& options_;
  const nn::ByteText& text_;
  const Eigen::ThreadPoolDevice& device_;
  nn::LanguageModel<float, Norm> model_;
  nn::AdamW<float> adamw_;
  ek::RandomStream batches_;
  nn::Matrix<float> dlogits_;
  long steps_ = 0;
  double train_loss_ = 0, validation_loss_ = 0, step_seconds_ = 0, norm_seconds_ = 0, seconds_ = 0;
};

template <class Norm>
void train(const Options& options, const Text& source) {
  // The thread that calls a device works too, so the pool has one less; a pool of none is not possible.
  Eigen::ThreadPool pool(std::max(1, options.threads - 1));
  const Eigen::ThreadPoolDevice device(&pool, options.threads);
  const nn::ByteText text(source.bytes, options.context);
  nn::CurveFile curve(options.curve, curve_header);
  Training<Norm> training(options, text, device);
  catch_interrupt();
  training.run(curve);
  curve.finish();
  if (options.sample_length > 0) {
    std::printf("\n%s%s\n", nn::printable(options.prompt).c_str(), nn::printable(training.sample()).c_str());
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
    const Text text = load_text(options);
    if (options.norm == "rms") {
      train<ek::RmsNorm<float>>(options, text);
    } else {
      train<ek::LayerNorm<float>>(options, text);
    }
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const std::exception& error) {
    std::string line = error.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    std::cerr << "train_language_model: " << line << '\n';
    return 2;
  }
}
