#pragma once

#include "evenkeel/init/random.hpp"
#include "nn/embedding.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace nn {

/// `length` bytes that the model writes after the prompt. A temperature below 1 prefers likely bytes.
template <class Model, class Device>
std::string sample(Model& model, const Device& device, const std::string& prompt, long length, double temperature,
                   std::uint64_t seed) {
  const std::size_t context = std::size_t(model.shape().context);
  const ek::RandomStream stream(seed, "sample");
  std::string text = prompt;
  for (long i = 0; i < length; ++i) {
    const std::size_t count = std::min(text.size(), context);
    std::vector<std::uint8_t> window(context, 0);  // what stands after the text cannot be seen: the model is causal
    std::copy(text.end() - std::ptrdiff_t(count), text.end(), window.begin());
    const auto& logits = model.forward(device, window);
    const Eigen::ArrayXd row = logits.row(Index(count) - 1).transpose().array().template cast<double>();
    const Eigen::ArrayXd weights = ((row - row.maxCoeff()) / temperature).exp();
    double left = stream.uniform<double>(std::uint64_t(i)) * weights.sum();
    Index next = 0;
    while (next + 1 < weights.size() && (left -= weights(next)) >= 0) ++next;
    text.push_back(char(std::uint8_t(next)));
  }
  return text.substr(prompt.size());
}

/// For a terminal: control characters could move its cursor or worse.
inline std::string printable(std::string text) {
  for (char& c : text) {
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) c = '?';
  }
  return text;
}

}  // namespace nn
