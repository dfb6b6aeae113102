/// Where layers and saved statistics keep their numbers. A storage is a policy; the host's is here.
#pragma once

#include "evenkeel/config.hpp"
#include "evenkeel/device.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace evenkeel::inline EVENKEEL_ISA {

/// Memory aligned to 64 bytes that grows and never shrinks. Growing keeps nothing: it is for scratch and statistics,
/// which are written anew by each call.
template <class T>
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(const HostBuffer& other) { *this = other; }
  HostBuffer(HostBuffer&& other) noexcept { swap(other); }
  HostBuffer& operator=(const HostBuffer& other) {
    if (this == &other) return *this;
    reserve(other.size_);
    std::copy_n(other.data_, other.size_, data_);
    return *this;
  }
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~HostBuffer() { release(); }

  /// Makes room for `size` values. Allocates only when the buffer was smaller.
  void reserve(Index size) {
    if (size <= size_) return;
    T* const grown = static_cast<T*>(::operator new(static_cast<std::size_t>(size) * sizeof(T), alignment));
    std::uninitialized_fill_n(grown, size, T(0));
    release();
    data_ = grown;
    size_ = size;
  }
  /// The same: what runs on the CPU may allocate.
  void ensure(Index size) { reserve(size); }
  Index size() const { return size_; }
  T* data() { return data_; }
  const T* data() const { return data_; }

 private:
  static constexpr std::align_val_t alignment{64};
  void release() { ::operator delete(data_, alignment); }
  void swap(HostBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  T* data_ = nullptr;
  Index size_ = 0;
};

/// Storage policy of layers and saved statistics in the host's memory.
struct HostStorage {
  static constexpr bool on_host = true;
  template <class T>
  using Buffer = HostBuffer<T>;
  template <class T>
  static void fill(T* data, Index size, T value) {
    std::fill_n(data, size, value);
  }
  template <class T>
  static void copy(const T* from, T* to, Index size) {
    std::copy_n(from, size, to);
  }
  /// From a buffer to host memory.
  template <class T>
  static void read(const T* from, T* host, Index size) {
    std::copy_n(from, size, host);
  }
  /// From host memory to a buffer.
  template <class T>
  static void write(const T* host, T* to, Index size) {
    std::copy_n(host, size, to);
  }
};

}  // namespace evenkeel::inline EVENKEEL_ISA
