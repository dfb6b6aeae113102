#include "evenkeel/init/philox.hpp"
#include "support/catch.hpp"

#include <cstdint>
#include <vector>

#if __has_include(<Random123/philox.h>)
#include <Random123/philox.h>
#define HAS_RANDOM123 1
#endif

namespace ek = evenkeel;

namespace {

std::vector<std::uint32_t> words(const ek::PhiloxBlock& block) { return {block.word, block.word + 4}; }

// The generator is usable in constant expressions; nothing in it depends on the machine.
static_assert(ek::philox4x32_10({{0, 0, 0, 0}}, 0, 0).word[0] == 0x6627e8d5u);

}  // namespace

TEST_CASE("philox4x32_10 gives the known answers of Random123") {
  using W = std::vector<std::uint32_t>;
  constexpr std::uint32_t ones = 0xffffffffu;
  CHECK(words(ek::philox4x32_10({{0, 0, 0, 0}}, 0, 0)) == W{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  CHECK(words(ek::philox4x32_10({{ones, ones, ones, ones}}, ones, ones)) ==
        W{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  CHECK(words(ek::philox4x32_10({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}, 0xa4093822u, 0x299f31d0u)) ==
        W{0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("random_block puts the seed into the key, block and stream into the counter, low words first") {
  CHECK(words(ek::random_block(0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u)) ==
        std::vector<std::uint32_t>{0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u});
}

#ifdef HAS_RANDOM123
TEST_CASE("philox4x32_10 equals Random123 on counters and keys of all sizes") {
  std::uint64_t state = 1;
  const auto next = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state >> (32 + state % 3));
  };
  int differing = 0;
  for (int i = 0; i < 20000; ++i) {
    ek::PhiloxBlock counter{};
    philox4x32_ctr_t their_counter{};
    philox4x32_key_t key{};
    for (unsigned j = 0; j < 4; ++j) their_counter.v[j] = counter.word[j] = next();
    for (unsigned j = 0; j < 2; ++j) key.v[j] = next();
    const philox4x32_ctr_t theirs = philox4x32_R(10, their_counter, key);
    const ek::PhiloxBlock ours = ek::philox4x32_10(counter, key.v[0], key.v[1]);
    for (unsigned j = 0; j < 4; ++j) differing += ours.word[j] != theirs.v[j];
  }
  CHECK(differing == 0);
}
#endif
