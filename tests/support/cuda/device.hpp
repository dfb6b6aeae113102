#pragma once

// The names that kernels call, and what the seam needs besides.

#include "support/cuda/collectives.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#define __global__
#define __launch_bounds__(...)

namespace emulator {

// The block's array for a declaration, made when its first thread comes by.
inline void* shared_array(const void* declaration, std::size_t bytes) {
  const Hidden hidden;
  Block& block = *machine->current->block;
  SharedArray& array = block.shared[declaration];
  if (array.bytes == 0) {
    array = {poisoned_memory(bytes, 16), bytes};
    block.shared_bytes += bytes;
    if (block.shared_bytes - block.dynamic_shared.bytes > static_shared_limit)
      fail("more than 48 KiB of static shared memory");
    if (block.shared_bytes > shared_limit) fail("more than 227 KiB of static and dynamic shared memory");
  }
  return array.memory.get();
}

inline void* dynamic_shared() {
  const Hidden hidden;
  return machine->current->block->dynamic_shared.memory.get();
}

inline unsigned cluster_rank() {
  const Hidden hidden;
  return machine->current->block->rank;
}

inline void cluster_sync(const Place& place) { arrive(machine->current->block->cluster->barrier, place); }

inline void* cluster_map(const void* address, unsigned rank) {
  const Hidden hidden;
  Block& block = *machine->current->block;
  const Cluster& cluster = *block.cluster;
  if (rank >= cluster.blocks.size()) fail("cluster_map: the cluster has no block of rank " + std::to_string(rank));
  Block& other = *cluster.blocks[rank];
  if (&other != &block && cluster.barrier.generation == 0)
    fail("cluster_map: no cluster_sync() before, so the other block need not run yet");
  if (other.barrier.exited == other.threads) fail("cluster_map: the other block has ended");
  const auto same_place = [&](const SharedArray& mine, const SharedArray& theirs) {
    return theirs.memory.get() + (static_cast<const unsigned char*>(address) - mine.memory.get());
  };
  if (block.dynamic_shared.holds(address)) return same_place(block.dynamic_shared, other.dynamic_shared);
  for (const auto& [declaration, mine] : block.shared) {
    if (!mine.holds(address)) continue;
    const auto theirs = other.shared.find(declaration);
    if (theirs == other.shared.end()) fail("cluster_map: the other block has not come to this shared array yet");
    return same_place(mine, theirs->second);
  }
  fail("cluster_map: the address is not in shared memory");
}

enum class Shuffle { index, exclusive_or, down, up };

template <class T>
T shuffle(const char* name, Shuffle kind, unsigned mask, T value, int argument, int width, const Place& place) {
  static_assert(sizeof(T) <= 8, "CUDA shuffles values of 4 and 8 bytes");
  if (width < 1 || width > 32 || !std::has_single_bit(static_cast<unsigned>(width)))
    fail(std::string(name) + " at " + text(place) + ": the width is not a power of two up to 32");
  const int lane = static_cast<int>(machine->current->lane);
  const int first = lane & ~(width - 1);
  int source = lane;
  switch (kind) {
    case Shuffle::index:
      source = first + (argument & (width - 1));
      break;
    case Shuffle::exclusive_or:
      source = lane ^ argument;
      break;
    case Shuffle::down:
      source = lane + argument;
      break;
    case Shuffle::up:
      source = lane - argument;
      if (source < first) source = lane;
      break;
  }
  if (source >= first + width) source = lane;
  meet(name, place, mask, &value, sizeof value, static_cast<unsigned>(source));
  return value;
}

// By CUDA's model an atomic orders nothing, and a fence makes the atomics around it do so: what comes before a fence is
// released by the atomics after it, and what atomics before a fence have seen is acquired by it.
template <class T, class F>
T atomic_update(T* address, F update) {
  if (reinterpret_cast<std::uintptr_t>(address) % alignof(T) != 0) fail("an atomic at a misaligned address");
  Thread* const thread = machine->current;
  if (thread_sanitizer) {
    if (thread->fenced) release(address);
    const Hidden hidden;
    thread->atomics_seen.push_back(address);
    const T before = *address;  // there is one host thread, and a host's atomic would order more than CUDA's
    *address = update(before);
    return before;
  }
  T before = __atomic_load_n(address, __ATOMIC_RELAXED);
  T after = update(before);
  while (!__atomic_compare_exchange_n(address, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    after = update(before);
  return before;
}

inline void fence() {
  if (!thread_sanitizer) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return;
  }
  Thread* const thread = machine->current;
  for (void* address : thread->atomics_seen) acquire(address);
  const Hidden hidden;
  thread->atomics_seen.clear();
  thread->fenced = true;
}

}  // namespace emulator

inline void __syncthreads(emulator::Place place = emulator::here()) {
  emulator::arrive(emulator::machine->current->block->barrier, place);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, emulator::Place place = emulator::here()) {
  emulator::Thread& thread = *emulator::machine->current;
  emulator::Clock& clock = thread.block->warps[thread.warp].clock;
  char nothing = 0;
  clock.release();
  emulator::meet("__syncwarp", place, mask, &nothing, sizeof nothing, thread.lane);
  clock.acquire();
}

// Shuffles order no memory accesses.
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, emulator::Place place = emulator::here()) {
  return emulator::shuffle("__shfl_sync", emulator::Shuffle::index, mask, value, lane, width, place);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, emulator::Place place = emulator::here()) {
  return emulator::shuffle("__shfl_xor_sync", emulator::Shuffle::exclusive_or, mask, value, lanes, width, place);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32, emulator::Place place = emulator::here()) {
  return emulator::shuffle("__shfl_down_sync", emulator::Shuffle::down, mask, value, static_cast<int>(lanes), width,
                           place);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32, emulator::Place place = emulator::here()) {
  return emulator::shuffle("__shfl_up_sync", emulator::Shuffle::up, mask, value, static_cast<int>(lanes), width, place);
}

inline unsigned atomicAdd(unsigned* address, unsigned value) {
  return emulator::atomic_update(address, [value](unsigned before) { return before + value; });
}
inline int atomicAdd(int* address, int value) {
  return emulator::atomic_update(address, [value](int before) { return before + value; });
}

inline void __threadfence() { emulator::fence(); }
