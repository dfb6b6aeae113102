#pragma once

// A stack of its own that a scheduler on the host thread's stack resumes and that parks itself again (Boost.Context).

#include "support/cuda/sanitizers.hpp"

#include <boost/context/detail/fcontext.hpp>
#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace emulator {

class Fiber;

// The host thread's side of the switches.
class Home {
 public:
  Home() {
#if defined(__SANITIZE_THREAD__)
    identity_ = __tsan_get_current_fiber();
#endif
  }

 private:
  friend class Fiber;
  boost::context::detail::fcontext_t context_{};
  const void* stack_ = nullptr;
  std::size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;
  void* identity_ = nullptr;
};

class Fiber {
 public:
  Fiber() {
    void* const memory =
        mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    stack_ = static_cast<char*>(memory);
    mprotect(stack_, guard_bytes, PROT_NONE);
  }
  ~Fiber() {
#if defined(__SANITIZE_THREAD__)
    if (identity_ != nullptr) __tsan_destroy_fiber(identity_);
#endif
    clean_stack();
    munmap(stack_, stack_bytes);
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume calls entry, whose first call must be entered(), and which must never return. Whatever the fiber
  // did before is abandoned.
  void prepare(void (*entry)(boost::context::detail::transfer_t)) {
    clean_stack();
    fake_stack_ = nullptr;
#if defined(__SANITIZE_THREAD__)
    if (identity_ == nullptr) identity_ = __tsan_create_fiber(0);
#endif
    context_ = boost::context::detail::make_fcontext(stack_ + stack_bytes, stack_bytes - guard_bytes, entry);
  }

  // Runs the fiber until it parks.
  void resume([[maybe_unused]] Home& home) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&home.fake_stack_, stack_, stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(identity_, no_order);
#endif
    const boost::context::detail::transfer_t back = boost::context::detail::jump_fcontext(context_, nullptr);
    context_ = back.fctx;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(home.fake_stack_, nullptr, nullptr);
#endif
  }

  // Called by the fiber itself.
  void entered(Home& home, boost::context::detail::transfer_t transfer) { arrived(home, transfer); }

  // Called by the fiber itself: goes back to the scheduler, for ever where the fiber is done.
  void park(Home& home, [[maybe_unused]] bool done) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(done ? nullptr : &fake_stack_, home.stack_, home.stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(home.identity_, no_order);
#endif
    arrived(home, boost::context::detail::jump_fcontext(home.context_, nullptr));
  }

 private:
  void arrived(Home& home, boost::context::detail::transfer_t transfer) {
    const Hidden hidden;
    home.context_ = transfer.fctx;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack_, &home.stack_, &home.stack_bytes_);
#endif
  }

  // An abandoned fiber leaves its frames' redzones behind.
  void clean_stack() {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack_ + guard_bytes, stack_bytes - guard_bytes);
#endif
  }

  static constexpr std::size_t guard_bytes = 4096;
  static constexpr std::size_t stack_bytes = (address_sanitizer || thread_sanitizer ? 256 : 64) * 1024;
  [[maybe_unused]] static constexpr unsigned no_order = 1;  // a switch is no synchronization

  boost::context::detail::fcontext_t context_{};
  char* stack_ = nullptr;
  void* fake_stack_ = nullptr;
  void* identity_ = nullptr;
};

}  // namespace emulator
