#pragma once

#include "evenkeel/init/fans.hpp"
#include "evenkeel/init/plan.hpp"
#include "evenkeel/init/random.hpp"
#include "evenkeel/init/role.hpp"
#include "evenkeel/parameter.hpp"
#include "nn/matrix.hpp"
#include "nn/parallel.hpp"

#include <cstdint>
#include <initializer_list>

namespace nn {

/// y = x W^T, W (outputs, inputs) as in torch. A bias, for inference alone, comes with the first call of bias().
template <class T>
class Linear {
 public:
  /// The role, which is the weight's name, says how it starts and learns.
  Linear(Index inputs, Index outputs, ek::Role role)
      : inputs_(inputs), outputs_(outputs), role_(role), weight_(ek::role_name(role), inputs * outputs) {}

  template <class Device>
  void forward(const Device& device, const Input<T>& x, Output<T> y) {
    for_each_token_block(device, x.rows(), [&](Index begin, Index count) {
      auto out = y.middleRows(begin, count);
      if (count <= 8)  // a product of matrices would pack all weights for so few rows
        for (Index i = 0; i < count; ++i) out.row(i).noalias() = x.row(begin + i) * weight().transpose();
      else
        out.noalias() = x.middleRows(begin, count) * weight().transpose();
      if (bias_.size() > 0) out.rowwise() += bias_;
    });
  }

  template <class Device>
  void backward(const Device& device, const Input<T>& dy, const Input<T>& x, Output<T> dx) {
    for_each_token_block(device, x.rows(), [&](Index begin, Index count) {
      dx.middleRows(begin, count).noalias() = dy.middleRows(begin, count) * weight();
    });
    accumulate_gradient(device, dy, x);
  }

  /// Each block of the gradient's rows belongs to one task and sums over all tokens, so no partial sums meet in an
  /// order that depends on the threads. 32 rows keep several threads busy at 90% of the speed of one large product.
  template <class Device>
  void accumulate_gradient(const Device& device, const Input<T>& dy, const Input<T>& x) {
    for_each_range(device, outputs_, 32, [&](Index begin, Index count) {
      gradient().middleRows(begin, count).noalias() += dy.middleCols(begin, count).transpose() * x;
    });
  }

  template <class F>
  void for_each_parameter(F&& f) {
    f(weight_.ref());
  }

  void initialize(const ek::Plan& plan, const ek::RandomStream& stream) {
    plan.initialize(role_, weight_.value(), weight_.size(), ek::fans_of_linear(inputs_, outputs_), stream);
  }

  /// Matrices of one size below each other, each with a role of its own, and its own fans.
  void initialize(const ek::Plan& plan, const ek::RandomStream& stream, std::initializer_list<ek::Role> roles) {
    const Index outputs = outputs_ / Index(roles.size()), size = outputs * inputs_;
    Index begin = 0;
    for (const ek::Role role : roles) {
      plan.initialize(role, weight_.value() + begin, size, ek::fans_of_linear(inputs_, outputs),
                      stream.from(std::uint64_t(begin)));
      begin += size;
    }
  }

  Eigen::Map<Matrix<T>> weight() { return {weight_.value(), outputs_, inputs_}; }
  Eigen::Map<Matrix<T>> gradient() { return {weight_.gradient(), outputs_, inputs_}; }
  Eigen::Matrix<T, 1, Eigen::Dynamic>& bias() {
    if (bias_.size() == 0) bias_.setZero(outputs_);
    return bias_;  // (outputs)
  }
  Index inputs() const { return inputs_; }
  Index outputs() const { return outputs_; }

 private:
  Index inputs_, outputs_;
  ek::Role role_;
  ek::Parameter<T> weight_;
  Eigen::Matrix<T, 1, Eigen::Dynamic> bias_;  // (outputs), or empty
};

}  // namespace nn
