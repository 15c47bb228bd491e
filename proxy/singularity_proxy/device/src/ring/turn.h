// torch has one set of settings per process, and the rings of a proxy run at the same time in their own
// threads, each under the settings of its worker. While a Turn lives, the process's settings are those
// that it was made with. Rings with the same settings do not wait for each other.
#pragma once

#include <atomic>

#include "native/settings.h"

namespace singularity {

// A thread that executes records; lives in its Executor.
class TurnTaker {
 public:
  TurnTaker();
  TurnTaker(const TurnTaker&) = delete;
  TurnTaker& operator=(const TurnTaker&) = delete;
  ~TurnTaker();

 private:
  friend class Turn;
  alignas(64) std::atomic<bool> inside_{false};
};

// Equal settings have one address, which lives as long as the process. Throws when a worker has tried
// too many different ones.
const Settings* remember(const Settings& settings);
const Settings* settings_at_start();

class Turn {
 public:
  Turn(TurnTaker& taker, const Settings* wanted);
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { taker_.inside_.store(false, std::memory_order_release); }

 private:
  void change(const Settings* wanted);
  TurnTaker& taker_;
};

}  // namespace singularity
