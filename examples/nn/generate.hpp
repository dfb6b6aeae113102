#pragma once

#include "evenkeel/init/random.hpp"
#include "nn/embedding.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace nn {

struct GenerateOptions {
  long length = 400;         // bytes to write
  double temperature = 1.0;  // below 1 prefers likely bytes, 0 takes the likeliest
  std::uint64_t seed = 1;
};

struct Decoded {
  std::vector<std::string> texts;  // what was written, one for each prompt
  double read_seconds = 0;         // for the prompts
  double write_seconds = 0;        // for what was written
  double write_norm_seconds = 0;   // of these in norms
  double bytes_per_second = 0;     // of both together
};

/// What the model writes after the prompts, which are of one length. Keys and values of what was read and written are
/// kept, so that a byte costs one token of each text. Where the context is full, its last half is read again.
template <class Model, class Device>
Decoded generate(Model& model, const Device& device, const std::vector<std::string>& prompts,
                 const GenerateOptions& options) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](auto time) { return std::chrono::duration<double>(time).count(); };
  const Index sequences = Index(prompts.size()), context = model.shape().context;
  for (const std::string& prompt : prompts)
    if (prompt.empty() || prompt.size() != prompts.front().size())
      throw std::invalid_argument("generate: the prompts must have one length of at least 1");
  std::vector<std::string> all = prompts;
  std::vector<std::uint8_t> tokens;
  Index position = 0;
  const auto read = [&](std::size_t begin) -> const auto& {
    tokens.clear();
    for (const std::string& text : all) tokens.insert(tokens.end(), text.begin() + std::ptrdiff_t(begin), text.end());
    position += Index(all.front().size() - begin);
    return model.forward(device, tokens);
  };
  const auto restart = [&]() -> const auto& {
    const std::size_t size = all.front().size();
    const std::size_t last = size <= std::size_t(context) ? size : std::size_t(context + 1) / 2;
    model.start_decoding(sequences);
    position = 0;
    return read(size - last);
  };
  const ek::RandomStream stream(options.seed, "sample");
  std::uint64_t drawn = 0;
  const auto next_byte = [&](const auto& logits) {
    Index next = 0;
    if (options.temperature == 0) {
      logits.maxCoeff(&next);
      return char(std::uint8_t(next));
    }
    const Eigen::ArrayXd row = logits.transpose().array().template cast<double>();
    const Eigen::ArrayXd weights = ((row - row.maxCoeff()) / options.temperature).exp();
    double left = stream.uniform<double>(drawn++) * weights.sum();
    while (next + 1 < weights.size() && (left -= weights(next)) >= 0) ++next;
    return char(std::uint8_t(next));
  };

  Decoded decoded;
  const auto start = Clock::now();
  const auto* logits = &restart();
  const auto written_from = Clock::now();
  const double norms_from = model.norm_seconds();
  for (long i = 0; i < options.length; ++i) {
    const Index rows = logits->rows() / sequences;
    for (Index s = 0; s < sequences; ++s) all[std::size_t(s)].push_back(next_byte(logits->row((s + 1) * rows - 1)));
    if (i + 1 < options.length) logits = position < context ? &read(all.front().size() - 1) : &restart();
  }
  decoded.read_seconds = seconds(written_from - start);
  decoded.write_seconds = seconds(Clock::now() - written_from);
  decoded.write_norm_seconds = model.norm_seconds() - norms_from;
  model.stop_decoding();
  for (std::size_t s = 0; s < all.size(); ++s) decoded.texts.push_back(all[s].substr(prompts[s].size()));
  decoded.bytes_per_second =
      double(sequences) * double(all.front().size()) / (decoded.read_seconds + decoded.write_seconds);
  return decoded;
}

/// For a terminal: control characters could move its cursor or worse.
inline std::string printable(std::string text) {
  for (char& c : text) {
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) c = '?';
  }
  return text;
}

}  // namespace nn
