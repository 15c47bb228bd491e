// Memory that is mapped from a file its owner may shorten at any moment.
//
// Ring and journal belong to the session's user. Touching a mapped page behind the end of a file ends a
// process by SIGBUS. Inside a guarded range the page is replaced by an empty one instead, and `hit`
// says so from then on: whoever serves the range stops believing in it.
#pragma once

#include <csignal>
#include <cstddef>

namespace singularity {

class Guard {
 public:
  Guard() = default;
  // Throws Refused when this process guards as many ranges as it can.
  Guard(const void* at, size_t bytes);
  Guard(Guard&& other) noexcept : slot_(other.slot_) { other.slot_ = nullptr; }
  Guard& operator=(Guard&& other) noexcept;
  ~Guard() { release(); }
  bool hit() const;

 private:
  void release();
  struct GuardedRange* slot_ = nullptr;
};

// While one lives, this thread (and every thread that it starts) takes no signals but those that its
// own instructions raise.
class SignalsBlocked {
 public:
  SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked();

 private:
  sigset_t before_;
};

}  // namespace singularity
