// Tensors of rows in device memory, at every kind of place that rows may have.
#pragma once

#include "evenkeel/cuda.hpp"
#include "support/reference.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace cuda_test {

namespace ek = evenkeel;
using ek::Index;
using reference::Values;

// `size` values of the device's memory, no more, so that AddressSanitizer sees the next one. Every byte is 0xff at
// first: a NaN in each type.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(Index size) : size_(static_cast<std::size_t>(size)) {
    if (size_ > 0)
      ek::detail::check_cuda(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()), "DeviceArray", "cudaMalloc");
    poison();
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray(DeviceArray&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>> map() const { return {data_, Index(size_)}; }
  void poison() { cudaMemsetAsync(data_, 0xff, bytes(), nullptr); }
  void put(const std::vector<T>& values) {
    cudaMemcpyAsync(data_, values.data(), bytes(), cudaMemcpyHostToDevice, nullptr);
  }
  void put(const Values& values) requires(!std::is_same_v<T, double>) {
    std::vector<T> scalars(size_);
    for (std::size_t i = 0; i < size_; ++i) scalars[i] = static_cast<T>(values[i]);
    put(scalars);
  }
  std::vector<T> get() const {
    std::vector<T> values(size_);
    cudaMemcpyAsync(values.data(), data_, bytes(), cudaMemcpyDeviceToHost, nullptr);
    cudaStreamSynchronize(nullptr);
    return values;
  }
  Values values() const {
    const std::vector<T> scalars = get();
    return Values(scalars.begin(), scalars.end());
  }
  bool untouched() const {
    const std::vector<T> scalars = get();
    const auto* const memory = reinterpret_cast<const unsigned char*>(scalars.data());
    for (std::size_t i = 0; i < bytes(); ++i)
      if (memory[i] != 0xff) return false;
    return true;
  }

 private:
  std::size_t bytes() const { return size_ * sizeof(T); }
  T* data_ = nullptr;
  std::size_t size_;
};

// Where rows lie, in elements: an AxisView without its memory.
struct Placement {
  const char* name;
  Index length;
  std::array<Index, 2> outer, outer_stride;
  Index stride = 1, inner = 1, inner_stride = 0, offset = 0;

  Index rows() const { return outer[0] * outer[1] * inner; }
  std::size_t at(Index row, Index i) const {
    const Index k = row % inner, o = row / inner;
    return std::size_t(offset + o / outer[1] * outer_stride[0] + o % outer[1] * outer_stride[1] + i * stride +
                       k * inner_stride);
  }
  // Up to the last element and no further.
  Index memory() const { return rows() == 0 || length == 0 ? 0 : Index(at(rows() - 1, length - 1)) + 1; }
};

inline Placement packed(Index rows, Index length) { return {"packed", length, {1, rows}, {0, length}}; }
inline Placement pitched(const char* name, Index rows, Index length, Index pitch, Index offset) {
  Placement p{name, length, {1, rows}, {0, pitch}};
  p.offset = offset;
  return p;
}
inline Placement shifted(Index rows, Index length) { return pitched("shifted by 1", rows, length, length, 1); }
inline Placement shifted_by_two(Index rows, Index length) { return pitched("shifted by 2", rows, length, length, 2); }
inline Placement odd_pitch(Index rows, Index length) {
  return pitched("odd pitch", rows, length, length + 1 + length % 2 * 3, 0);
}
inline Placement wide_pitch(Index rows, Index length) { return pitched("wide pitch", rows, length, length + 16, 8); }
inline Placement column_major(Index rows, Index length) {
  Placement p{"column-major", length, {1, 1}, {0, 0}};
  p.stride = rows;
  p.inner = rows;
  p.inner_stride = 1;
  return p;
}
// (samples, length, space): a row is a place in space.
inline Placement channels(Index samples, Index length, Index space) {
  Placement p{"N, C, space", length, {1, samples}, {0, length * space}};
  p.stride = space;
  p.inner = space;
  p.inner_stride = 1;
  return p;
}
// The keys in a buffer (tokens, 3, heads, length) of queries, keys and values.
inline Placement heads(Index tokens, Index count, Index length) {
  Placement p{"heads of a fused buffer", length, {tokens, count}, {3 * count * length, length}};
  p.offset = count * length;
  return p;
}

// A tensor at a place. What is not its own stays poisoned.
template <class T>
class DeviceTensor {
 public:
  explicit DeviceTensor(const Placement& place) : place_(place), memory_(place.memory()) {}

  ek::AxisView<T> view() const {
    return {memory_.data() == nullptr ? nullptr : memory_.data() + place_.offset,
            place_.outer,
            place_.outer_stride,
            place_.length,
            place_.stride,
            place_.inner,
            place_.inner_stride};
  }
  void poison() { memory_.poison(); }
  void put(const Values& values) {  // (rows, length)
    std::vector<T> memory = memory_.get();
    for (Index r = 0; r < place_.rows(); ++r)
      for (Index i = 0; i < place_.length; ++i)
        memory[place_.at(r, i)] = static_cast<T>(values[std::size_t(r * place_.length + i)]);
    memory_.put(memory);
  }
  Values values() const {
    const std::vector<T> memory = memory_.get();
    Values values;
    values.reserve(std::size_t(place_.rows() * place_.length));
    for (Index r = 0; r < place_.rows(); ++r)
      for (Index i = 0; i < place_.length; ++i) values.push_back(double(memory[place_.at(r, i)]));
    return values;
  }
  bool untouched() const { return memory_.untouched(); }
  bool gaps_untouched() const {
    std::vector<T> memory = memory_.get();
    T poison;
    std::memset(static_cast<void*>(&poison), 0xff, sizeof poison);
    std::vector<bool> own(memory.size());
    for (Index r = 0; r < place_.rows(); ++r)
      for (Index i = 0; i < place_.length; ++i) own[place_.at(r, i)] = true;
    for (std::size_t i = 0; i < memory.size(); ++i)
      if (!own[i] && std::memcmp(&memory[i], &poison, sizeof poison) != 0) return false;
    return true;
  }

 private:
  Placement place_;
  DeviceArray<T> memory_;
};

}  // namespace cuda_test
