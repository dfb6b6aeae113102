#pragma once

#include "nn/embedding.hpp"
#include "nn/parallel.hpp"

#include <cmath>
#include <vector>

namespace nn {

/// Of each token -log softmax(logits)[target], in nats; one byte is one token, so nats per byte. Writes the gradient of
/// their mean into dlogits, which may be logits itself. Both are (tokens, vocabulary).
template <class T, class Device>
std::vector<double> token_losses(const Device& device, const Matrix<T>& logits, Tokens targets, Matrix<T>& dlogits) {
  dlogits.resize(logits.rows(), logits.cols());
  std::vector<double> losses(std::size_t(logits.rows()));
  for_each_token_block(device, logits.rows(), [&](Index begin, Index count) {
    for (Index i = begin; i < begin + count; ++i) {
      const Index target = targets[std::size_t(i)];
      const T largest = logits.row(i).maxCoeff();
      const T target_logit = logits(i, target) - largest;
      auto row = dlogits.row(i).array();
      row = (logits.row(i).array() - largest).exp();
      const T sum = row.sum();
      losses[std::size_t(i)] = std::log(double(sum)) - double(target_logit);
      row *= T(1) / (sum * T(logits.rows()));
      row(target) -= T(1) / T(logits.rows());
    }
  });
  return losses;
}

/// The mean of token_losses.
template <class T, class Device>
double softmax_cross_entropy(const Device& device, const Matrix<T>& logits, Tokens targets, Matrix<T>& dlogits) {
  double loss = 0;
  for (const double l : token_losses(device, logits, targets, dlogits)) loss += l;
  return loss / double(logits.rows());
}

}  // namespace nn
