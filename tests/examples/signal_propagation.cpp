// The survey of deep stacks as its users meet it: a process, its lines and its table.
#include "support/catch.hpp"

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#ifdef EVENKEEL_SIGNAL_PROPAGATION

#include "examples/process.hpp"

namespace {

namespace fs = std::filesystem;

struct Stack {
  std::vector<double> moment, gradient;  // after each block
  std::string line;
};

std::map<std::string, Stack> survey(const std::string& arguments) {
  const process::Folder folder;
  const std::string name = folder / "survey";
  REQUIRE(process::run(folder, "signal_propagation", arguments + " --name '" + name + "'").status == 0);
  CHECK(fs::exists(name + ".gnuplot"));
  std::map<std::string, Stack> stacks;
  std::ifstream table(name + ".csv"), lines(folder / "out");
  std::string line;
  std::getline(table, line);
  CHECK(line == "stack,block,second_moment,gradient_norm");
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string stack, block, moment, gradient;
    std::getline(fields, stack, ',');
    std::getline(fields, block, ',');
    std::getline(fields, moment, ',');
    std::getline(fields, gradient, ',');
    stacks[stack].moment.push_back(std::stod(moment));
    stacks[stack].gradient.push_back(std::stod(gradient));
    CHECK(std::stoul(block) == stacks[stack].moment.size());
  }
  while (std::getline(lines, line)) {
    const auto stack = stacks.find(line.substr(0, line.find(' ')));
    if (stack != stacks.end()) stack->second.line = line;
  }
  return stacks;
}

}  // namespace

TEST_CASE("examples: stacks of blocks carry a signal as their formulas say", "[examples]") {
  constexpr std::size_t depth = 120;
  auto stacks = survey("--depth 120 --batch 64");
  REQUIRE(stacks.size() == 12);
  for (const auto& [name, stack] : stacks) {
    INFO(name);
    CHECK(stack.moment.size() == depth);
    CHECK_FALSE(stack.line.empty());
  }
  const auto last = [&](const char* name) { return stacks.at(name).moment.back(); };
  const auto first_gradient = [&](const char* name) { return stacks.at(name).gradient.front(); };
  const auto says = [&](const char* name, const char* words) {
    INFO(stacks.at(name).line);
    CHECK_THAT(stacks.at(name).line, support::contains_text(words));
  };
  // Of one draw with 64 features: a branch's variance is off by about sqrt(5/64) of itself, those of all blocks together
  // by less.
  CHECK(last("none") > 1e30);
  says("none", "exploding: the signal");
  CHECK(last("pre_norm") == Approx(121).epsilon(0.15));  // every branch adds 1
  says("pre_norm", "diluted deep layers");
  CHECK(last("sandwich") == Approx(121).epsilon(0.15));
  CHECK(last("output_norm") == Approx(121).epsilon(0.15));
  CHECK(last("pre_norm_gpt2") == Approx(2).epsilon(0.2));
  CHECK(last("layer_norm_scaling") == Approx(1 + 2 * 4.68).epsilon(0.25));  // 4.68 is the sum of 1/l up to 60
  CHECK(last("depth_scale") == Approx(2.7).epsilon(0.3));                   // (1 + 1/N)^N, and all draws multiply
  CHECK(last("nfnet") == Approx(1 + 0.04 * 120).epsilon(0.3));
  CHECK(last("post_norm") == Approx(1).epsilon(1e-4));
  CHECK(last("deep_norm") == Approx(1).epsilon(1e-4));
  CHECK(last("rezero") == Approx(1).epsilon(0.05));
  CHECK(last("rezero") == stacks.at("rezero").moment.front());
  CHECK(last("layer_scale") == Approx(last("rezero")).epsilon(1e-3));
  for (const char* name : {"pre_norm_gpt2", "deep_norm", "rezero", "layer_scale", "depth_scale"}) {
    says(name, "healthy");
    const double ratio = first_gradient(name) / stacks.at(name).gradient.back();
    CHECK(ratio > 0.4);
    CHECK(ratio < 2.5);
  }
  CHECK(first_gradient("none") > 1e10 * stacks.at("none").gradient.back());
}

#endif
