// Locks for a few hundred instructions' work. On the way of every operator, where the calls that a
// std::mutex takes into the C library are worth saving.
#pragma once

#include <atomic>
#include <cstdint>

#include "wire/ring.h"

namespace singularity {

// Whoever waits sleeps. The word: 0 free, 1 held, 2 held and somebody may sleep.
class Mutex {
 public:
  bool try_lock() {
    uint32_t free = 0;
    return word_.compare_exchange_strong(free, 1, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void lock() {
    if (try_lock()) return;
    while (word_.exchange(2, std::memory_order_acquire)) futex_wait(word_, 2, kLookAgainMs);
  }
  void unlock() {
    if (__builtin_expect(word_.exchange(0, std::memory_order_release) == 2, 0)) futex_wake(word_);
  }

 private:
  static constexpr int kLookAgainMs = 1000;
  std::atomic<uint32_t> word_{0};
};

// For a handful of instructions: whoever waits gives its core away until it is free.
class SpinLock {
 public:
  void lock() {
    while (held_.exchange(true, std::memory_order_acquire)) sched_yield();
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

}  // namespace singularity
