/// Ranks that are threads of one process: for trainers that give each thread a shard, and for tests.
#pragma once

#include "evenkeel/distributed/communicator.hpp"
#include "evenkeel/error.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace evenkeel {

/// The place where the threads of a group meet. It outlives their communicators, and neither moves nor is copied.
///
///     ek::ThreadGroup group(4);
///     // in thread r:
///     ek::ThreadCommunicator communicator(group, r);
///     ek::SyncBatchNorm<float, ek::ThreadCommunicator> norm(communicator, channels);
class ThreadGroup {
 public:
  /// Throws ShapeError for fewer than one rank.
  explicit ThreadGroup(int ranks) : ranks_(ranks) {
    if (ranks < 1) detail::throw_shape_error("ThreadGroup", "there are ", ranks, " ranks, expected 1 or more");
  }
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  int size() const { return ranks_; }

  /// For a rank that ends early: exchanges that it takes no part in throw RankError, those that wait for it now and later
  /// ones.
  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  friend class ThreadCommunicator;

  /// One exchange: every rank leaves its values, then takes those of all.
  struct Exchange {
    std::vector<double> values;  // (ranks, count)
    Index count = 0;
    int arrived = 0, left = 0;
    bool unequal = false;
  };

  void arrive(int rank, std::int64_t number, const double* send, Index count) {
    const std::lock_guard lock(mutex_);
    Exchange& exchange = open_[number];
    if (exchange.arrived == 0) {
      exchange.count = count;
      exchange.values.resize(static_cast<std::size_t>(ranks_ * count));
    }
    exchange.unequal = exchange.unequal || exchange.count != count;
    if (!exchange.unequal) std::copy_n(send, count, exchange.values.begin() + rank * count);
    if (++exchange.arrived == ranks_) changed_.notify_all();
  }
  /// take(values of all ranks), once all have arrived.
  template <class F>
  void leave(std::int64_t number, const F& take) {
    std::unique_lock lock(mutex_);
    Exchange& exchange = open_[number];  // its place stays while others come and go
    changed_.wait(lock, [&] { return exchange.arrived == ranks_ || aborted_; });
    const bool complete = exchange.arrived == ranks_, unequal = exchange.unequal;
    if (complete && !unequal) take(exchange.values.data());
    if (++exchange.left == ranks_) open_.erase(number);
    if (!complete) throw RankError("ThreadGroup: a rank has called abort()");
    if (unequal) throw RankError("ThreadGroup: the ranks exchange messages of unequal lengths");
  }

  const int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::int64_t, Exchange> open_;  // by number, which all ranks count alike
  bool aborted_ = false;
};

/// Rank `rank` of a group of threads. One thread at a time uses it. Messages of unequal lengths throw RankError on all
/// ranks. Sums are taken in the order of the ranks.
class ThreadCommunicator {
 public:
  /// Throws ShapeError for a rank that the group does not have.
  ThreadCommunicator(ThreadGroup& group, int rank) : group_(&group), rank_(rank) {
    if (rank < 0 || rank >= group.size())
      detail::throw_shape_error("ThreadCommunicator", "the rank is ", rank, ", the group has ", group.size());
  }

  int rank() const { return rank_; }
  int size() const { return group_->size(); }

  /// An exchange under way.
  class Request {
   public:
    Request(Request&& other) noexcept  ///< takes over the exchange
        : group_(std::exchange(other.group_, nullptr)),
          number_(other.number_),
          receive_(other.receive_),
          count_(other.count_),
          sums_(other.sums_) {}
    Request& operator=(Request&&) = delete;
    ~Request() {
      try {
        wait();
      } catch (const RankError&) {  // what there is to say about it, other exchanges will say
      }
    }
    void wait() {
      ThreadGroup* const group = std::exchange(group_, nullptr);
      if (group == nullptr) return;
      group->leave(number_, [&](const double* values) {
        if (!sums_) {
          std::copy_n(values, group->size() * count_, receive_);
          return;
        }
        std::copy_n(values, count_, receive_);
        for (int r = 1; r < group->size(); ++r)
          for (Index i = 0; i < count_; ++i) receive_[i] += values[r * count_ + i];
      });
    }

   private:
    friend class ThreadCommunicator;
    Request(ThreadGroup& group, std::int64_t number, double* receive, Index count, bool sums)
        : group_(&group), number_(number), receive_(receive), count_(count), sums_(sums) {}
    ThreadGroup* group_;
    std::int64_t number_;
    double* receive_;
    Index count_;
    bool sums_;
  };

  Request start_all_gather(const double* send, double* receive, Index count) {
    group_->arrive(rank_, number_, send, count);
    return Request(*group_, number_++, receive, count, false);
  }
  Request start_all_reduce_sum(double* values, Index count) {
    group_->arrive(rank_, number_, values, count);
    return Request(*group_, number_++, values, count, true);
  }
  void all_gather(const double* send, double* receive, Index count) { start_all_gather(send, receive, count).wait(); }
  void all_reduce_sum(double* values, Index count) { start_all_reduce_sum(values, count).wait(); }

 private:
  ThreadGroup* group_;
  int rank_;
  std::int64_t number_ = 0;
};

}  // namespace evenkeel
