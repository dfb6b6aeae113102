// Ranks that are threads of a test.
#pragma once

#include "evenkeel/distributed/thread_communicator.hpp"

#include <exception>
#include <string>
#include <thread>
#include <vector>

namespace distributed_test {

// Calls f(communicator) in a thread for each rank; what they return, joined. Catch2's assertions are not for threads.
template <class F>
std::string on_ranks(int ranks, const F& f) {
  evenkeel::ThreadGroup group(ranks);
  std::vector<std::thread> threads;
  std::vector<std::string> wrong(std::size_t(ranks), "");
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        wrong[std::size_t(r)] = f(evenkeel::ThreadCommunicator(group, r));
      } catch (const std::exception& e) {
        wrong[std::size_t(r)] = "rank " + std::to_string(r) + " throws " + e.what();
        group.abort();
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::string all;
  for (const std::string& w : wrong) all += w;
  return all;
}

}  // namespace distributed_test
