#pragma once

#include "nn/linear.hpp"
#include "nn/rotary.hpp"

#include <cmath>
#include <cstdint>
#include <string>

namespace nn {

/// Causal self-attention of several heads with rotary positions: a token looks at itself and at those before it in its
/// sequence of `context` tokens. x and y are (batch * context, width); width = heads * head_width, head_width even.
///
/// After start_decoding(sequences) each forward takes the next tokens of all sequences, the same number of each, and
/// keeps their keys and values for those that follow. No backward then.
template <class T>
class CausalSelfAttention {
 public:
  CausalSelfAttention(Index width, Index heads, Index context)
      : width_(width),
        heads_(heads),
        context_(context),
        head_width_(width / heads),
        scale_(T(1) / std::sqrt(T(head_width_))),
        rotary_(context, head_width_),
        in_(width, 3 * width, ek::Role::query),
        out_(width, width, ek::Role::attention_output) {}

  void start_decoding(Index sequences) {
    sequences_ = sequences;
    position_ = 0;
    keys_.resize(sequences * heads_ * context_, head_width_);    // (sequences * heads * context, head_width)
    values_.resize(sequences * heads_ * context_, head_width_);  // (sequences * heads * context, head_width)
  }
  void stop_decoding() { sequences_ = 0; }

  template <class Device>
  void forward(const Device& device, const Input<T>& x, Output<T> y) {
    if (sequences_ > 0) return decode(device, x, y);
    const Index heads = x.rows() / context_ * heads_;
    qkv_.resize(x.rows(), 3 * width_);                  // (tokens, 3 * width): queries, keys, values
    attended_.resize(x.rows(), width_);                 // (tokens, width)
    probabilities_.resize(heads * context_, context_);  // (batch * heads * context, context)
    in_.forward(device, x, qkv_);
    for_each_block(device, heads, [&](Index head) {
      auto q = part(qkv_, head, 0), k = part(qkv_, head, 1), v = part(qkv_, head, 2);  // (context, head_width)
      auto p = probabilities_.middleRows(head * context_, context_);                   // (context, context)
      rotary_.rotate(q);
      rotary_.rotate(k);
      p.noalias() = q * k.transpose();
      causal_softmax(p);
      part(attended_, head, 0).noalias() = p * v;
    });
    out_.forward(device, attended_, y);
  }

  template <class Device>
  void backward(const Device& device, const Input<T>& dy, const Input<T>& x, Output<T> dx) {
    dqkv_.resize(x.rows(), 3 * width_);   // (tokens, 3 * width)
    dattended_.resize(x.rows(), width_);  // (tokens, width)
    out_.backward(device, dy, attended_, dattended_);
    for_each_block(device, x.rows() / context_ * heads_, [&](Index head) {
      const auto q = part(qkv_, head, 0), k = part(qkv_, head, 1), v = part(qkv_, head, 2);
      auto dq = part(dqkv_, head, 0), dk = part(dqkv_, head, 1), dv = part(dqkv_, head, 2);
      const auto dattended = part(dattended_, head, 0);                     // (context, head_width)
      const auto p = probabilities_.middleRows(head * context_, context_);  // (context, context)
      dv.noalias() = p.transpose() * dattended;
      Matrix<T> dscores = dattended * v.transpose();  // (context, context)
      causal_softmax_backward(p, dscores);
      dq.noalias() = dscores * k;
      dk.noalias() = dscores.transpose() * q;
      rotary_.rotate_back(dq);
      rotary_.rotate_back(dk);
    });
    in_.backward(device, dqkv_, x, dx);
  }

  template <class F>
  void for_each_parameter(F&& f) {
    in_.for_each_parameter(f);
    out_.for_each_parameter(f);
  }

  void initialize(const ek::Plan& plan, std::uint64_t seed, const std::string& name) {
    scale_ = T(plan.attention_scale());
    in_.initialize(plan, ek::RandomStream(seed, name + ".in.weight"),
                   {ek::Role::query, ek::Role::key, ek::Role::value});
    out_.initialize(plan, ek::RandomStream(seed, name + ".out.weight"));
  }

  Linear<T>& projection() { return in_; }  // of queries, keys and values at once, the first layer that reads x

 private:
  template <class Device>
  void decode(const Device& device, const Input<T>& x, Output<T> y) {
    const Index count = x.rows() / sequences_, seen = position_ + count;
    qkv_.resize(x.rows(), 3 * width_);   // (sequences * count, 3 * width)
    attended_.resize(x.rows(), width_);  // (sequences * count, width)
    probabilities_.resize(sequences_ * heads_ * count, context_);
    in_.forward(device, x, qkv_);
    for_each_block(device, sequences_ * heads_, [&](Index head) {
      auto q = part(qkv_, head, 0, count), k = part(qkv_, head, 1, count);  // (count, head_width)
      rotary_.rotate(q, position_);
      rotary_.rotate(k, position_);
      auto keys = keys_.middleRows(head * context_, seen), values = values_.middleRows(head * context_, seen);
      keys.bottomRows(count) = k;
      values.bottomRows(count) = part(qkv_, head, 2, count);
      auto p = probabilities_.block(head * count, 0, count, seen);  // (count, seen)
      auto attended = part(attended_, head, 0, count);              // (count, head_width)
      if (count == 1) {
        p.row(0).noalias() = q.row(0) * keys.transpose();
        causal_softmax(p, position_);
        attended.row(0).noalias() = p.row(0) * values;
      } else {
        p.noalias() = q * keys.transpose();
        causal_softmax(p, position_);
        attended.noalias() = p * values;
      }
    });
    position_ = seen;
    out_.forward(device, attended_, y);
  }

  // The columns of one head in the rows of its sequence; head counts through all sequences.
  auto part(Matrix<T>& m, Index head, Index which, Index tokens) const {
    return m.block(head / heads_ * tokens, which * width_ + head % heads_ * head_width_, tokens, head_width_);
  }
  auto part(Matrix<T>& m, Index head, Index which) const { return part(m, head, which, context_); }

  // Scores in, probabilities out; zeros where a key comes after its query. The first query comes after `before` keys.
  void causal_softmax(Output<T> p, Index before = 0) const {
    for (Index i = 0; i < p.rows(); ++i) {
      const Index seen = before + i + 1;
      auto row = p.row(i).head(seen).array();
      row = (scale_ * (row - row.maxCoeff())).exp();
      row *= T(1) / row.sum();
      p.row(i).tail(p.cols() - seen).setZero();
    }
  }

  // The zeros of p mask the gradient as well.
  void causal_softmax_backward(const Input<T>& p, Output<T> dscores) const {
    for (Index i = 0; i < context_; ++i) {
      const T mean = p.row(i).dot(dscores.row(i));
      dscores.row(i).array() = scale_ * p.row(i).array() * (dscores.row(i).array() - mean);
    }
  }

  Index width_, heads_, context_, head_width_;
  T scale_;
  RotaryPositions<T> rotary_;
  Linear<T> in_, out_;
  Matrix<T> qkv_, attended_, probabilities_, dqkv_, dattended_;
  Index sequences_ = 0, position_ = 0;  // while decoding
  Matrix<T> keys_, values_;
};

}  // namespace nn
