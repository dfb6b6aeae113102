#include "nn/attention.hpp"
#include "nn/cross_entropy.hpp"
#include "nn/embedding.hpp"
#include "nn/linear.hpp"
#include "nn/rotary.hpp"
#include "nn/swiglu.hpp"
#include "support/catch.hpp"
#include "support/data.hpp"
#include "support/devices.hpp"
#include "support/gradient_check.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

namespace {

namespace ek = evenkeel;
using nn::Index;
using Matrix = nn::Matrix<double>;

Matrix matrix(Index rows, Index columns, std::uint64_t seed) {
  const auto values = support::normal<double>(std::size_t(rows * columns), seed);
  return Eigen::Map<const Matrix>(values.data(), rows, columns);
}

std::vector<double> values_of(const Matrix& m) { return {m.data(), m.data() + m.size()}; }

template <class Module>
std::vector<ek::ParameterRef<double>> parameters_of(Module& module) {
  std::vector<ek::ParameterRef<double>> parameters;
  module.for_each_parameter([&](ek::ParameterRef<double> p) { parameters.push_back(p); });
  return parameters;
}

template <class Module>
void fill_parameters(Module& module, double spread) {
  std::uint64_t seed = 100;
  for (auto p : parameters_of(module)) {
    const auto values = support::normal<double>(std::size_t(p.size), ++seed, 0, spread);
    std::copy(values.begin(), values.end(), p.value);
  }
}

// The gradients of sum(y * cotangent) with respect to x and to each parameter, by backward and by differences.
template <class Module, class Device>
void check_gradients(const Device& device, Module& module, Index tokens, Index inputs, Index outputs) {
  fill_parameters(module, 0.5);
  const Matrix x = matrix(tokens, inputs, 1), cotangent = matrix(tokens, outputs, 2);
  const auto loss = [&](const Matrix& at) {
    Matrix y(tokens, outputs);
    module.forward(device, at, y);
    return y.cwiseProduct(cotangent).sum();
  };
  Matrix dx(tokens, inputs);
  loss(x);
  for (auto p : parameters_of(module)) std::fill_n(p.gradient, p.size, 1.0);  // backward must add to it
  module.backward(device, cotangent, x, dx);

  const auto by_difference = support::central_differences(
      [&](const std::vector<double>& at) { return loss(Eigen::Map<const Matrix>(at.data(), tokens, inputs)); },
      values_of(x));
  CHECK(support::gradient_distance(values_of(dx), by_difference) < support::gradient_tolerance);
  for (auto p : parameters_of(module)) {
    INFO("parameter " << p.name << " of " << p.size << " values");
    std::vector<double> gradient(p.gradient, p.gradient + p.size);
    for (double& g : gradient) g -= 1.0;
    const std::vector<double> at(p.value, p.value + p.size);
    const auto differences = support::central_differences(
        [&](const std::vector<double>& value) {
          std::copy(value.begin(), value.end(), p.value);
          return loss(x);
        },
        at);
    std::copy(at.begin(), at.end(), p.value);
    CHECK(support::gradient_distance(gradient, differences) < support::gradient_tolerance);
  }
}

}  // namespace

TEST_CASE("examples: linear layer, gradients", "[examples]") {
  support::for_each_device([](const auto& device) {
    nn::Linear<double> linear(5, 37, ek::Role::query);  // more outputs than one task's 32
    check_gradients(device, linear, 7, 5, 37);
  });
}

TEST_CASE("examples: linear layer over several blocks of tokens is one matrix product", "[examples]") {
  const Index tokens = 2 * nn::token_block + 3;
  nn::Linear<double> linear(6, 4, ek::Role::query);
  fill_parameters(linear, 1);
  const Matrix x = matrix(tokens, 6, 1);
  support::for_each_device([&](const auto& device) {
    Matrix y(tokens, 4);
    linear.forward(device, x, y);
    CHECK((y - x.lazyProduct(linear.weight().transpose())).cwiseAbs().maxCoeff() < 1e-13);  // six terms near 1
  });
}

TEST_CASE("examples: attention, gradients", "[examples]") {
  support::for_each_device([](const auto& device) {
    nn::CausalSelfAttention<double> attention(8, 2, 5);
    check_gradients(device, attention, 2 * 5, 8, 8);
  });
}

TEST_CASE("examples: attention looks at no later token and at no other sequence", "[examples]") {
  const Index context = 6;
  nn::CausalSelfAttention<double> attention(8, 2, context);
  fill_parameters(attention, 0.5);
  Matrix x = matrix(2 * context, 8, 1), before(2 * context, 8), after(2 * context, 8);
  attention.forward(ek::serial, x, before);
  const Index changed = 3;
  x.row(changed).array() += 1.0;
  attention.forward(ek::serial, x, after);
  for (Index i = 0; i < 2 * context; ++i) {
    INFO("token " << i);
    CHECK((before.row(i) == after.row(i)) == (i < changed || i >= context));
  }
}

TEST_CASE("examples: SwiGLU, gradients", "[examples]") {
  support::for_each_device([](const auto& device) {
    nn::SwiGlu<double> swiglu(6, 10);
    check_gradients(device, swiglu, 9, 6, 6);
  });
}

TEST_CASE("examples: tied embedding adds both gradients to one table", "[examples]") {
  const std::vector<std::uint8_t> tokens{3, 0, 3, 6};
  nn::TiedEmbedding<double> embedding(7, 4, 1.5);
  fill_parameters(embedding, 1);
  const auto table = parameters_of(embedding).front();
  const Matrix cotangent = matrix(4, 7, 2);
  Matrix hidden(4, 4), logits(4, 7), dhidden(4, 4);
  const auto loss = [&](const std::vector<double>& values) {
    std::copy(values.begin(), values.end(), table.value);
    embedding.forward(ek::serial, tokens, hidden);
    embedding.head_forward(ek::serial, hidden, logits);
    return logits.cwiseProduct(cotangent).sum();
  };
  const std::vector<double> at(table.value, table.value + table.size);
  const auto differences = support::central_differences(loss, at);
  loss(at);
  embedding.head_backward(ek::serial, cotangent, hidden, dhidden);
  embedding.backward(dhidden, tokens);
  const std::vector<double> gradient(table.gradient, table.gradient + table.size);
  CHECK(support::gradient_distance(gradient, differences) < support::gradient_tolerance);
}

TEST_CASE("examples: rotary positions see distances only, and turn back", "[examples]") {
  const Index context = 9, width = 6;
  const nn::RotaryPositions<double> rotary(context, width);
  Matrix q = matrix(1, width, 1).replicate(context, 1), k = matrix(1, width, 2).replicate(context, 1);
  const Matrix unturned = q;
  rotary.rotate(q);
  rotary.rotate(k);
  CHECK(q.row(0) == unturned.row(0));
  for (Index distance = 0; distance < context; ++distance) {
    for (Index p = 1; p + distance < context; ++p) {
      CHECK(q.row(p + distance).dot(k.row(p)) == Approx(q.row(distance).dot(k.row(0))).epsilon(1e-12));
    }
  }
  CHECK(q.row(5).dot(k.row(0)) != Approx(q.row(0).dot(k.row(0))));
  rotary.rotate_back(q);
  CHECK((q - unturned).cwiseAbs().maxCoeff() < 1e-14);
}

TEST_CASE("examples: cross entropy, value and gradient", "[examples]") {
  const std::vector<std::uint8_t> targets{2, 0, 4};
  const Matrix logits = 3 * matrix(3, 5, 1);
  double expected = 0;
  for (Index i = 0; i < 3; ++i) {
    expected -= logits(i, targets[std::size_t(i)]) - std::log(logits.row(i).array().exp().sum());
  }
  Matrix dlogits;
  CHECK(nn::softmax_cross_entropy(ek::serial, logits, targets, dlogits) == Approx(expected / 3).epsilon(1e-12));

  Matrix unused;
  const auto differences = support::central_differences(
      [&](const std::vector<double>& at) {
        const Matrix moved = Eigen::Map<const Matrix>(at.data(), 3, 5);
        return nn::softmax_cross_entropy(ek::serial, moved, targets, unused);
      },
      values_of(logits));
  CHECK(support::gradient_distance(values_of(dlogits), differences) < support::gradient_tolerance);

  Matrix in_place = logits;
  nn::softmax_cross_entropy(ek::serial, in_place, targets, in_place);
  CHECK(in_place == dlogits);

  const Matrix far = Matrix::Constant(3, 5, 1e4);  // exp(1e4) is infinite
  CHECK(nn::softmax_cross_entropy(ek::serial, far, targets, unused) == Approx(std::log(5.0)));
}
