// Whether identities may be believed. They are a matter of rules, and a wrong rule would be a silent
// error in somebody's training; so storages are shared only after a comparison of bytes, again and again.
//
//   state      at a sync point                       next
//   unproven   equal identities are compared         clean, with something to compare: proven; else as it was
//   proven     squash; every k-th time do not        the sync point after that: compare, and stay or off
//   off        nothing, for good
#pragma once

#include <cstdint>
#include <string>

namespace singularity {

class Validation {
 public:
  enum class State { unproven, proven, off };
  // `every`: so many windows between two sync points, one of them is not squashed; 0: only the first.
  explicit Validation(uint64_t every = 100) : every_(every) {}

  // ---- at a sync point, in this order
  bool compares() const { return state_ == State::unproven || (state_ == State::proven && checking_); }
  // What the comparison found. `wrong`: the first difference as a sentence; empty: none.
  void compared(uint64_t pairs, const std::string& wrong) {
    comparisons_ += pairs;
    if (!wrong.empty()) return switch_off(wrong);
    if (pairs && state_ == State::unproven) state_ = State::proven;
    checking_ = false;
  }
  bool merges() const { return state_ == State::proven; }
  // The next window begins: is it squashed?
  bool next_window() {
    if (state_ != State::proven) return false;
    windows_++;
    checking_ = every_ && windows_ % every_ == 0;
    return !checking_;
  }

  void switch_off(const std::string& why) {
    state_ = State::off;
    if (why_off_.empty()) why_off_ = why;
  }
  void set_every(uint64_t windows) { every_ = windows; }
  State state() const { return state_; }
  uint64_t comparisons() const { return comparisons_; }
  uint64_t windows() const { return windows_; }
  const std::string& why_off() const { return why_off_; }

 private:
  uint64_t every_;
  State state_ = State::unproven;
  bool checking_ = false;
  uint64_t comparisons_ = 0, windows_ = 0;
  std::string why_off_;
};

}  // namespace singularity
