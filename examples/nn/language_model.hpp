#pragma once

#include "nn/attention.hpp"
#include "nn/embedding.hpp"
#include "nn/fold.hpp"
#include "nn/language_model_shape.hpp"
#include "nn/residual.hpp"
#include "nn/swiglu.hpp"
#include "nn/timed_norm.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace nn {

/// A causal transformer over bytes: embedding, `depth` times (attention, SwiGLU) on residual branches with Norm, tied
/// head. Pre-norm and ReZero close with a norm of the stream, which nothing has bounded so far; post-norm's stream is
/// normalized. ReZero without it learns as fast, but a rare byte (Q) gave logits of 80000 (default run, 900 steps,
/// 2026-11-29). Norm is ek::RmsNorm<T> or ek::LayerNorm<T>.
template <class T, class Norm>
class LanguageModel {
 public:
  explicit LanguageModel(const LanguageModelShape& shape)
      : LanguageModel(shape, [&](bool) { return Norm(shape.width); }) {}

  /// make_norm(last) makes each norm; `last` for the one before the head.
  template <class MakeNorm>
  LanguageModel(const LanguageModelShape& shape, const MakeNorm& make_norm)
      : shape_(shape),
        embedding_(shape.vocabulary, shape.width, embedding_scale(shape)),
        final_norm_(norm_stopwatch_, make_norm(true)),
        stream_(std::size_t(2 * shape.depth + 1)) {
    const auto timed = [&] { return TimedNorm<Norm>(norm_stopwatch_, make_norm(false)); };
    for (Index i = 0; i < shape.depth; ++i) {
      attention_.emplace_back(shape, timed(), CausalSelfAttention<T>(shape.width, shape.heads, shape.context));
      feed_forward_.emplace_back(shape, timed(), SwiGlu<T>(shape.width, shape.hidden()));
    }
  }
  // The norms point to the stopwatch.
  LanguageModel(const LanguageModel&) = delete;
  LanguageModel& operator=(const LanguageModel&) = delete;

  /// GPT-2's start.
  void initialize(std::uint64_t seed) { initialize(seed, plan_of(shape_, Start::gpt2)); }

  /// Every matrix has its own random stream, named after it, so the order of initialization does not matter.
  void initialize(std::uint64_t seed, const ek::Plan& plan) {
    logit_scale_ = T(plan.forward_multiplier(ek::Role::head));
    embedding_.initialize(plan, ek::RandomStream(seed, "embedding.weight"));
    for (Index i = 0; i < shape_.depth; ++i) {
      const std::string block = "blocks." + std::to_string(i);
      attention_[std::size_t(i)].sublayer().initialize(plan, seed, block + ".attention");
      feed_forward_[std::size_t(i)].sublayer().initialize(plan, seed, block + ".feed_forward");
    }
  }

  /// From now on forward takes the next tokens of `sequences` texts, the same number of each, from position 0.
  void start_decoding(Index sequences) {
    for (auto& block : attention_) block.sublayer().start_decoding(sequences);
  }
  void stop_decoding() {
    for (auto& block : attention_) block.sublayer().stop_decoding();
  }

  /// tokens (batch * context); returns the logits (tokens, vocabulary) of each next token.
  template <class Device>
  const Matrix<T>& forward(const Device& device, Tokens tokens) {
    const Index rows = Index(tokens.size());
    for (Matrix<T>& x : stream_) x.resize(rows, shape_.width);  // (tokens, width)
    logits_.resize(rows, shape_.vocabulary);                    // (tokens, vocabulary)
    embedding_.forward(device, tokens, stream_[0]);
    for (std::size_t i = 0; i < attention_.size(); ++i) {
      attention_[i].forward(device, stream_[2 * i], stream_[2 * i + 1]);
      feed_forward_[i].forward(device, stream_[2 * i + 1], stream_[2 * i + 2]);
    }
    if (has_final_norm_) {
      normalized_.resize(rows, shape_.width);  // (tokens, width)
      final_norm_.forward(device, stream_.back(), normalized_);
    }
    embedding_.head_forward(device, hidden(), logits_);
    if (logit_scale_ != 1) logits_ *= logit_scale_;
    return logits_;
  }

  /// After forward with the same tokens: adds the gradients of dlogits (tokens, vocabulary) to the parameters'
  /// gradients. at_stream(h, dh) may add to the gradient dh of the stream h that leaves the last block, both
  /// (tokens, width).
  template <class Device, class AtStream>
  void backward(const Device& device, Tokens tokens, const Matrix<T>& dlogits, const AtStream& at_stream) {
    dy_.resize(Index(tokens.size()), shape_.width);  // (tokens, width)
    dx_.resize(Index(tokens.size()), shape_.width);  // (tokens, width)
    if (logit_scale_ != 1) {
      dscaled_ = logit_scale_ * dlogits;  // (tokens, vocabulary)
      embedding_.head_backward(device, dscaled_, hidden(), dx_);
    } else {
      embedding_.head_backward(device, dlogits, hidden(), dx_);
    }
    if (has_final_norm_) {
      dx_.swap(dy_);
      final_norm_.backward(device, dy_, stream_.back(), dx_);
    }
    at_stream(std::as_const(stream_.back()), dx_);
    for (std::size_t i = attention_.size(); i-- > 0;) {
      dx_.swap(dy_);
      feed_forward_[i].backward(device, dy_, stream_[2 * i + 1], dx_);
      dx_.swap(dy_);
      attention_[i].backward(device, dy_, stream_[2 * i], dx_);
    }
    embedding_.backward(dx_, tokens);
  }

  template <class Device>
  void backward(const Device& device, Tokens tokens, const Matrix<T>& dlogits) {
    backward(device, tokens, dlogits, [](const Matrix<T>&, Matrix<T>&) {});
  }

  /// Moves what the tapered norms still do into the layers after them, and leaves the norms out: for inference. Each
  /// must be a fixed map by now, but for the last norm, which stays where it is not.
  void fold_norms() {
    for (std::size_t i = 0; i < attention_.size(); ++i) {
      attention_[i].fold_norm();
      feed_forward_[i].fold_norm();
    }
    if (is_fixed_map(final_norm_.norm())) {
      fold_into(final_norm_.norm(), embedding_.untie());
      has_final_norm_ = false;
    }
  }

  template <class F>
  void for_each_norm(F&& f) {
    for (std::size_t i = 0; i < attention_.size(); ++i) {
      f(attention_[i].norm());
      f(feed_forward_[i].norm());
    }
    f(final_norm_.norm());
  }

  template <class F>
  void for_each_parameter(F&& f) {
    embedding_.for_each_parameter(f);
    for (std::size_t i = 0; i < attention_.size(); ++i) {
      attention_[i].for_each_parameter(f);
      feed_forward_[i].for_each_parameter(f);
    }
    if (has_final_norm_) final_norm_.for_each_parameter(f);
  }

  std::vector<ek::ParameterRef<T>> parameters() {
    std::vector<ek::ParameterRef<T>> all;
    for_each_parameter([&](ek::ParameterRef<T> p) { all.push_back(p); });
    return all;
  }

  const LanguageModelShape& shape() const { return shape_; }
  double norm_seconds() const { return norm_stopwatch_.seconds(); }

 private:
  // As in Vaswani et al., Attention Is All You Need, 2017, section 3.4. ReZero's validation loss after 600 steps was
  // 1.86 with it and 2.00 without; pre-norm's after 240 steps 1.975 and 1.916 (default run, 2026-11-29).
  static T embedding_scale(const LanguageModelShape& shape) {
    return shape.placement == Placement::rezero ? std::sqrt(T(shape.width)) : T(1);
  }
  const Matrix<T>& hidden() const { return has_final_norm_ ? normalized_ : stream_.back(); }

  LanguageModelShape shape_;
  Stopwatch norm_stopwatch_;
  TiedEmbedding<T> embedding_;
  std::vector<Residual<T, TimedNorm<Norm>, CausalSelfAttention<T>>> attention_;
  std::vector<Residual<T, TimedNorm<Norm>, SwiGlu<T>>> feed_forward_;
  TimedNorm<Norm> final_norm_;
  bool has_final_norm_ = shape_.placement != Placement::post && shape_.placement != Placement::deepnorm;
  T logit_scale_ = 1;
  std::vector<Matrix<T>> stream_;  // what enters each sublayer, and what leaves the last
  Matrix<T> normalized_, logits_, dscaled_, dy_, dx_;
};

}  // namespace nn
