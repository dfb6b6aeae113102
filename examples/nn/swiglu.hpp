#pragma once

#include "nn/linear.hpp"

#include <cstdint>
#include <string>

namespace nn {

/// y = W_down (silu(W_gate x) * (W_up x)), silu(g) = g / (1 + exp(-g)).
/// Shazeer, GLU Variants Improve Transformer, 2020, equation 6.
template <class T>
class SwiGlu {
 public:
  SwiGlu(Index width, Index hidden)
      : hidden_(hidden), in_(width, 2 * hidden, ek::Role::ffn_up), out_(hidden, width, ek::Role::ffn_down) {}

  template <class Device>
  void forward(const Device& device, const Input<T>& x, Output<T> y) {
    gate_up_.resize(x.rows(), 2 * hidden_);  // (tokens, 2 * hidden): gate, up
    product_.resize(x.rows(), hidden_);      // (tokens, hidden)
    in_.forward(device, x, gate_up_);
    for_each_token_block(device, x.rows(), [&](Index begin, Index count) {
      const auto gate = gate_up_.block(begin, 0, count, hidden_).array();
      const auto up = gate_up_.block(begin, hidden_, count, hidden_).array();
      product_.middleRows(begin, count).array() = gate * gate.logistic() * up;
    });
    out_.forward(device, product_, y);
  }

  template <class Device>
  void backward(const Device& device, const Input<T>& dy, const Input<T>& x, Output<T> dx) {
    dgate_up_.resize(x.rows(), 2 * hidden_);  // (tokens, 2 * hidden)
    dproduct_.resize(x.rows(), hidden_);      // (tokens, hidden)
    out_.backward(device, dy, product_, dproduct_);
    for_each_token_block(device, x.rows(), [&](Index begin, Index count) {
      const auto gate = gate_up_.block(begin, 0, count, hidden_).array();
      const auto up = gate_up_.block(begin, hidden_, count, hidden_).array();
      const auto dproduct = dproduct_.middleRows(begin, count).array();
      // The gate's gradient is not needed before its end, so its place holds the logistic function meanwhile.
      auto dgate = dgate_up_.block(begin, 0, count, hidden_).array();
      auto dup = dgate_up_.block(begin, hidden_, count, hidden_).array();
      dgate = gate.logistic();
      dup = dproduct * gate * dgate;
      dgate = dproduct * up * dgate * (T(1) + gate * (T(1) - dgate));
    });
    in_.backward(device, dgate_up_, x, dx);
  }

  template <class F>
  void for_each_parameter(F&& f) {
    in_.for_each_parameter(f);
    out_.for_each_parameter(f);
  }

  void initialize(const ek::Plan& plan, std::uint64_t seed, const std::string& name) {
    in_.initialize(plan, ek::RandomStream(seed, name + ".in.weight"), {ek::Role::ffn_gate, ek::Role::ffn_up});
    out_.initialize(plan, ek::RandomStream(seed, name + ".out.weight"));
  }

  Linear<T>& projection() { return in_; }  // of gate and up at once, the first layer that reads x

 private:
  Index hidden_;
  Linear<T> in_, out_;
  Matrix<T> gate_up_, product_, dgate_up_, dproduct_;
};

}  // namespace nn
