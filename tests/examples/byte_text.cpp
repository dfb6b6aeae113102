#include "nn/byte_text.hpp"

#include "nn/generate.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <string>

namespace ek = evenkeel;

namespace {

// A text whose bytes tell where they stand, modulo 251.
std::string numbered(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = char(i % 251);
  return text;
}

}  // namespace

TEST_CASE("examples: the last tenth of a text is held out", "[examples]") {
  const nn::ByteText text(numbered(1000), 20);
  CHECK(text.training().size() == 900);
  CHECK(text.validation().size() == 100);
  CHECK(text.validation().front() == 900 % 251);

  const nn::ByteText shortest(numbered(nn::ByteText::fewest_bytes(20)), 20);
  CHECK(shortest.training().size() == 21);
  CHECK(shortest.validation().size() == 21);
  CHECK(shortest.training_batch(ek::RandomStream(1, "batches"), 0, 3).tokens.size() == 60);
  CHECK(shortest.validation_batches(8, 4).size() == 1);
}

TEST_CASE("examples: targets are the bytes that follow", "[examples]") {
  const nn::ByteText text(numbered(1000), 20);
  auto batches = text.validation_batches(3, 2);
  REQUIRE(batches.size() == 2);
  CHECK(batches[0].tokens.size() == 40);
  CHECK(batches[1].tokens.size() == 20);
  batches.push_back(text.training_batch(ek::RandomStream(1, "batches"), 5, 4));
  for (const auto& batch : batches) {
    REQUIRE(batch.tokens.size() == batch.targets.size());
    for (std::size_t i = 0; i < batch.tokens.size(); ++i) CHECK(batch.targets[i] == (batch.tokens[i] + 1) % 251);
  }
}

TEST_CASE("examples: training batches are a function of seed and step", "[examples]") {
  const nn::ByteText text(numbered(10000), 20);
  const auto tokens = [&](std::uint64_t seed, long step) {
    return text.training_batch(ek::RandomStream(seed, "batches"), step, 8).tokens;
  };
  CHECK(tokens(1, 3) == tokens(1, 3));
  CHECK(tokens(1, 3) != tokens(1, 4));
  CHECK(tokens(1, 3) != tokens(2, 3));
}

TEST_CASE("examples: a sample cannot steer the terminal", "[examples]") {
  CHECK(nn::printable("a\tb\n\x1b[2J\r\x7f\xc3\xa9") == "a\tb\n?[2J??\xc3\xa9");
}
