#include "nn/image_classifier.hpp"

#include "nn/convolution.hpp"
#include "nn/cross_entropy.hpp"
#include "nn/sgd.hpp"
#include "support/catch.hpp"
#include "support/data.hpp"
#include "support/devices.hpp"
#include "support/tolerance.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace {

namespace ek = evenkeel;
using nn::ImageNorm;
using nn::Index;
using Recipe = ek::ResidualNetRecipe;

struct Kind {
  Recipe recipe;
  ImageNorm norm;
};
const Kind kinds[] = {{Recipe::standard, ImageNorm::batch},    {Recipe::standard, ImageNorm::group},
                      {Recipe::standard, ImageNorm::instance}, {Recipe::standard, ImageNorm::dyt},
                      {Recipe::standard, ImageNorm::weight},   {Recipe::standard, ImageNorm::none},
                      {Recipe::depth_scale, ImageNorm::group}, {Recipe::layer_scale, ImageNorm::batch},
                      {Recipe::skip_init, ImageNorm::none},    {Recipe::fixup, ImageNorm::none},
                      {Recipe::nfnet, ImageNorm::scaled_ws}};

nn::ImageClassifierShape small(const Kind& kind) {
  return {.height = 8,
          .width = 8,
          .classes = 3,
          .channels = {4, 8, 12},
          .depth = 10,
          .norm = kind.norm,
          .recipe = kind.recipe};
}

std::vector<float> floats(std::size_t count, std::uint64_t seed, double spread = 1) {
  const auto values = support::normal<float>(count, seed, 0, spread);
  return {values.begin(), values.end()};
}

nn::Matrix<float> random_images(Index count, std::uint64_t seed) {
  const auto values = floats(std::size_t(count * 64), seed);
  return Eigen::Map<const nn::Matrix<float>>(values.data(), count, 64);
}

std::vector<std::uint8_t> random_labels(Index count, std::uint64_t seed) {
  support::Random random(seed);
  std::vector<std::uint8_t> labels(static_cast<std::size_t>(count));
  for (auto& label : labels) label = std::uint8_t(random.uniform() * 3);
  return labels;
}

std::vector<ek::ParameterRef<float>> parameters_of(nn::ImageClassifier& network) {
  std::vector<ek::ParameterRef<float>> all;
  network.for_each_parameter([&](ek::ParameterRef<float> p) { all.push_back(p); });
  return all;
}

// Away from ones and zeros, where gradients vanish or agree by chance.
void add_noise(nn::ImageClassifier& network) {
  std::uint64_t seed = 1000;
  for (auto p : parameters_of(network)) {
    const auto noise = floats(std::size_t(p.size), ++seed, 0.1);
    for (Index i = 0; i < p.size; ++i) p.value[i] += noise[std::size_t(i)];
  }
}

double norm(const std::vector<double>& values) {
  double squares = 0;
  for (const double v : values) squares += v * v;
  return std::sqrt(squares);
}

// How far the derivative of the loss along a unit direction, by central differences, lies from the one that the gradient
// gives, at the step that serves best: the loss is rounded to 1e-7, which small steps magnify, and on the way of long
// ones units pass the corners of their ReLUs. Ends at a step that is within the tolerance.
template <class Loss>
double distance_along(const Loss& loss, ek::ParameterRef<float> p, const std::vector<double>& gradient,
                      std::vector<double> direction, double tolerance) {
  const double length = norm(direction);
  const std::vector<float> at(p.value, p.value + p.size);
  double expected = 0, nearest = INFINITY;
  for (std::size_t i = 0; i < at.size(); ++i) expected += gradient[i] * (direction[i] /= length);
  const auto loss_at = [&](double distance) {
    for (std::size_t i = 0; i < at.size(); ++i) p.value[i] = float(double(at[i]) + distance * direction[i]);
    return loss();
  };
  for (const double step : {1e-2, 3e-3, 1e-3, 3e-4, 1e-4}) {
    nearest = std::min(nearest, std::abs((loss_at(step) - loss_at(-step)) / (2 * step) - expected));
    if (nearest < tolerance) break;
  }
  std::copy(at.begin(), at.end(), p.value);
  return nearest;
}

void naive_convolution(const nn::ConvolutionShape& s, const nn::Matrix<float>& w, const std::vector<float>& x,
                       Index images, std::vector<double>& y) {
  const Index pad = s.kernel / 2;
  y.assign(std::size_t(images * s.outputs * s.out_height() * s.out_width()), 0);
  std::size_t place = 0;
  for (Index n = 0; n < images; ++n)
    for (Index o = 0; o < s.outputs; ++o)
      for (Index i = 0; i < s.out_height(); ++i)
        for (Index j = 0; j < s.out_width(); ++j, ++place)
          for (Index c = 0; c < s.inputs; ++c)
            for (Index a = 0; a < s.kernel; ++a)
              for (Index b = 0; b < s.kernel; ++b) {
                const Index row = i * s.stride + a - pad, column = j * s.stride + b - pad;
                if (row < 0 || row >= s.height || column < 0 || column >= s.width) continue;
                y[place] += double(w(o, c * s.taps() + a * s.kernel + b)) *
                            double(x[std::size_t(((n * s.inputs + c) * s.height + row) * s.width + column)]);
              }
}

double dot(const std::vector<double>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * double(b[i]);
  return sum;
}

}  // namespace

TEST_CASE("examples: convolution equals its sums, and its gradients are the transposed ones", "[examples]") {
  const support::ThreadPool pool(2);
  const nn::ConvolutionShape shapes[] = {
      {3, 4, 7, 7}, {2, 5, 9, 16, 3, 2}, {4, 3, 8, 5, 1, 2}, {1, 6, 28, 28}, {2, 2, 1, 1}};
  for (const nn::ConvolutionShape& s : shapes) {
    for (const Index images : {Index(1), Index(35)}) {  // 35 images of 7x7 are three blocks
      INFO(s.inputs << " to " << s.outputs << ", " << s.height << "x" << s.width << ", kernel " << s.kernel
                    << ", stride " << s.stride << ", " << images << " images");
      const Index in = s.height * s.width, out = s.out_height() * s.out_width();
      const auto weights = floats(std::size_t(s.outputs * s.inputs * s.taps()), 1);
      const nn::Matrix<float> w = Eigen::Map<const nn::Matrix<float>>(weights.data(), s.outputs, s.inputs * s.taps());
      std::vector<float> x = floats(std::size_t(images * s.inputs * in), 2);
      std::vector<float> dy = floats(std::size_t(images * s.outputs * out), 3), y(dy.size()), dx(x.size());
      nn::Convolution convolution(s, nn::WeightKind::plain, w, true);
      const nn::Planes xs(x.data(), images, s.inputs, in), dys(dy.data(), images, s.outputs, out);
      std::vector<ek::ParameterRef<float>> p;
      convolution.for_each_parameter([&](ek::ParameterRef<float> parameter, Index units) {
        CHECK(units == (p.empty() && s.inputs * s.taps() > 1 ? s.outputs : 1));
        p.push_back(parameter);
      });
      REQUIRE(p.size() == 2);
      p[1].value[1] = 0.5f;
      std::fill_n(p[0].gradient, p[0].size, 1.0f);  // backward must add to it
      convolution.forward(pool.device(), xs, nn::Planes(y.data(), images, s.outputs, out));
      convolution.backward(pool.device(), dys, xs, nn::Planes(dx.data(), images, s.inputs, in));

      std::vector<double> expected;
      naive_convolution(s, w, x, images, expected);
      const auto terms = std::size_t(s.inputs * s.taps());
      double worst = 0, bias_gradient = 0;
      for (std::size_t i = 0; i < y.size(); ++i) {
        const bool second = Index(i) / out % s.outputs == 1;
        worst = std::max(worst, std::abs(expected[i] + (second ? 0.5 : 0) - double(y[i])));
        if (second) bias_gradient += double(dy[i]);
      }
      CHECK(worst < support::tolerance(terms, 4 * std::sqrt(double(terms)), 1.2e-7));
      CHECK(p[1].gradient[1] == Approx(bias_gradient).margin(1e-3));

      // The sums are linear in x and in w: their gradients give every product with dy.
      std::vector<float> other = floats(x.size(), 4);
      naive_convolution(s, w, other, images, expected);
      const double size = std::sqrt(double(dy.size() * terms));
      double along = 0;
      for (std::size_t i = 0; i < x.size(); ++i) along += double(dx[i]) * double(other[i]);
      CHECK(along == Approx(dot(expected, dy)).margin(1e-5 * size));
      const auto direction = floats(weights.size(), 5);
      naive_convolution(s, Eigen::Map<const nn::Matrix<float>>(direction.data(), w.rows(), w.cols()), x, images,
                        expected);
      along = 0;
      for (std::size_t i = 0; i < direction.size(); ++i)
        along += (double(p[0].gradient[Index(i)]) - 1) * double(direction[i]);
      CHECK(along == Approx(dot(expected, dy)).margin(1e-5 * size));
    }
  }
}

TEST_CASE("examples: the image classifier's gradients", "[examples]") {
  const support::ThreadPool pool(2);
  const Index images = 6;
  const nn::Matrix<float> x = random_images(images, 1);
  const auto labels = random_labels(images, 2);
  nn::Matrix<float> dlogits, unused;
  for (const Kind& kind : kinds) {
    nn::ImageClassifier network(small(kind), 1);
    add_noise(network);
    const auto loss = [&] {
      return nn::softmax_cross_entropy(pool.device(), network.forward(pool.device(), x, true), labels, unused);
    };
    nn::softmax_cross_entropy(pool.device(), network.forward(pool.device(), x, true), labels, dlogits);
    network.backward(pool.device(), dlogits);
    std::size_t number = 0;
    for (auto p : parameters_of(network)) {
      INFO("recipe " << int(kind.recipe) << ", norm " << int(kind.norm) << ", parameter " << number << ", " << p.name
                     << ", " << p.size << " values");
      const std::vector<double> gradient(p.gradient, p.gradient + p.size);
      const double size = norm(gradient), rounding = 3e-5;
      REQUIRE(size > 1e-6);
      const double along = 0.005 * size + rounding;
      CHECK(distance_along(loss, p, gradient, gradient, along) < along);
      // A unit direction drawn at random sees about 1/sqrt(size) of the gradient.
      const double across = 0.02 * size / std::sqrt(double(p.size)) + rounding;
      for (std::uint64_t draw = 0; draw < 2; ++draw) {
        const auto direction = support::normal<double>(gradient.size(), 10 * number + draw);
        CHECK(distance_along(loss, p, gradient, direction, across) < across);
      }
      ++number;
    }
  }
}

TEST_CASE("examples: the image classifier does not depend on the number of threads", "[examples]") {
  const Index images = 30;  // three blocks of twelve
  const nn::Matrix<float> x = random_images(images, 1);
  const auto labels = random_labels(images, 2);
  for (const Kind& kind : kinds) {
    INFO("recipe " << int(kind.recipe) << ", norm " << int(kind.norm));
    std::vector<float> expected;
    for (const int threads : {1, 2, 3}) {
      const support::ThreadPool pool(threads);
      nn::ImageClassifier network(small(kind), 1);
      nn::Sgd<float> sgd(parameters_of(network));
      nn::Matrix<float> dlogits;
      for (int step = 0; step < 3; ++step) {
        nn::softmax_cross_entropy(pool.device(), network.forward(pool.device(), x, true), labels, dlogits);
        network.zero_gradient();
        network.backward(pool.device(), dlogits);
        network.clip_gradient(pool.device(), 0.1);
        sgd.step(pool.device(), 0.05);
      }
      std::vector<float> trained;
      for (auto p : parameters_of(network)) trained.insert(trained.end(), p.value, p.value + p.size);
      const nn::Matrix<float> logits = network.forward(pool.device(), x, false);
      trained.insert(trained.end(), logits.data(), logits.data() + logits.size());
      if (threads == 1)
        expected = trained;
      else
        CHECK(trained == expected);
    }
  }
}

TEST_CASE("examples: recipes start the image classifier as they say", "[examples]") {
  const support::ThreadPool pool(2);
  const nn::Matrix<float> x = random_images(12, 1);
  const auto spread_of_logits = [&](Recipe recipe, ImageNorm norm, Index depth) {
    auto shape = small({recipe, norm});
    shape.depth = depth;
    nn::ImageClassifier network(shape, 1);
    return double(network.forward(pool.device(), x, true).cwiseAbs().maxCoeff());
  };
  CHECK(spread_of_logits(Recipe::fixup, ImageNorm::none, 50) == 0);  // its classifier starts at 0
  const double shallow = spread_of_logits(Recipe::standard, ImageNorm::none, 8);
  CHECK(spread_of_logits(Recipe::standard, ImageNorm::none, 50) > 10 * shallow);  // each block adds to the variance
  CHECK(spread_of_logits(Recipe::skip_init, ImageNorm::none, 50) < 2 * shallow);  // branches start at 0
  CHECK(spread_of_logits(Recipe::nfnet, ImageNorm::scaled_ws, 50) < 1);
  CHECK(spread_of_logits(Recipe::standard, ImageNorm::batch, 50) < 20);

  CHECK_THROWS_AS(nn::ImageClassifier({.depth = 9}, 1), ek::ShapeError);
  CHECK_THROWS_AS(nn::ImageClassifier({.depth = 6}, 1), ek::ShapeError);
  CHECK_THROWS_AS(nn::ImageClassifier({.norm = ImageNorm::batch, .recipe = Recipe::fixup}, 1), ek::ShapeError);
}

TEST_CASE("examples: SGD takes the steps computed by hand", "[examples]") {
  ek::Parameter<double> weight("weight", 2), bias("bias", 2, false), scale("scale", 1, false);
  for (auto* p : {&weight, &bias, &scale}) p->fill(1.0);
  nn::Sgd<double> sgd({weight.ref(), bias.ref(), scale.ref()}, {.momentum = 0.9, .weight_decay = 0.1});
  const auto set = [&](double gradient) {
    for (auto* p : {&weight, &bias, &scale}) std::fill_n(p->gradient(), p->size(), gradient);
  };
  // weight: g = 0.5 + 0.1, v = 0.6, step 0.1 * (0.6 + 0.54); bias: g = v = 0.5, step 0.1 * 0.95; scale: a tenth of it
  set(0.5);
  sgd.step(ek::serial, 0.1);
  CHECK(weight.value()[1] == Approx(1 - 0.114));
  CHECK(bias.value()[1] == Approx(1 - 0.095));
  CHECK(*scale.value() == Approx(1 - 0.0095));
  // bias: g = -1, v = 0.45 - 1 = -0.55, step 0.1 * (-1 - 0.495)
  set(-1.0);
  sgd.step(ek::serial, 0.1);
  CHECK(bias.value()[0] == Approx(1 - 0.095 + 0.1495));
  CHECK(*scale.value() == Approx(1 - 0.0095 + 0.01495));
}
