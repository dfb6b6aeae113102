#include "nn/language_model_trainer.hpp"

#include "support/catch.hpp"
#include "support/devices.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace {

namespace ek = evenkeel;
using nn::NormKind;
using nn::Tapered;

constexpr NormKind every_norm[] = {NormKind::rms, NormKind::layer, NormKind::taper_rms, NormKind::taper_layer,
                                   NormKind::fake_layer};

const std::string& some_text() {
  static const std::string text = [] {
    std::string lines;
    for (int i = 0; i < 90; ++i) lines.append("The ship came about, and stood on an even keel; then the wind fell. ");
    return lines;
  }();
  return text;
}

nn::TrainerOptions options_of(NormKind norm, Tapered tapered = Tapered::all) {
  return {.shape = {.depth = 2, .width = 16, .heads = 2, .context = 16},
          .norm = norm,
          .batch = 2,
          .steps = 24,
          .warmup = 2,
          .learning_rate = 1e-2,
          .weight_decay = 0.1,
          .seed = 3,
          .tapered = tapered,
          .taper = {.warmup_steps = 6, .end_step = 20},
          .taper_rate = 0.1,
          .anchor = 0.1};
}

struct Run {
  nn::ByteText text{some_text(), 16};
  support::ThreadPool pool{2};
  std::unique_ptr<nn::LanguageModelTrainer> start(const nn::TrainerOptions& options) {
    return nn::make_trainer(options, text, pool.device());
  }
};

std::vector<double> losses_of(nn::LanguageModelTrainer& trainer, long until) {
  std::vector<double> losses;
  while (trainer.steps() < until) {
    const nn::StepFigures f = trainer.step();
    losses.insert(losses.end(), {f.loss, f.anchor_loss, f.gradient_norm});
  }
  return losses;
}

struct File {
  std::string path =
      (std::filesystem::temp_directory_path() / ("evenkeel_trainer_" + std::to_string(getpid()))).string();
  ~File() { std::filesystem::remove(path); }
};

}  // namespace

TEST_CASE("examples: a run that was saved in any phase goes on with the same numbers", "[examples]") {
  Run run;
  const File file;
  for (const NormKind norm : every_norm)
    for (const long saved_at : {3L, 6L, 13L, 22L}) {  // warmup, its end, tapering, tapered
      INFO("norm " << int(norm) << ", saved after step " << saved_at);
      const auto whole = run.start(options_of(norm));
      losses_of(*whole, saved_at);
      whole->save(file.path);
      const std::vector<double> expected = losses_of(*whole, 24);

      const auto resumed = run.start(options_of(norm));
      resumed->load(file.path);
      CHECK(resumed->steps() == saved_at);
      CHECK(losses_of(*resumed, 24) == expected);
      CHECK(resumed->validation_loss(8) == whole->validation_loss(8));
    }
}

TEST_CASE("examples: a state of another model is refused", "[examples]") {
  Run run;
  const File file;
  run.start(options_of(NormKind::rms))->save(file.path);
  auto wider = options_of(NormKind::rms);
  wider.shape.width = 32;
  CHECK_THROWS_WITH(run.start(wider)->load(file.path), support::contains_text("it is of another program or model"));
  CHECK_THROWS_WITH(run.start(options_of(NormKind::layer))->load(file.path), support::contains_text("expected"));
  std::filesystem::resize_file(file.path, std::filesystem::file_size(file.path) - 100);
  CHECK_THROWS_WITH(run.start(options_of(NormKind::rms))->load(file.path), support::contains_text("ends within"));
  CHECK_THROWS_WITH(run.start(options_of(NormKind::rms))->load(file.path + ".no"),
                    support::contains_text("cannot be read"));
}

TEST_CASE("examples: each window of the validation text has a loss of its own, whatever the batch", "[examples]") {
  Run run;
  auto options = options_of(NormKind::rms);
  const auto losses = [&](nn::Index batch) {
    options.batch = batch;
    return run.start(options)->window_losses(7);
  };
  const std::vector<double> alone = losses(1), together = losses(3);
  REQUIRE(alone.size() == 7);
  REQUIRE(together.size() == 7);
  double mean = 0;
  for (std::size_t i = 0; i < 7; ++i) {
    CHECK(together[i] == Approx(alone[i]).epsilon(1e-6));
    if (i > 0) CHECK(alone[i] != alone[i - 1]);
    mean += together[i] / 7;
  }
  CHECK(run.start(options)->validation_loss(7) == Approx(mean).epsilon(1e-14));
}

TEST_CASE("examples: folded norms leave the loss as it was", "[examples]") {
  Run run;
  for (const NormKind norm : {NormKind::taper_rms, NormKind::taper_layer})
    for (const Tapered tapered : {Tapered::internal, Tapered::all}) {
      INFO("norm " << int(norm) << ", tapered " << int(tapered));
      const auto trainer = run.start(options_of(norm, tapered));
      losses_of(*trainer, 12);
      CHECK_THROWS_AS(trainer->fold_norms(), ek::StateError);  // the gate is open
      losses_of(*trainer, 24);
      const double loss = trainer->validation_loss(16);
      trainer->fold_norms();
      CHECK(trainer->validation_loss(16) == Approx(loss).epsilon(2e-6));  // float, summed in another order
      CHECK_THROWS_WITH(trainer->fold_norms(), support::contains_text("folded already"));
    }
  const auto fake = run.start(options_of(NormKind::fake_layer));
  losses_of(*fake, 8);
  fake->freeze_norms(5);
  losses_of(*fake, 12);
  const double loss = fake->validation_loss(16);
  fake->fold_norms();
  CHECK(fake->validation_loss(16) == Approx(loss).epsilon(2e-6));
  CHECK_THROWS_WITH(run.start(options_of(NormKind::rms))->fold_norms(), support::contains_text("cannot be folded"));
}

TEST_CASE("examples: decoding with kept keys and values writes what whole windows would", "[examples]") {
  Run run;
  for (const NormKind norm : every_norm) {
    INFO("norm " << int(norm));
    const auto trainer = run.start(options_of(norm));
    losses_of(*trainer, 24);
    // 30 bytes are more than the context of 16, so the cache starts over on the way.
    const nn::GenerateOptions greedy{.length = 30, .temperature = 0};
    const std::vector<std::string> prompts{"The ship", "the wind", "stood on"};
    const nn::Decoded together = trainer->generate(prompts, greedy);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      CHECK(together.texts[i].size() == 30);
      CHECK(trainer->generate({prompts[i]}, greedy).texts.front() == together.texts[i]);
    }
    // One byte at a time, each from a prompt that is read as a whole.
    std::string text = prompts[0];
    for (int i = 0; i < 8; ++i) text += trainer->generate({text}, {.length = 1, .temperature = 0}).texts.front();
    CHECK(text == prompts[0] + together.texts[0].substr(0, 8));
  }
}

TEST_CASE("examples: weights move between models of different norms", "[examples]") {
  Run run;
  const auto trained = run.start(options_of(NormKind::layer));
  losses_of(*trained, 10);
  for (const NormKind norm : {NormKind::taper_layer, NormKind::fake_layer}) {
    const auto other = run.start(options_of(norm));
    other->start_from(trained->weights());
    CHECK(other->validation_loss(8) == trained->validation_loss(8));
  }
  CHECK_THROWS_WITH(run.start(options_of(NormKind::rms))->start_from(trained->weights()),
                    support::contains_text("of another model"));
}
