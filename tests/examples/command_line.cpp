// The language model trainer as its users meet it.
#include "support/catch.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#ifdef EVENKEEL_EXAMPLES_DIR

#include "examples/process.hpp"

namespace {

namespace fs = std::filesystem;
using process::Folder, process::Outcome, process::last_line, process::read, process::value_of;

Outcome train(const Folder& folder, const std::string& arguments, const std::string& before = "") {
  return process::run(folder, "train_language_model", arguments, before);
}

std::string some_text() {
  std::string text;
  while (text.size() < 3000) text += "The ship came about and stood on an even keel. ";
  return text;
}

const std::string tiny = " --depth 1 --width 16 --heads 2 --context 16 --batch 2 --sample-length 20 ";

}  // namespace

TEST_CASE("examples: the trainer answers mistakes with one line and status 2", "[examples]") {
  const Folder folder;
  const std::string text = " --data '" + folder.write("text", some_text()) + "' ";
  const std::string curve = " --curve '" + folder / "curve.csv" + "' ";
  struct Mistake {
    std::string arguments, part_of_the_answer;
  };
  const std::vector<Mistake> mistakes{
      {text + "--no-such-option 3", "--no-such-option"},
      {text + "stray", "stray"},
      {"--data '" + folder / "missing" + "'", "missing: No such file"},
      {"--data '" + folder.write("empty", "") + "'", "empty: is empty"},
      {"--data '" + folder / "." + "'", "is a directory"},
      {"--data '" + folder.write("short", "A short text.") + "'", "has 13 bytes"},
      {text + "--context 2000", "--context 2000 needs at least"},
      {text + "--width 100 --heads 3", "--heads 3 do not divide --width 100"},
      {text + "--width 12 --heads 4", "odd width"},
      {text + "--width 0", "--width must be at least 1"},
      {text + "--depth -1", "--depth must be at least 1"},
      {text + "--heads 0", "--heads must be at least 1"},
      {text + "--context 0", "--context must be at least 1"},
      {text + "--batch 0", "--batch must be at least 1"},
      {text + "--steps 0", "--steps must be at least 1"},
      {text + "--threads 0", "--threads must be at least 1"},
      {text + "--learning-rate 0", "--learning-rate must be positive"},
      {text + "--learning-rate nan", "--learning-rate must be positive"},
      {text + "--sample-length -1", "--sample-length"},
      {text + "--steps many", "--steps"},
      {text + "--steps", "--steps"},
      {text + "--norm batch", "--norm must be rms, layer or taper"},
      {text + "--init zeros", "--init must be gpt2, standard, xavier, deepnorm or mup"},
      {text + "--init mup --base-width 30", "--heads 4 do not divide --base-width 30"},
      {text + "--taper none", "--taper must be internal or all"},
      {text + "--variant batch", "--variant must be rms or layer"},
      {text + "--norm taper --placement post", "--norm taper is for --placement pre"},
      {text + "--fold", "--fold needs --norm taper"},
      {text + "--anchor -1", "--anchor must not be negative"},
      {text + "--taper-start 0.5 --taper-end 0.5", "--taper-start and --taper-end"},
      {text + tiny + "--resume '" + folder / "missing" + "'", "missing: cannot be read"},
      {text + "--placement middle", "--placement must be pre, post, deepnorm or rezero"},
  };
  for (const Mistake& mistake : mistakes) {
    INFO(mistake.arguments);
    const Outcome outcome = train(folder, curve + mistake.arguments);
    INFO(outcome.err);
    CHECK(outcome.status == 2);
    CHECK(outcome.out.empty());
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
    CHECK_THAT(outcome.err, support::contains_text(mistake.part_of_the_answer));
    CHECK_FALSE(fs::exists(folder / "curve.csv"));
    CHECK_FALSE(fs::exists(folder / "curve.csv.part"));
  }
}

TEST_CASE("examples: a curve that cannot be written is an error before training", "[examples]") {
  const Folder folder;
  const std::string text = tiny + "--steps 1 --data '" + folder.write("text", some_text()) + "' ";
  for (const std::string& curve : {folder / "no/such/folder/curve.csv", folder / ".", std::string("/dev/null")}) {
    INFO(curve);
    const Outcome outcome = train(folder, text + "--curve '" + curve + "'");
    CHECK(outcome.status == 2);
    CHECK(outcome.out.empty());
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
    CHECK_THAT(outcome.err, support::contains_text(curve));
  }
  CHECK(fs::is_character_file("/dev/null"));
}

TEST_CASE("examples: muP is the standard parametrization at its base width, and another one elsewhere", "[examples]") {
  const Folder folder;
  const std::string arguments = tiny + "--steps 5 --data '" + folder.write("text", some_text()) + "' ";
  const auto loss = [&](const std::string& init) {
    const std::string result = last_line(train(folder, arguments + init).out);
    REQUIRE_FALSE(value_of(result, "train_loss").empty());
    return value_of(result, "train_loss");
  };
  const std::string standard = loss("--init standard");
  CHECK(loss("--init mup --base-width 16") == standard);
  CHECK(loss("--init mup --base-width 8") != standard);
}

TEST_CASE("examples: a tapered training can be interrupted and folded", "[examples]") {
  const Folder folder;
  const std::string arguments =
      tiny + "--steps 20 --norm taper --taper all --variant layer --data '" + folder.write("text", some_text()) + "' ";
  const std::string state = "'" + folder / "state" + "'";
  const Outcome whole = train(folder, arguments + "--save " + state);
  REQUIRE(whole.status == 0);
  const std::string result = last_line(whole.out);
  CHECK_THAT(result, support::contains_text(" norm=taper taper=all variant=layer anchor=0.1 "));
  // Nothing is left to train: what was saved is measured, and written with.
  const Outcome resumed = train(folder, arguments + "--resume " + state);
  const Outcome folded = train(folder, arguments + "--fold --resume " + state);
  CHECK(resumed.status == 0);
  CHECK(folded.status == 0);
  CHECK(value_of(last_line(folded.out), "steps") == "20");
}

TEST_CASE("examples: the trainer's last line, curve and silence", "[examples]") {
  const Folder folder;
  const std::string arguments = tiny + "--steps 5 --seed 7 --data '" + folder.write("text", some_text()) + "' ";
  for (const std::string norm : {"rms", "layer"}) {
    for (const std::string placement : {"pre", "post", "rezero"}) {
      INFO(norm << ", " << placement);
      const std::string choice = " --norm " + norm + " --placement " + placement;
      const Outcome one = train(folder, arguments + choice + " --threads 1 --curve '" + folder / "curve.csv" + "'");
      REQUIRE(one.status == 0);
      CHECK(one.err.empty());  // no progress bar where nobody watches
      const std::string result = last_line(one.out);
      CHECK(result.rfind("RESULT language_model norm=" + norm + " placement=" + placement + " ", 0) == 0);
      CHECK(value_of(result, "steps") == "5");
      CHECK(value_of(result, "seed") == "7");
      CHECK(value_of(result, "threads") == "1");
      for (const std::string key : {"tokens_per_second", "norm_share", "seconds", "depth", "width"}) {
        INFO(key);
        CHECK_FALSE(value_of(result, key).empty());
      }
      const std::string curve = read(folder / "curve.csv");
      CHECK(curve.rfind("step,train_loss,validation_loss,", 0) == 0);
      CHECK(std::count(curve.begin(), curve.end(), '\n') == 6);
      CHECK_FALSE(fs::exists(folder / "curve.csv.part"));

      const std::string other = last_line(train(folder, arguments + choice + " --threads 3").out);
      CHECK(value_of(other, "train_loss") == value_of(result, "train_loss"));
      CHECK(value_of(other, "validation_loss") == value_of(result, "validation_loss"));
    }
  }
}

TEST_CASE("examples: Ctrl-C ends the training with the curve saved", "[examples]") {
  const Folder folder;
  const Outcome outcome = train(folder,
                                tiny + "--steps 100000000 --data '" + folder.write("text", some_text()) +
                                    "' --curve '" + folder / "curve.csv" + "'",
                                "timeout --preserve-status --signal=INT --kill-after=60 2");
  CHECK(outcome.status == 0);
  const std::string result = last_line(outcome.out);
  REQUIRE(result.rfind("RESULT language_model", 0) == 0);
  CHECK(std::stol(value_of(result, "steps")) < 100000000);
  CHECK(last_line(read(folder / "curve.csv")).rfind(value_of(result, "steps") + ",", 0) == 0);
}

#endif
