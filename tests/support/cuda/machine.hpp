#pragma once

// The machine that kernels run on: every CUDA thread is a fiber, which runs until it must wait for others; then another
// one that may run is picked, in an order that a test chooses. One machine for each host thread that runs blocks.

#include "support/cuda/fiber.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Of the fiber that runs.
inline constinit thread_local uint3 threadIdx{};
inline constinit thread_local uint3 blockIdx{};
inline constinit thread_local dim3 blockDim{};
inline constinit thread_local dim3 gridDim{};

namespace emulator {

// What a kernel did and no kernel may do; the text says which thread, and where in the source.
class KernelFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Order {
  forward,
  reverse,
  random,
  skew  // one warp (odd seeds) or one block (even seeds) runs as far as it can
};

struct Options {
  Order order = Order::random;
  std::uint64_t seed = 1;
  unsigned resident = 1;  // blocks, or clusters, that run at a time
  unsigned workers = 1;   // host threads; one under ThreadSanitizer
  // Every CUDA thread is another thread for ThreadSanitizer too, so that races between blocks show. Costly: for small
  // grids. Otherwise a fiber of an earlier block may serve, whose accesses count as earlier ones of the same thread.
  bool fresh_identities = false;
};

// For the launches that follow. Not to be changed while a kernel runs.
inline Options& options() {
  static Options options;
  return options;
}

inline constexpr std::size_t static_shared_limit = 48 * 1024;
inline constexpr std::size_t shared_limit = 227 * 1024;

// A place in a kernel's source; as a default argument, here() is the caller's.
struct Place {
  const char* file = "";
  int line = 0;
  bool operator==(const Place&) const = default;
};
constexpr Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }

inline std::string text(const Place& place) {
  const char* const slash = std::strrchr(place.file, '/');
  return std::string(slash != nullptr ? slash + 1 : place.file) + ":" + std::to_string(place.line);
}

struct Block;

struct Thread {
  Fiber fiber;
  Block* block = nullptr;
  unsigned index = 0, warp = 0, lane = 0;
  bool done = true;
  const char* waits_in = "";
  Place waits_at;
  // For the model of __threadfence.
  bool fenced = false;
  std::vector<void*> atomics_seen;
};

// __syncthreads and the cluster's barrier. The two clocks serve alternating generations, since a thread may arrive at
// the next barrier before the last one has left this one.
struct Barrier {
  const char* name = "";
  unsigned expected = 0, arrived = 0, exited = 0;
  std::uint64_t generation = 0;
  Place place;
  Clock clocks[2];
  std::vector<Thread*> waiting;
};

// Where the lanes of one mask of a warp meet. The slots alternate like the barrier's clocks.
struct Rendezvous {
  unsigned mask = 0, arrived = 0;
  std::uint64_t generation = 0;
  const char* name = "";
  Place place;
  alignas(16) unsigned char slots[2][32][16];
  Thread* threads[32];
};

struct Warp {
  unsigned present = 0, exited = 0;  // lanes
  std::vector<std::unique_ptr<Rendezvous>> rendezvous;
  Clock clock;
};

// Heap memory of exactly that size, so that AddressSanitizer sees every access past it, filled with NaN.
struct FreeMemory {
  void operator()(unsigned char* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<unsigned char, FreeMemory>;
inline Memory poisoned_memory(std::size_t bytes, std::size_t alignment) {
  void* memory = nullptr;
  if (bytes == 0 || posix_memalign(&memory, alignment, bytes) != 0) return nullptr;
  std::memset(memory, 0xff, bytes);
  return Memory(static_cast<unsigned char*>(memory));
}

struct SharedArray {
  Memory memory;
  std::size_t bytes = 0;
  bool holds(const void* address) const { return address >= memory.get() && address < memory.get() + bytes; }
};

struct Cluster {
  Barrier barrier;
  std::vector<Block*> blocks;
};

struct Block {
  unsigned index = 0, threads = 0, rank = 0;
  std::vector<Warp> warps;
  Barrier barrier;
  Cluster* cluster = nullptr;
  SharedArray dynamic_shared;
  std::map<const void*, SharedArray> shared;  // by declaration
  std::size_t shared_bytes = 0;

  // What still reads a block's shared memory when the block has ended is then caught by AddressSanitizer.
  void end() {
    dynamic_shared = {};
    shared.clear();
  }
};

struct Machine {
  Options options;
  Home home;
  Thread* current = nullptr;
  std::vector<std::unique_ptr<Thread>> threads;
  std::deque<Thread*> ready;
  std::vector<std::unique_ptr<Block>>
      ended;  // kept while a kernel runs: at a reused address a clock would order blocks
  std::function<void()> kernel;
  std::string fault;
  std::uint64_t random = 1;
  const void* favoured = nullptr;  // warp or block, for Order::skew
  Clock start, end;

  std::uint64_t next_random() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random;
  }
};

inline constinit thread_local Machine* machine = nullptr;

// Ends the launch: the thread leaves its kernel, and the scheduler throws on.
[[noreturn]] inline void fail(const std::string& what) {
  const Thread& thread = *machine->current;
  throw KernelFault(what + " [block " + std::to_string(thread.block->index) + ", thread " +
                    std::to_string(thread.index) + "]");
}

}  // namespace emulator
