#pragma once

// What AddressSanitizer and ThreadSanitizer must be told by whoever switches stacks and brings barriers of his own.
// Without a sanitizer nothing here does anything.

#include "support/sanitizers.hpp"

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__SANITIZE_THREAD__)
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* identity);
void __tsan_switch_to_fiber(void* identity, unsigned flags);
void __tsan_acquire(void* clock);
void __tsan_release(void* clock);
void __tsan_ignore_thread_begin();
void __tsan_ignore_thread_end();
}
#endif

namespace emulator {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool address_sanitizer = true;
#else
inline constexpr bool address_sanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__)
inline constexpr bool thread_sanitizer = true;
#else
inline constexpr bool thread_sanitizer = false;
#endif

// The emulator's own data is not the kernel's: ThreadSanitizer does not look while one of these lives.
class [[maybe_unused]] Hidden {
 public:
  Hidden() {
#if defined(__SANITIZE_THREAD__)
    __tsan_ignore_thread_begin();
#endif
  }
  ~Hidden() {
#if defined(__SANITIZE_THREAD__)
    __tsan_ignore_thread_end();
#endif
  }
  Hidden(const Hidden&) = delete;
  Hidden& operator=(const Hidden&) = delete;
};

// What ThreadSanitizer orders by: an acquire sees all that came before the releases of the same address.
inline void release([[maybe_unused]] void* clock) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(clock);
#endif
}
inline void acquire([[maybe_unused]] void* clock) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(clock);
#endif
}
struct Clock {
  char address = 0;
  void release() { emulator::release(&address); }
  void acquire() { emulator::acquire(&address); }
};

}  // namespace emulator
