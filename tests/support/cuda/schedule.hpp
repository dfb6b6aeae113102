#pragma once

// Runs blocks: prepares their threads, and picks who runs next until all are done or nobody can go on.

#include "support/cuda/machine.hpp"

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace emulator {

// A thread's end, which nobody may be waiting for.
inline void leave() {
  const Hidden hidden;
  Thread* const thread = machine->current;
  Block& block = *thread->block;
  Warp& warp = block.warps[thread->warp];
  for (const auto& each : warp.rendezvous)
    if (each->arrived != 0 && (each->mask >> thread->lane & 1u) != 0)
      fail(std::string("a thread exited while its warp waits in ") + each->name + " at " + text(each->place));
  if (block.barrier.arrived != 0)
    fail("a thread exited while its block waits in __syncthreads at " + text(block.barrier.place));
  warp.exited |= 1u << thread->lane;
  if (++block.barrier.exited == block.threads) block.end();
  ++block.cluster->barrier.exited;
  thread->done = true;
}

// What a thread does from its first to its last breath.
inline void thread_entry(boost::context::detail::transfer_t transfer) {
  Thread* const thread = machine->current;
  thread->fiber.entered(machine->home, transfer);
  machine->start.acquire();
  try {
    machine->kernel();
    machine->end.release();
    leave();
  } catch (const KernelFault& fault) {
    machine->end.release();
    const Hidden hidden;
    machine->fault = fault.what();
  }
  for (;;) {
    const bool done = [&] {
      const Hidden hidden;
      return thread->done;
    }();
    thread->fiber.park(machine->home, done);
  }
}

inline Thread* pick() {
  std::deque<Thread*>& ready = machine->ready;
  std::size_t place = 0;
  switch (machine->options.order) {
    case Order::forward:
      break;
    case Order::reverse:
      place = ready.size() - 1;
      break;
    case Order::random:
      place = machine->next_random() % ready.size();
      break;
    case Order::skew: {
      const auto group = [](const Thread* thread) -> const void* {
        if (machine->options.seed % 2 == 0) return thread->block;
        return &thread->block->warps[thread->warp];
      };
      const std::size_t first = machine->next_random() % ready.size();
      for (std::size_t k = 0; k < ready.size(); ++k) {
        place = (first + k) % ready.size();
        if (group(ready[place]) == machine->favoured) break;
        if (k + 1 == ready.size()) place = first;
      }
      machine->favoured = group(ready[place]);
    }
  }
  Thread* const thread = ready[place];
  if (place == 0) {
    ready.pop_front();
  } else {
    ready[place] = ready.back();
    ready.pop_back();
  }
  return thread;
}

inline std::string deadlock_text() {
  std::map<std::string, int> waiting;
  for (const auto& thread : machine->threads)
    if (!thread->done) ++waiting[std::string(thread->waits_in) + " at " + text(thread->waits_at)];
  std::string list = "deadlock:";
  for (const auto& [where, count] : waiting) list += " " + std::to_string(count) + " threads wait in " + where + ";";
  return list;
}

// Runs blocks that are resident together until all their threads are done.
inline void run_blocks(const std::vector<unsigned>& indices, unsigned threads, std::size_t dynamic_bytes,
                       unsigned cluster_size) {
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::unique_ptr<Cluster>> clusters;
  if (machine->options.fresh_identities) machine->threads.clear();
  while (machine->threads.size() < indices.size() * threads) machine->threads.push_back(std::make_unique<Thread>());
  machine->ready.clear();
  std::size_t next = machine->next_random();  // a thread of the next block gets another fiber
  for (unsigned index : indices) {
    Block& block = *blocks.emplace_back(std::make_unique<Block>());
    block.index = index;
    block.threads = threads;
    block.rank = index % cluster_size;
    block.warps.resize((threads + 31) / 32);
    block.barrier.name = "__syncthreads";
    block.barrier.expected = threads;
    block.dynamic_shared = {poisoned_memory(dynamic_bytes, 16), dynamic_bytes};
    block.shared_bytes = dynamic_bytes;
    if (block.rank == 0) {
      Cluster& cluster = *clusters.emplace_back(std::make_unique<Cluster>());
      cluster.barrier.name = "cluster_sync";
      cluster.barrier.expected = threads * cluster_size;
    }
    block.cluster = clusters.back().get();
    block.cluster->blocks.push_back(&block);
    for (unsigned t = 0; t < threads; ++t) {
      Thread& thread = *machine->threads[next++ % machine->threads.size()];
      thread.block = &block;
      thread.index = t;
      thread.warp = t / 32;
      thread.lane = t % 32;
      thread.done = false;
      thread.waits_in = "";
      thread.fenced = false;
      thread.atomics_seen.clear();
      block.warps[thread.warp].present |= 1u << thread.lane;
      thread.fiber.prepare(thread_entry);
      machine->ready.push_back(&thread);
    }
  }
  for (std::size_t live = indices.size() * threads; live != 0;) {
    if (machine->ready.empty()) throw KernelFault(deadlock_text());
    Thread& thread = *pick();
    machine->current = &thread;
    threadIdx = {thread.index, 0, 0};
    blockIdx = {thread.block->index, 0, 0};
    thread.fiber.resume(machine->home);
    if (!machine->fault.empty()) throw KernelFault(machine->fault);
    if (thread.done) --live;
  }
  for (auto& block : blocks) machine->ended.push_back(std::move(block));
}

}  // namespace emulator
