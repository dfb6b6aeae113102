#pragma once

#include "evenkeel/init/random.hpp"
#include "nn/matrix.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace nn {

/// Where Debian's package dataset-fashion-mnist puts its files.
inline const std::string fashion_mnist_folder = "/usr/share/datasets/fashion-mnist";

/// Images of 28x28 grey values, ten classes.
struct LabelledImages {
  std::vector<std::uint8_t> pixels;  // (count, 784)
  std::vector<std::uint8_t> labels;  // (count)

  static constexpr Index height = 28, width = 28, positions = height * width;
  Index count() const { return Index(labels.size()); }
  void keep(Index first) {
    if (first >= count()) return;
    labels.resize(std::size_t(first));
    pixels.resize(std::size_t(first * positions));
  }
};

/// A gzipped file in the IDX format of the MNIST digits: 0, 0, type 8 (bytes), rank; extents of 4 bytes, the highest
/// first; the bytes. Throws std::runtime_error, with the path, where it is not one of `shape` (the first extent is free).
inline std::vector<std::uint8_t> read_idx(const std::string& path, const std::vector<Index>& shape) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) throw std::runtime_error(path + ": cannot be opened");
  const auto read = [&](std::size_t count) {
    std::vector<std::uint8_t> bytes(count);
    if (gzread(file.get(), bytes.data(), unsigned(count)) != int(count))
      throw std::runtime_error(path + ": ends too early, or is damaged");
    return bytes;
  };
  const auto magic = read(4);
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != 8 || magic[3] != shape.size())
    throw std::runtime_error(path + ": is not an IDX file of bytes with " + std::to_string(shape.size()) + " axes");
  std::size_t size = 1;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    const auto b = read(4);
    const std::size_t extent =
        std::size_t{b[0]} << 24 | std::size_t{b[1]} << 16 | std::size_t{b[2]} << 8 | std::size_t{b[3]};
    if (axis > 0 && extent != std::size_t(shape[axis]))
      throw std::runtime_error(path + ": axis " + std::to_string(axis) + " has " + std::to_string(extent) +
                               " entries, expected " + std::to_string(shape[axis]));
    size *= extent;
    if (size > 1u << 30) throw std::runtime_error(path + ": is too large");
  }
  return read(size);
}

/// The training images (`part` "train") or the test images ("t10k").
inline LabelledImages read_fashion_mnist(const std::string& folder, const std::string& part) {
  LabelledImages images;
  images.pixels =
      read_idx(folder + "/" + part + "-images-idx3-ubyte.gz", {0, LabelledImages::height, LabelledImages::width});
  images.labels = read_idx(folder + "/" + part + "-labels-idx1-ubyte.gz", {0});
  if (images.pixels.size() != images.labels.size() * std::size_t(LabelledImages::positions))
    throw std::runtime_error(folder + ": " + part + " has not as many images as labels");
  if (images.labels.empty() || *std::max_element(images.labels.begin(), images.labels.end()) > 9)
    throw std::runtime_error(folder + ": " + part + " has no labels from 0 to 9");
  return images;
}

struct ImageBatch {
  Matrix<float> images;              // (count, 784), of mean 0 and variance 1 over the training images
  std::vector<std::uint8_t> labels;  // (count)
};

/// The images that `order` names, from `begin` on.
inline ImageBatch batch_of(const LabelledImages& data, const std::vector<std::uint32_t>& order, Index begin,
                           Index count) {
  constexpr float mean = 0.2860f * 255, deviation = 0.3530f * 255;
  ImageBatch batch{Matrix<float>(count, LabelledImages::positions), {}};
  for (Index i = 0; i < count; ++i) {
    const std::size_t image = order[std::size_t(begin + i)];
    const std::uint8_t* from = data.pixels.data() + image * std::size_t(LabelledImages::positions);
    for (Index p = 0; p < LabelledImages::positions; ++p) batch.images(i, p) = (float(from[p]) - mean) / deviation;
    batch.labels.push_back(data.labels[image]);
  }
  return batch;
}

/// 0 ... count-1 in an order that is a function of seed and epoch.
inline std::vector<std::uint32_t> shuffled(Index count, std::uint64_t seed, long epoch) {
  std::vector<std::uint32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0u);
  std::vector<double> draws(order.size());
  ek::RandomStream(seed, "order of epoch " + std::to_string(epoch)).fill_uniform(draws.data(), count);
  for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[std::size_t(draws[i] * double(i + 1))]);
  return order;
}

}  // namespace nn
