// How a ring stops for the barrier, at a place that all ranks of its groups have in common.
//
// The thread stands between two records. It is not paused: a pause (to save the state) still comes and
// goes meanwhile, and results of collectives are taken, because others are still on their way to where
// this rank is.
#include <algorithm>
#include <chrono>

#include "ring_server.h"

namespace singularity {
namespace {

constexpr auto kStandingLook = std::chrono::milliseconds(2);  // for results of ranks of other proxies

}  // namespace

void RingServer::hold(std::map<std::string, uint64_t> targets, uint64_t grace_ns) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    targets_ = std::move(targets);
    grace_ns_ = grace_ns;
    if (!hold_.exchange(true)) reached_ns_ = 0;
  }
  changed_.notify_all();
  wake_idle();
}

void RingServer::let_go() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    hold_.store(false);
  }
  changed_.notify_all();
}

bool RingServer::has_reached_targets() const {
  if (!hold_.load(std::memory_order_relaxed)) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  return hold_.load() && takes_turns_ && collectives_.reached(targets_);
}

// Between two records, while a barrier is wanted. `cheap`: a training step that is behind has left nothing
// here, or there is nothing to do. False: the thread was asked to stop.
bool RingServer::stand_if_due(bool cheap) {
  state_.stop_at_fresh = true;
  if (!has_reached_targets()) {
    reached_ns_ = 0;
    return true;
  }
  const uint64_t now = monotonic_ns();
  if (!reached_ns_) reached_ns_ = now;
  if (!cheap && now - reached_ns_ < grace_ns_.load()) return true;
  while (!stop_.load() && has_reached_targets()) {
    take_results_in_turn();
    Slicer::one().give(seat_);
    tell_of_groups();
    set_activity(Activity::idle);
    stands_.store(true);
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kStandingLook);
  }
  stands_.store(false);
  reached_ns_ = 1;  // after a pause it stands again at once
  busy_since_ = monotonic_ns();
  return !stop_.load();
}

}  // namespace singularity
