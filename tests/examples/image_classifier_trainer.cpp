// The image trainer as its users meet it: a process with arguments, two streams and an exit status.
#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#ifdef EVENKEEL_IMAGE_CLASSIFIER

#include "examples/process.hpp"

namespace {

namespace fs = std::filesystem;

// Tests that need them say so in their output, and pass, where Debian's package dataset-fashion-mnist is missing.
bool images_are_missing(const char* test) {
  if (fs::exists("/usr/share/datasets/fashion-mnist")) return false;
  WARN(test << ": skipped, the package dataset-fashion-mnist is not installed");
  return true;
}

using process::Folder, process::Outcome, process::last_line, process::read, process::value_of;

Outcome train(const Folder& folder, const std::string& arguments) {
  return process::run(folder, "train_image_classifier", arguments);
}

// A column of a curve, NaN where it is empty.
std::vector<double> column_of(const std::string& curve, int column) {
  std::vector<double> values;
  std::istringstream lines(curve);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.empty() || line[0] < '0' || line[0] > '9') continue;
    std::istringstream fields(line);
    std::string field;
    for (int i = 0; i <= column; ++i) std::getline(fields, field, ',');
    values.push_back(field.empty() ? NAN : std::stod(field));
  }
  return values;
}
constexpr int train_loss = 1, test_loss = 4;

const std::string tiny = " --depth 8 --batch 8 --train-images 64 --test-images 50 ";

}  // namespace

TEST_CASE("examples: the image trainer answers mistakes with one line and status 2", "[examples]") {
  const Folder folder;
  fs::create_directories(folder / "damaged");
  std::ofstream(folder / "damaged/train-images-idx3-ubyte.gz") << "no image";
  struct Mistake {
    std::string arguments, part_of_the_answer;
  };
  const std::vector<Mistake> mistakes{
      {"--no-such-option 3", "--no-such-option"},
      {"stray", "stray"},
      {"--norm layer", "--norm must be batch, group, instance, dyt, weight, scaled_ws or none, not layer"},
      {"--recipe big", "--recipe must be standard, fixup, nfnet, skip_init, layer_scale or depth_scale, not big"},
      {"--recipe fixup --norm batch", "--recipe fixup does not go with --norm batch, but with none"},
      {"--recipe nfnet --norm none", "--recipe nfnet does not go with --norm none, but with scaled_ws"},
      {"--depth 7", "--depth must be an even number of at least 8, not 7"},
      {"--depth 9", "--depth must be an even number of at least 8, not 9"},
      {"--depth 1000000", "--depth must be at most 10000"},
      {"--batch 0", "--batch must be at least 1"},
      {"--batch 100 --train-images 99", "--batch 100 is more than --train-images 99"},
      {"--epochs 0", "--epochs must be at least 1"},
      {"--steps -1", "--steps must not be negative"},
      {"--threads 0", "--threads must be at least 1"},
      {"--learning-rate nan", "--learning-rate must be positive"},
      {"--learning-rate -1", "--learning-rate must be positive"},
      {"--weight-decay -1", "--weight-decay must not be negative"},
      {"--clip -2", "--clip must not be negative"},
      {"--clip-norm -2", "--clip-norm must not be negative"},
      {"--train-images 0", "--train-images must be at least 1"},
      {"--test-images 0", "--test-images must be at least 1"},
      {"--sync-batch-norm --norm group", "--sync-batch-norm goes with --norm batch, not with group"},
      {"--data '" + folder / "missing" + "'", "package dataset-fashion-mnist"},
      {"--data '" + folder / "." + "'", "train-images-idx3-ubyte.gz: cannot be opened"},
      {"--data '" + folder / "damaged" + "'", "is not an IDX file"},
  };
  for (const Mistake& mistake : mistakes) {
    INFO(mistake.arguments);
    const Outcome outcome = train(folder, "--curve '" + folder / "curve.csv" + "' " + mistake.arguments);
    INFO(outcome.err);
    CHECK(outcome.status == 2);
    CHECK(outcome.out.empty());
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
    CHECK_THAT(outcome.err, support::contains_text(mistake.part_of_the_answer));
    CHECK_FALSE(fs::exists(folder / "curve.csv"));
    CHECK_FALSE(fs::exists(folder / "curve.csv.part"));
  }
}

TEST_CASE("examples: the image trainer's last line, curve and silence", "[examples]") {
  if (images_are_missing("examples: the image trainer's last line, curve and silence")) return;
  const Folder folder;
  for (const std::string kind : {"standard batch", "standard group", "fixup none", "nfnet scaled_ws"}) {
    INFO(kind);
    const std::string recipe = kind.substr(0, kind.find(' ')), norm = kind.substr(kind.find(' ') + 1);
    const std::string arguments =
        tiny + "--steps 4 --seed 7 --recipe " + recipe + (norm == "group" ? " --norm group" : "");
    const Outcome one = train(folder, arguments + " --threads 1 --curve '" + folder / "curve.csv" + "'");
    REQUIRE(one.status == 0);
    CHECK(one.err.empty());  // no progress bar where nobody watches
    const std::string result = last_line(one.out);
    CHECK(result.rfind("RESULT image_classifier recipe=" + recipe + " norm=" + norm + " depth=8 batch=8 ", 0) == 0);
    CHECK(value_of(result, "steps") == "4");
    CHECK(value_of(result, "seed") == "7");
    CHECK(value_of(result, "threads") == "1");
    for (const std::string key : {"test_accuracy", "seconds", "commit", "learning_rate"}) {
      INFO(key);
      CHECK_FALSE(value_of(result, key).empty());
    }
    CHECK_THAT(result, support::contains_text("command='train_image_classifier --depth 8 "));
    const std::string curve = read(folder / "curve.csv");
    CHECK(curve.rfind("step,train_loss,learning_rate,", 0) == 0);
    CHECK(column_of(curve, train_loss).size() == 4);
    CHECK_FALSE(fs::exists(folder / "curve.csv.part"));

    const std::string other = last_line(train(folder, arguments + " --threads 3").out);
    CHECK(value_of(other, "train_loss") == value_of(result, "train_loss"));
    CHECK(value_of(other, "test_loss") == value_of(result, "test_loss"));
  }
}

TEST_CASE("examples: the first 20 steps of kept runs of the image trainer repeat", "[examples]") {
  if (images_are_missing("examples: the first 20 steps of kept runs of the image trainer repeat")) return;
  const Folder folder;
  int runs = 0;
  for (const auto& entry : fs::directory_iterator(EVENKEEL_EXAMPLES_SOURCE_DIR "/results")) {
    const std::string file = entry.path().filename().string();
    if (file.rfind("image_classifier_first_steps_", 0) != 0) continue;
    INFO(file);
    ++runs;
    // The first line of the file is "# train_image_classifier" and its arguments.
    const std::string kept = read(entry.path().string()), name = "# train_image_classifier ";
    REQUIRE(kept.rfind(name, 0) == 0);
    const std::string arguments = kept.substr(name.size(), kept.find('\n') - name.size());
    const Outcome outcome = train(folder, arguments + " --curve '" + folder / "curve.csv" + "'");
    INFO(outcome.err);
    REQUIRE(outcome.status == 0);
    const std::string curve = read(folder / "curve.csv");
    for (const int column : {train_loss, test_loss}) {
      INFO("column " << column);
      const std::vector<double> expected = column_of(kept, column), found = column_of(curve, column);
      REQUIRE(expected.size() == 20);
      REQUIRE(found.size() == 20);
      CHECK(std::isfinite(expected[19]));
      for (std::size_t step = 0; step < 20; ++step) {
        INFO("step " << step + 1);
        if (std::isfinite(expected[step])) CHECK(found[step] == Approx(expected[step]).epsilon(0).margin(1e-4));
      }
    }
  }
  CHECK(runs == 5);
}

#ifdef EVENKEEL_MPIEXEC

namespace {

Outcome train_on_four(const Folder& folder, const std::string& arguments) {
  return process::run(folder, "train_image_classifier", arguments,
                      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
                      "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe "
                      "OMPI_MCA_btl_vader_single_copy_mechanism=none '" EVENKEEL_MPIEXEC "' -n 4");
}

}  // namespace

TEST_CASE("examples: the image trainer on four ranks follows one process", "[examples]") {
  if (images_are_missing("examples: the image trainer on four ranks follows one process")) return;
  const Folder folder;
  const std::string curve = " --curve '" + folder / "curve.csv" + "'";
  const auto losses = [&] { return column_of(read(folder / "curve.csv"), train_loss); };
  // At a rate at which what one rounding does to a loss stays below the margin for 50 steps.
  const std::string arguments =
      "--depth 8 --batch 128 --learning-rate 0.02 --train-images 6400 --test-images 50 --threads 1 ";
  REQUIRE(train(folder, arguments + "--steps 50" + curve).status == 0);
  const std::vector<double> one = losses();
  const Outcome outcome = train_on_four(folder, arguments + "--sync-batch-norm --steps 50" + curve);
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  const std::vector<double> four = losses();
  REQUIRE(one.size() == 50);
  REQUIRE(four.size() == 50);
  for (std::size_t step = 0; step < 50; ++step) {
    INFO("step " << step + 1);
    CHECK(std::abs(four[step] - one[step]) < 1e-3);
  }
  for (const std::string rank : {"0", "1", "2", "3"})
    CHECK_THAT(outcome.out, support::contains_text("rank " + rank + " of 4: 32 images a step, "));
  CHECK(value_of(last_line(outcome.out), "ranks") == "4");
  CHECK(value_of(last_line(outcome.out), "sync_batch_norm") == "1");

  // Statistics of each rank's own images: another network.
  REQUIRE(train_on_four(folder, arguments + "--steps 5" + curve).status == 0);
  const std::vector<double> local = losses();
  REQUIRE(local.size() == 5);
  CHECK(std::abs(local[4] - one[4]) > 1e-3);
}

TEST_CASE("examples: a mistake on four ranks ends all of them", "[examples]") {
  const Folder folder;
  for (const std::string arguments : {"--depth 7", "--batch 3", "--data /missing"}) {
    INFO(arguments);
    const Outcome outcome = train_on_four(folder, "--threads 1 --sync-batch-norm " + arguments);
    CHECK(outcome.status != 0);
    CHECK_THAT(outcome.err, support::contains_text("train_image_classifier: "));
  }
}

#endif
#endif
