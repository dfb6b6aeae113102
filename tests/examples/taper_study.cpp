// The study of TaperNorm, whose kept run must be one that this code repeats.
#include "support/catch.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#ifdef EVENKEEL_EXAMPLES_DIR

#include "examples/process.hpp"

namespace {

using process::Folder, process::Outcome;

/// Rows of a curve that begin so, as numbers from the step on.
std::vector<std::vector<double>> rows_of(const std::string& path, const std::string& beginning) {
  std::vector<std::vector<double>> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(beginning, 0) != 0) continue;
    std::istringstream fields(line.substr(beginning.size()));
    rows.emplace_back();
    for (std::string field; std::getline(fields, field, ',');) rows.back().push_back(std::stod(field));
  }
  return rows;
}

}  // namespace

TEST_CASE("examples: the kept study of TaperNorm begins as it did", "[examples]") {
  if (std::system("command -v bible >/dev/null") != 0) {
    WARN("skipped: the package bible-kjv is not installed");
    return;
  }
  const Folder folder;
  const std::string run = "all_anchor,64,1,";
  const Outcome outcome = process::run(
      folder, "taper_study",
      "--parts loss --variants all_anchor --widths 64 --seeds 1 --stop-after 20 --out '" + folder / "." + "'");
  REQUIRE(outcome.status == 0);
  const auto kept = rows_of(EVENKEEL_EXAMPLES_SOURCE_DIR "/results/taper_study_loss.csv", run);
  const auto now = rows_of(folder / "taper_study_loss.csv", run);
  REQUIRE(kept.size() > 20);
  REQUIRE(now.size() == 20);
  for (std::size_t i = 0; i < 20; ++i) {
    INFO("step " << i + 1);
    REQUIRE(kept[i].size() == 6);
    CHECK(now[i][0] == kept[i][0]);                        // step
    CHECK(now[i][1] == Approx(kept[i][1]).epsilon(1e-3));  // loss: other processors sum in another order
    CHECK(now[i][2] == kept[i][2]);                        // gate
    CHECK(now[i][3] == Approx(kept[i][3]).epsilon(2e-2));  // scale of the logits
  }
}

TEST_CASE("examples: the study of TaperNorm refuses what it does not know", "[examples]") {
  const Folder folder;
  for (const std::string arguments : {"--parts cooking", "--data /no/such/file", "--seeds 0", "--steps 3"}) {
    INFO(arguments);
    const Outcome outcome = process::run(folder, "taper_study", arguments + " --out '" + folder / "." + "'");
    CHECK(outcome.status == 2);
    CHECK(outcome.out.empty());
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  }
}

#endif
