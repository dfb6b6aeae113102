#include "evenkeel/detail/parallel_cpu.hpp"
#include "support/catch.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

namespace ek = evenkeel;
using ek::detail::for_each_block;

TEST_CASE("parallel loop: every block runs once, on every device") {
  const auto check = [](const auto& device) {
    for (const ek::Index blocks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(blocks));
      for_each_block(device, blocks, 1e9, [&](ek::Index b) { ++calls[static_cast<std::size_t>(b)]; });
      for (const auto& count : calls) REQUIRE(count == 1);
    }
  };
  check(ek::serial);
  check(Eigen::DefaultDevice{});
  for (const int threads : {1, 2, 3, 8}) {
    Eigen::ThreadPool pool(threads);
    check(Eigen::ThreadPoolDevice(&pool, threads));
  }
}

TEST_CASE("parallel loop: the caller and the pool both work") {
  Eigen::ThreadPool pool(3);
  const Eigen::ThreadPoolDevice device(&pool, 3);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  for_each_block(device, 64, 1e9, [&](ek::Index) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard lock(mutex);
    seen.insert(std::this_thread::get_id());
  });
  CHECK(seen.count(std::this_thread::get_id()) == 1);
  CHECK(seen.size() > 1);
  CHECK(seen.size() <= 3);
}

TEST_CASE("parallel loop: a call from inside a pool task does not wait for the busy pool") {
  // Both threads of the pool run a task that itself loops over the pool: neither can start the other's helpers.
  Eigen::ThreadPool pool(2);
  const Eigen::ThreadPoolDevice device(&pool, 2);
  std::atomic<int> ran{0};
  Eigen::Barrier done(2);
  for (int task = 0; task < 2; ++task)
    pool.Schedule([&] {
      for (int repeat = 0; repeat < 50; ++repeat) for_each_block(device, 5, 1e9, [&](ek::Index) { ++ran; });
      done.Notify();
    });
  done.Wait();
  CHECK(ran == 2 * 50 * 5);
}

TEST_CASE("parallel loop: loops nest, and more callers than slots still finish") {
  Eigen::ThreadPool pool(3);
  const Eigen::ThreadPoolDevice device(&pool, 3);
  std::atomic<int> ran{0};
  for_each_block(device, 100, 1e9, [&](ek::Index) { for_each_block(device, 10, 1e9, [&](ek::Index) { ++ran; }); });
  CHECK(ran == 1000);
}

TEST_CASE("parallel loop: a pool that is kept busy by others does not hold the caller up") {
  Eigen::ThreadPool pool(2);
  const Eigen::ThreadPoolDevice device(&pool, 2);
  std::atomic<bool> release{false};
  Eigen::Barrier done(2);
  for (int task = 0; task < 2; ++task)
    pool.Schedule([&] {
      while (!release) std::this_thread::yield();
      done.Notify();
    });
  int ran = 0;
  for_each_block(device, 8, 1e9, [&](ek::Index) { ++ran; });
  CHECK(ran == 8);
  release = true;
  done.Wait();
}
