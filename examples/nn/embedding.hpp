#pragma once

#include "nn/linear.hpp"

#include <cstdint>
#include <optional>
#include <span>

namespace nn {

using Tokens = std::span<const std::uint8_t>;

/// One table (vocabulary, width), used twice: its rows enter the network, and the output is compared with each of them.
/// Rows enter times `scale`: the small numbers that suit the head hardly move a network without norms.
template <class T>
class TiedEmbedding {
 public:
  TiedEmbedding(Index vocabulary, Index width, T scale = 1)
      : scale_(scale), table_(width, vocabulary, ek::Role::embedding) {}

  template <class Device>
  void forward(const Device& device, Tokens tokens, Output<T> y) {
    for_each_token_block(device, y.rows(), [&](Index begin, Index count) {
      for (Index i = begin; i < begin + count; ++i) y.row(i) = scale_ * table_.weight().row(tokens[std::size_t(i)]);
    });
  }

  /// In the tokens' order and on one thread: a byte occurs many times in a batch, and its sum must not depend on
  /// threads.
  void backward(const Input<T>& dy, Tokens tokens) {
    for (Index i = 0; i < dy.rows(); ++i) table_.gradient().row(tokens[std::size_t(i)]) += scale_ * dy.row(i);
  }

  /// logits (tokens, vocabulary) of the last hidden states
  template <class Device>
  void head_forward(const Device& device, const Input<T>& hidden, Output<T> logits) {
    (head_ ? *head_ : table_).forward(device, hidden, logits);
  }

  /// A head of its own from now on, the table's values at first; for inference.
  Linear<T>& untie() {
    if (!head_) head_.emplace(table_);
    return *head_;
  }

  template <class Device>
  void head_backward(const Device& device, const Input<T>& dlogits, const Input<T>& hidden, Output<T> dhidden) {
    table_.backward(device, dlogits, hidden, dhidden);
  }

  template <class F>
  void for_each_parameter(F&& f) {
    table_.for_each_parameter(f);
  }

  void initialize(const ek::Plan& plan, const ek::RandomStream& stream) { table_.initialize(plan, stream); }

 private:
  T scale_;
  Linear<T> table_;
  std::optional<Linear<T>> head_;
};

}  // namespace nn
