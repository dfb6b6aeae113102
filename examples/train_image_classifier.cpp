// Trains a small residual network on Fashion-MNIST, with the norms and residual recipes of evenkeel, on the CPU.
//
// Under mpirun each process, a rank, takes its share of every batch, and the gradients are averaged over the ranks:
//
//   mpirun -n 4 train_image_classifier --threads 1 --sync-batch-norm
#include "nn/cross_entropy.hpp"
#include "nn/curve_file.hpp"
#include "nn/fashion_mnist.hpp"
#include "nn/image_classifier.hpp"
#include "nn/program.hpp"
#include "nn/progress_bar.hpp"
#include "nn/provenance.hpp"
#include "nn/ranks.hpp"
#include "nn/schedule.hpp"
#include "nn/sgd.hpp"
#ifdef EVENKEEL_EXAMPLE_MPI
#include "nn/mpi_ranks.hpp"
#endif

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace ek = evenkeel;
using ek::Index;

struct Options {
  std::string recipe = "standard";
  std::string norm;
  Index depth = 14;
  Index batch = 128;
  long epochs = 5;
  long steps = 0;
  double learning_rate = 0;
  double weight_decay = 5e-4;
  double clip = -1, clip_norm = -1;
  std::uint64_t seed = 1;
  int threads = std::max(1, int(std::thread::hardware_concurrency()));
  Index train_images = 60000;
  Index test_images = 10000;
  std::string data = nn::fashion_mnist_folder;
  std::string curve;
  bool sync_batch_norm = false;
};

constexpr const char* curve_header = "step,train_loss,learning_rate,gradient_norm,test_loss,test_accuracy,seconds";

void add_options(CLI::App& app, Options& o) {
  app.add_option("--recipe", o.recipe, "standard, fixup, nfnet, skip_init, layer_scale or depth_scale")
      ->capture_default_str();
  app.add_option("--norm", o.norm,
                 "batch, group, instance, dyt, weight, scaled_ws or none (default: what the recipe is for)");
  app.add_option("--depth", o.depth, "stem, two 3x3 convolutions a block, classifier: even")->capture_default_str();
  app.add_option("--batch", o.batch, "images per step, of all ranks together")->capture_default_str();
  app.add_option("--epochs", o.epochs, "times through the training images")->capture_default_str();
  app.add_option("--steps", o.steps, "training steps, in place of epochs");
  app.add_option("--learning-rate", o.learning_rate,
                 "at its peak (default: 0.1 * batch/128, 0.4 * batch/128 for fixup and skip_init)");
  app.add_option("--weight-decay", o.weight_decay, "of weights")->capture_default_str();
  app.add_option("--clip", o.clip, "adaptive gradient clipping, 0 for none (default: 0.08 for nfnet, else none)");
  app.add_option("--clip-norm", o.clip_norm,
                 "largest norm of all gradients, 0 for none (default: 1 for fixup and skip_init, else none)");
  app.add_option("--seed", o.seed, "of weights and batches")->capture_default_str();
  app.add_option("--threads", o.threads, "the result does not depend on them")->capture_default_str();
  app.add_option("--train-images", o.train_images, "the first ones of the 60000")->capture_default_str();
  app.add_option("--test-images", o.test_images, "the first ones of the 10000")->capture_default_str();
  app.add_option("--data", o.data, "folder of the four files of Fashion-MNIST")->capture_default_str();
  app.add_option("--curve", o.curve, "CSV file for the losses");
  app.add_flag("--sync-batch-norm", o.sync_batch_norm, "BatchNorm over the images of all ranks, under mpirun");
}

/// Checks the options and fills in those that others decide.
nn::ImageClassifierShape settle(Options& o) {
  const auto recipe = nn::recipe_from(o.recipe);
  nn::require(recipe.has_value(),
              "--recipe must be standard, fixup, nfnet, skip_init, layer_scale or depth_scale, not " + o.recipe);
  if (o.norm.empty()) o.norm = nn::name_of(nn::norm_of(*recipe));
  const auto norm = nn::image_norm_from(o.norm);
  nn::require(norm.has_value(), "--norm must be batch, group, instance, dyt, weight, scaled_ws or none, not " + o.norm);
  nn::require(nn::goes_with(*recipe, *norm), "--recipe " + o.recipe + " does not go with --norm " + o.norm +
                                                 ", but with " + nn::name_of(nn::norm_of(*recipe)));
  nn::require(o.depth >= 8 && o.depth % 2 == 0,
              "--depth must be an even number of at least 8, not " + std::to_string(o.depth));
  nn::require(o.depth <= 10000, "--depth must be at most 10000, not " + std::to_string(o.depth));
  nn::require_positive("--batch", o.batch);
  nn::require_positive("--epochs", o.epochs);
  nn::require_positive("--threads", o.threads);
  nn::require_positive("--train-images", o.train_images);
  nn::require_positive("--test-images", o.test_images);
  nn::require(o.steps >= 0, "--steps must not be negative");
  nn::require(o.batch <= o.train_images,
              "--batch " + std::to_string(o.batch) + " is more than --train-images " + std::to_string(o.train_images));
  nn::require(o.threads <= 1024, "--threads must be at most 1024, not " + std::to_string(o.threads));
  nn::require(!o.sync_batch_norm || *norm == nn::ImageNorm::batch,
              "--sync-batch-norm goes with --norm batch, not with " + o.norm);
  const bool bare = recipe == ek::ResidualNetRecipe::fixup || recipe == ek::ResidualNetRecipe::skip_init;
  // What clipping takes from the steps of nets without norms, the rate gives back: their gradients' norm is above 1.
  if (o.learning_rate == 0) o.learning_rate = (bare ? 0.4 : 0.1) * double(o.batch) / 128;
  nn::require(std::isfinite(o.learning_rate) && o.learning_rate > 0, "--learning-rate must be positive");
  nn::require(std::isfinite(o.weight_decay) && o.weight_decay >= 0, "--weight-decay must not be negative");
  if (o.clip == -1) o.clip = recipe == ek::ResidualNetRecipe::nfnet ? 0.08 : 0;
  nn::require(std::isfinite(o.clip) && o.clip >= 0, "--clip must not be negative");
  if (o.clip_norm == -1) o.clip_norm = bare ? 1 : 0;
  nn::require(std::isfinite(o.clip_norm) && o.clip_norm >= 0, "--clip-norm must not be negative");
  return {.depth = o.depth, .norm = *norm, .recipe = *recipe};
}

struct TestFigures {
  double loss, accuracy;
};

/// `part` of `count`, cut into as many parts as there are ranks: where it begins, and where the next one does.
Index share_begin(Index count, int part, int ranks) { return count * part / ranks; }

class Training {
 public:
  /// `ranks` is null where this process trains alone.
  Training(const Options& options, const nn::ImageClassifierShape& shape, const Eigen::ThreadPoolDevice& device,
           nn::Ranks* ranks, nn::LabelledImages train, nn::LabelledImages test)
      : options_(options),
        device_(device),
        ranks_(ranks),
        train_(std::move(train)),
        test_(std::move(test)),
        network_(shape, options.seed),
        sgd_(parameters(network_),
             {.weight_decay = options.weight_decay, .single_rate = nn::single_rate_of(shape.recipe)}),
        per_epoch_(train_.count() / options.batch),  // what is left over waits for the next epoch
        steps_(options.steps > 0 ? options.steps : options.epochs * per_epoch_) {
    const int rank = ranks_ ? ranks_->rank() : 0, count = ranks_ ? ranks_->size() : 1;
    first_ = share_begin(options.batch, rank, count);
    images_ = share_begin(options.batch, rank + 1, count) - first_;
  }

  /// Tests, prints and writes on the first rank alone.
  void run(nn::CurveFile& curve) {
    const nn::Schedule schedule{options_.learning_rate, std::min(100L, steps_ / 10), steps_, 0};
    const long interval = std::max(1L, steps_ / 100);
    const int tests = 5;
    const bool speaks = ranks_ == nullptr || ranks_->rank() == 0;
    nn::ProgressBar bar(steps_);
    const auto start = std::chrono::steady_clock::now();
    double loss_sum = 0;
    for (long losses = 0; done_ < steps_ && !nn::interrupted;) {
      const double learning_rate = schedule(done_), loss = step(learning_rate);
      const double gradient_norm = gradient_norm_;
      loss_sum += loss;
      ++losses;
      if (!speaks) {
        if (!std::isfinite(loss)) break;
        continue;
      }
      bar.show(done_, loss, double(done_ * options_.batch) / nn::seconds_since(start), "images");
      const bool last = done_ == steps_ || nn::interrupted || !std::isfinite(loss);
      const bool tested = last || done_ * tests / steps_ != (done_ - 1) * tests / steps_;
      if (done_ > 20 && done_ % interval != 0 && !tested) continue;
      train_loss_ = loss_sum / double(losses);
      loss_sum = 0;
      losses = 0;
      std::string result = ",";
      if (tested) {
        figures_ = test();
        result = nn::format("%.5f,%.4f", figures_.loss, figures_.accuracy);
        bar.clear();
        std::printf("step %5ld  train loss %.4f  test loss %.4f  accuracy %.2f%%\n", done_, train_loss_, figures_.loss,
                    100 * figures_.accuracy);
        std::fflush(stdout);
      }
      seconds_ = nn::seconds_since(start);
      curve.row(nn::format("%ld,%.6f,%.6g,%.6g,%s,%.2f", done_, train_loss_, learning_rate, gradient_norm,
                           result.c_str(), seconds_));
      if (!std::isfinite(loss)) {
        std::printf("the loss is not finite: the training ends here\n");
        break;
      }
    }
  }

  /// How fast each rank was, without the tests. All ranks call it.
  void print_ranks() {
    if (ranks_ == nullptr) return;
    const double own[4] = {double(images_), step_seconds_, gradient_seconds_, double(done_)};
    std::vector<double> all(std::size_t(4 * ranks_->size()));
    ranks_->all_gather(own, all.data(), 4);
    if (ranks_->rank() != 0) return;
    std::printf("\n");
    for (int r = 0; r < ranks_->size(); ++r) {
      const double* const of = all.data() + 4 * r;
      std::printf(
          "rank %d of %d: %.0f images a step, %.1f images per second, %.0f%% of the time in the sum of gradients\n", r,
          ranks_->size(), of[0], of[0] * of[3] / of[1], 100 * of[2] / of[1]);
    }
  }

  void print_result(const std::string& command) const {
    if (ranks_ != nullptr && ranks_->rank() != 0) return;
    std::printf("\ntest accuracy %.2f%% after %ld steps in %.0f seconds\n", 100 * figures_.accuracy, done_, seconds_);
    std::printf(
        "RESULT image_classifier recipe=%s norm=%s depth=%td batch=%td steps=%ld learning_rate=%g seed=%llu threads=%d "
        "train_images=%td test_images=%td ranks=%d sync_batch_norm=%d train_loss=%.6f test_loss=%.6f "
        "test_accuracy=%.4f "
        "seconds=%.1f commit=%s command='%s'\n",
        options_.recipe.c_str(), options_.norm.c_str(), options_.depth, options_.batch, done_, options_.learning_rate,
        static_cast<unsigned long long>(options_.seed), options_.threads, train_.count(), test_.count(),
        ranks_ ? ranks_->size() : 1, int(options_.sync_batch_norm), train_loss_, figures_.loss, figures_.accuracy,
        seconds_, commit_.c_str(), command.c_str());
  }

 private:
  static std::vector<ek::ParameterRef<float>> parameters(nn::ImageClassifier& network) {
    std::vector<ek::ParameterRef<float>> all;
    network.for_each_parameter([&](ek::ParameterRef<float> p) { all.push_back(p); });
    return all;
  }

  double step(double learning_rate) {
    const long epoch = done_ / per_epoch_, place = done_ % per_epoch_;
    if (place == 0 || order_.empty()) order_ = nn::shuffled(train_.count(), options_.seed, epoch);
    const auto start = std::chrono::steady_clock::now();
    const nn::ImageBatch batch = nn::batch_of(train_, order_, place * options_.batch + first_, images_);
    double loss =
        nn::softmax_cross_entropy(device_, network_.forward(device_, batch.images, true), batch.labels, dlogits_);
    if (ranks_ != nullptr) {  // from this rank's mean to its part of the mean over all images
      const double part = double(images_) / double(options_.batch);
      loss = images_ > 0 ? loss * part : 0;
      dlogits_ *= float(part);
    }
    network_.zero_gradient();
    network_.backward(device_, dlogits_);
    if (ranks_ != nullptr) {
      ranks_->all_reduce_sum(&loss, 1);
      sum_gradients();
    }
    gradient_norm_ = network_.clip_gradient_norm(device_, options_.clip_norm);
    if (options_.clip > 0) network_.clip_gradient(device_, options_.clip);
    sgd_.step(device_, learning_rate);
    ++done_;
    step_seconds_ += nn::seconds_since(start);
    return std::isnan(loss) ? NAN : loss;  // printed without a sign
  }

  /// All gradients become their sums over the ranks, in one message.
  void sum_gradients() {
    const auto start = std::chrono::steady_clock::now();
    message_.clear();
    network_.for_each_parameter(
        [&](ek::ParameterRef<float> p) { message_.insert(message_.end(), p.gradient, p.gradient + p.size); });
    ranks_->all_reduce_sum(message_.data(), Index(message_.size()));
    const float* from = message_.data();
    network_.for_each_parameter([&](ek::ParameterRef<float> p) {
      std::copy_n(from, p.size, p.gradient);
      from += p.size;
    });
    gradient_seconds_ += nn::seconds_since(start);
  }

  TestFigures test() {
    std::vector<std::uint32_t> all(std::size_t(test_.count()));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::uint32_t(i);
    double loss = 0;
    Index right = 0;
    for (Index begin = 0; begin < test_.count(); begin += 100) {
      const Index count = std::min<Index>(100, test_.count() - begin);
      const nn::ImageBatch batch = nn::batch_of(test_, all, begin, count);
      const auto& logits = network_.forward(device_, batch.images, false);
      for (Index i = 0; i < count; ++i) {
        Index answer;
        logits.row(i).maxCoeff(&answer);
        right += answer == batch.labels[std::size_t(i)];
      }
      loss += nn::softmax_cross_entropy(device_, logits, batch.labels, dlogits_) * double(count);
    }
    return {loss / double(test_.count()), double(right) / double(test_.count())};
  }

  const Options& options_;
  const std::string commit_ = nn::commit();  // when the run begins: it may take longer than the next commit
  const Eigen::ThreadPoolDevice& device_;
  nn::Ranks* ranks_;
  Index first_ = 0, images_ = 0;  // of a batch, this rank's
  nn::LabelledImages train_, test_;
  nn::ImageClassifier network_;
  nn::Sgd<float> sgd_;
  long per_epoch_, steps_, done_ = 0;
  std::vector<std::uint32_t> order_;
  nn::Matrix<float> dlogits_;
  TestFigures figures_{};
  double train_loss_ = 0, gradient_norm_ = 0, seconds_ = 0;
  double step_seconds_ = 0, gradient_seconds_ = 0;
  std::vector<float> message_;
};

void train(const Options& options, nn::ImageClassifierShape shape, nn::Ranks* ranks, const std::string& command) {
  if (!std::filesystem::exists(options.data))
    throw std::runtime_error(options.data +
                             ": is not there; Debian has the images in the package dataset-fashion-mnist");
  nn::LabelledImages images = nn::read_fashion_mnist(options.data, "train");
  nn::LabelledImages test_images = nn::read_fashion_mnist(options.data, "t10k");
  images.keep(options.train_images);
  test_images.keep(options.test_images);
  // The thread that calls a device works too, so the pool has one less; a pool of none is not possible.
  Eigen::ThreadPool pool(std::max(1, options.threads - 1));
  const Eigen::ThreadPoolDevice device(&pool, options.threads);
  nn::CurveFile curve(ranks == nullptr || ranks->rank() == 0 ? options.curve : "", curve_header);
  if (options.sync_batch_norm) shape.ranks = ranks;
  Training training(options, shape, device, ranks, std::move(images), std::move(test_images));
  if (ranks == nullptr) nn::catch_interrupt();  // ranks that stop at different steps would wait for each other
  training.run(curve);
  curve.finish();
  training.print_ranks();
  training.print_result(command);
}

std::string one_line(const std::exception& error) {
  std::string line = error.what();
  std::replace(line.begin(), line.end(), '\n', ' ');
  return "train_image_classifier: " + line;
}

/// The ranks of this program, or null: it trains alone.
std::unique_ptr<nn::Ranks> join_ranks(const Options& options, int& argc, char**& argv) {
  if (!options.sync_batch_norm && !nn::under_mpirun()) return nullptr;
#ifdef EVENKEEL_EXAMPLE_MPI
  auto ranks = std::make_unique<nn::MpiRanks>(argc, argv);
  nn::require(options.batch >= ranks->size(), "--batch must be at least 1 for each rank");
  return ranks;
#else
  static_cast<void>(argc), static_cast<void>(argv);
  throw std::runtime_error("more than one process needs MPI, which was not there when this was compiled");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small residual network on Fashion-MNIST.");
  add_options(app, options);
  try {
    app.parse(argc, argv);
    const nn::ImageClassifierShape shape = settle(options);
    const std::string command = nn::command_line(argc, argv);
    const std::unique_ptr<nn::Ranks> ranks = join_ranks(options, argc, argv);
    try {
      train(options, shape, ranks.get(), command);
    } catch (const std::exception& error) {
      if (ranks == nullptr || ranks->size() == 1) throw;
      std::cerr << one_line(error) + '\n';
      ranks->abort(2);
    }
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const std::exception& error) {
    std::cerr << one_line(error) << '\n';
    return 2;
  }
}
