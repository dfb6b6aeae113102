// One result on every device and thread count, bit for bit, and no allocation once `saved` has its memory.
#include "support/devices.hpp"

#include "norms/norm_under_test.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<long> allocations{0};

void* counted_allocation(std::size_t size, std::size_t alignment) {
  ++allocations;
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(size)
                     : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

// Every form that is replaced here ends in malloc and free, so that a pair is never mixed. Not inlined, or g++ 12 takes
// the halves of a pair for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) { return counted_allocation(size, 1); }
[[gnu::noinline]] void* operator new[](std::size_t size) { return counted_allocation(size, 1); }
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted_allocation(size, std::size_t(alignment));
}
[[gnu::noinline]] void* operator new[](std::size_t size, std::align_val_t alignment) {
  return counted_allocation(size, std::size_t(alignment));
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

using namespace norms_test;

namespace {

struct Results {
  RowMatrix<float> y, dx;
  Vector<float> dweight, dbias;
};

template <class Norm, class Device>
Results run(const Device& device, const Data& data, std::size_t rows, std::size_t features, int axis) {
  const auto x = matrix_of<RowMatrix<float>>(rows, features, data.x),
             dy = matrix_of<RowMatrix<float>>(rows, features, data.dy);
  const std::size_t parameters = data.features;
  const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(data.bias);
  Results r{RowMatrix<float>(rows, features), RowMatrix<float>(rows, features),
            Vector<float>::Constant(ek::Index(parameters), 0.5f),
            Vector<float>::Constant(ek::Index(parameters), -0.5f)};
  typename Norm::template Saved<float> saved;
  Norm::forward(device, x, weight, bias, r.y, saved, {.axis = axis});
  Norm::backward(device, dy, x, weight, saved, r.dx, r.dweight, r.dbias);
  return r;
}

template <class Norm>
void check_thread_counts(std::size_t rows, std::size_t features, int axis) {
  const Slab s = axis == 0 ? Slab{1, rows, features} : Slab{rows, features, 1};
  const Data data = make_data<float>(s, rows + features);
  const Results expected = run<Norm>(ek::serial, data, rows, features, axis);
  support::for_each_device([&](const auto& device) {
    INFO(Norm::name << " of " << rows << " x " << features << " over axis " << axis);
    for (int repeat = 0; repeat < 2; ++repeat) {  // whoever takes a block first must not matter either
      const Results got = run<Norm>(device, data, rows, features, axis);
      CHECK((got.y.array() == expected.y.array()).all());
      CHECK((got.dx.array() == expected.dx.array()).all());
      CHECK((got.dweight == expected.dweight).all());
      CHECK((got.dbias == expected.dbias).all());
    }
  });
}

template <class Norm, class Device>
void check_allocations(const Device& device) {
  const std::size_t rows = 130, features = 96;
  const Data data = make_data<float>({rows, features, 1}, 1);
  const auto x = matrix_of<RowMatrix<float>>(rows, features, data.x),
             dy = matrix_of<RowMatrix<float>>(rows, features, data.dy);
  const auto weight = vector_of<float>(data.weight), bias = vector_of<float>(data.bias);
  RowMatrix<float> y(rows, features), dx(rows, features);
  Vector<float> dweight = Vector<float>::Zero(features), dbias = dweight;
  const auto both = [&](auto& saved) {
    const long before = allocations;
    Norm::forward(device, x, weight, bias, y, saved, {});
    Norm::backward(device, dy, x, weight, saved, dx, dweight, dbias);
    return allocations - before;
  };
  typename Norm::template Saved<float> unprepared;
  CHECK(both(unprepared) > 0);  // else the counter sees nothing
  typename Norm::template Saved<float> saved;
  saved.reserve(device, x, typename Norm::Options{}.axis);
  CHECK(both(saved) == 0);
  CHECK(both(saved) == 0);
}

}  // namespace

TEMPLATE_TEST_CASE("norms give the same bits for every device and thread count", "[norms][devices]", RmsNormUnderTest,
                   LayerNormUnderTest, BatchNormUnderTest) {
  for (std::size_t features : Counts{31, 64, 77, 768}) {
    for (std::size_t rows : Counts{1, 5, 257, 1000}) {
      if (rows == 1 && std::is_same_v<TestType, BatchNormUnderTest>) continue;  // one value per channel is an error
      check_thread_counts<TestType>(rows, features, 1);
    }
  }
  check_thread_counts<TestType>(1030, 300, 1);  // BatchNorm's blocks of channels side by side
  check_thread_counts<TestType>(129, 257, 0);
  check_thread_counts<TestType>(7, 33, 0);
}

TEMPLATE_TEST_CASE("norms allocate nothing after reserve", "[norms][devices]", RmsNormUnderTest, LayerNormUnderTest,
                   BatchNormUnderTest) {
  check_allocations<TestType>(ek::serial);
  const support::ThreadPool pool(3);
  check_allocations<TestType>(pool.device());
}

TEST_CASE("a norm called from inside a pool task finishes", "[norms][devices]") {
  const Data data = make_data<float>({200, 64, 1}, 2);
  const Results expected = run<LayerNormUnderTest>(ek::serial, data, 200, 64, 1);
  const support::ThreadPool pool(2);
  const auto& device = pool.device();
  Results got[4];
  Eigen::Barrier done(4);
  for (Results& r : got) {
    device.enqueueNoNotification([&] {
      r = run<LayerNormUnderTest>(device, data, 200, 64, 1);
      done.Notify();
    });
  }
  done.Wait();
  for (const Results& r : got) {
    CHECK((r.y.array() == expected.y.array()).all());
    CHECK((r.dweight == expected.dweight).all());
  }
}
