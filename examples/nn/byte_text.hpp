#pragma once

#include "evenkeel/init/random.hpp"
#include "nn/embedding.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace nn {

/// `size` windows of `context` bytes, and for each byte the one that follows it.
struct Batch {
  std::vector<std::uint8_t> tokens, targets;  // (size * context)

  void append(Tokens text, std::size_t begin, std::size_t context) {
    tokens.insert(tokens.end(), text.begin() + std::ptrdiff_t(begin), text.begin() + std::ptrdiff_t(begin + context));
    targets.insert(targets.end(), text.begin() + std::ptrdiff_t(begin + 1),
                   text.begin() + std::ptrdiff_t(begin + context + 1));
  }
};

/// A text split in two: the last tenth is held out for validation.
class ByteText {
 public:
  ByteText(std::string text, Index context) : text_(std::move(text)), context_(std::size_t(context)) {
    validation_ = std::max(text_.size() / 10, context_ + 1);
  }

  /// The fewest bytes of a text that leave one window on either side of the split.
  static std::size_t fewest_bytes(Index context) { return 2 * (std::size_t(context) + 1); }

  Tokens training() const { return bytes().first(text_.size() - validation_); }
  Tokens validation() const { return bytes().last(validation_); }

  /// `size` windows anywhere in the training text, a function of the stream and the step.
  Batch training_batch(const ek::RandomStream& stream, long step, Index size) const {
    const double places = double(training().size() - context_);
    Batch batch;
    for (Index i = 0; i < size; ++i) {
      const double u = stream.uniform<double>(std::uint64_t(step * size + i));
      batch.append(training(), std::size_t(u * places), context_);
    }
    return batch;
  }

  /// At most `windows` windows spread evenly over the validation text, the same at each call, in batches of `size`.
  std::vector<Batch> validation_batches(Index windows, Index size) const {
    const std::size_t whole = (validation_ - 1) / context_;
    const std::size_t count = std::min(std::size_t(windows), whole);
    std::vector<Batch> batches;
    for (std::size_t i = 0; i < count; ++i) {
      if (i % std::size_t(size) == 0) batches.emplace_back();
      batches.back().append(validation(), i * whole / count * context_, context_);
    }
    return batches;
  }

 private:
  Tokens bytes() const { return {reinterpret_cast<const std::uint8_t*>(text_.data()), text_.size()}; }

  std::string text_;
  std::size_t context_, validation_;
};

}  // namespace nn
