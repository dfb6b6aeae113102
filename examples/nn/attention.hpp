#pragma once

#include "nn/linear.hpp"
#include "nn/rotary.hpp"

#include <cmath>
#include <cstdint>
#include <string>

namespace nn {

/// Causal self-attention of several heads with rotary positions: a token looks at itself and at those before it in its
/// sequence of `context` tokens. x and y are (batch * context, width); width = heads * head_width, head_width even.
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
        in_(width, 3 * width),
        out_(width, width) {}

  template <class Device>
  void forward(const Device& device, const Input<T>& x, Output<T> y) {
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

  void initialize(std::uint64_t seed, const std::string& name, Index layers) {
    in_.initialize(ek::RandomStream(seed, name + ".in.weight"));
    out_.initialize_residual(layers, ek::RandomStream(seed, name + ".out.weight"));
  }

 private:
  // The columns of one head in the rows of its sequence; head counts through all sequences.
  auto part(Matrix<T>& m, Index head, Index which) const {
    return m.block(head / heads_ * context_, which * width_ + head % heads_ * head_width_, context_, head_width_);
  }

  // Scores in, probabilities out; zeros where a key comes after its query.
  void causal_softmax(Output<T> p) const {
    for (Index i = 0; i < context_; ++i) {
      auto row = p.row(i).head(i + 1).array();
      row = (scale_ * (row - row.maxCoeff())).exp();
      row *= T(1) / row.sum();
      p.row(i).tail(context_ - i - 1).setZero();
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
};

}  // namespace nn
