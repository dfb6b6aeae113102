#pragma once

// Where threads wait for each other: barriers, and the lanes of a warp that meet in a shuffle or in __syncwarp.

#include "support/cuda/machine.hpp"

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

namespace emulator {

inline void wake(Thread* thread) {
  thread->waits_in = "";
  machine->ready.push_back(thread);
}

inline void wait(const char* name, const Place& place) {
  Thread* const thread = machine->current;
  {
    const Hidden hidden;
    thread->waits_in = name;
    thread->waits_at = place;
  }
  machine->end.release();  // it may be the last that this thread does, where the launch ends with a fault
  thread->fiber.park(machine->home, false);
}

inline void arrive(Barrier& barrier, const Place& place) {
  unsigned turn = 0;
  {
    const Hidden hidden;
    if (barrier.exited != 0)
      fail(std::string(barrier.name) + " at " + text(place) + ": a thread of the group has already exited");
    if (barrier.arrived == 0) barrier.place = place;
    if (barrier.place != place)
      fail(std::string("divergent ") + barrier.name + ": at " + text(barrier.place) + " and at " + text(place));
    turn = barrier.generation % 2;
  }
  barrier.clocks[turn].release();
  bool last = false;
  {
    const Hidden hidden;
    last = ++barrier.arrived == barrier.expected;
    if (last) {
      barrier.arrived = 0;
      ++barrier.generation;
      for (Thread* thread : barrier.waiting) wake(thread);
      barrier.waiting.clear();
    } else {
      barrier.waiting.push_back(machine->current);
    }
  }
  if (!last) wait(barrier.name, place);
  barrier.clocks[turn].acquire();
}

// Leaves a value, waits for every lane of the mask, and takes the value that the source lane has left.
inline void meet(const char* name, const Place& place, unsigned mask, void* value, std::size_t bytes, unsigned source) {
  Thread* const thread = machine->current;
  Rendezvous* meeting = nullptr;
  unsigned turn = 0;
  bool last = false;
  {
    const Hidden hidden;
    Warp& warp = thread->block->warps[thread->warp];
    const auto refuse = [&](const char* why) { fail(std::string(name) + " at " + text(place) + ": " + why); };
    if ((mask >> thread->lane & 1u) == 0) refuse("the calling lane is not in the mask");
    if ((mask & warp.exited) != 0) refuse("the mask names a lane that has exited");
    if ((mask & ~warp.present) != 0) refuse("the mask names a lane that does not exist");
    if ((mask >> source & 1u) == 0) refuse("the source lane is not in the mask");
    for (const auto& each : warp.rendezvous)
      if (each->mask == mask) meeting = each.get();
    if (meeting == nullptr) {
      meeting = warp.rendezvous.emplace_back(std::make_unique<Rendezvous>()).get();
      meeting->mask = mask;
    }
    if (meeting->arrived == 0) {
      meeting->name = name;
      meeting->place = place;
    }
    if (std::strcmp(meeting->name, name) != 0 || meeting->place != place)
      fail(std::string("divergent ") + name + ": " + meeting->name + " at " + text(meeting->place) + " and " + name +
           " at " + text(place));
    turn = meeting->generation % 2;
    std::memcpy(meeting->slots[turn][thread->lane], value, bytes);
    meeting->threads[thread->lane] = thread;
    meeting->arrived |= 1u << thread->lane;
    last = meeting->arrived == mask;
    if (last) {
      meeting->arrived = 0;
      ++meeting->generation;
      for (unsigned lane = 0; lane < 32; ++lane)
        if ((mask >> lane & 1u) != 0 && lane != thread->lane) wake(meeting->threads[lane]);
    }
  }
  if (!last) wait(name, place);
  const Hidden hidden;
  std::memcpy(value, meeting->slots[turn][source], bytes);
}

}  // namespace emulator
