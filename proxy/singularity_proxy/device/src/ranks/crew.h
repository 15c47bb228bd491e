// The rings of this proxy that have a process group in common: their identities mean the same, so they
// share storages, and calls (lockstep.h) from sync points on. A sync point is where a ring is about to
// use what a collective brought; it waits there for the others, but not for those that do not come.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "device/src/recovery/validation.h"
#include "wire/records.h"

namespace singularity {

class RingServer;

struct CrewStats {
  std::string state;  // "alone", "unproven", "proven", "off"
  std::string why_off;
  uint64_t executed = 0, skipped = 0;      // calls from sync points on: for all rings, and spared
  uint64_t windows = 0, comparisons = 0;   // sync points of all rings; pairs of storages compared
  uint64_t merged_bytes = 0;               // of storages that were made one
};

class Crew {
 public:
  static Crew& one();

  // ---- by a ring's thread, or while that is paused
  // It is in this group, as this rank. `folder`: of the session's rings.
  void enter(RingServer& ring, const GroupId& group, uint32_t rank, const std::string& folder);
  void leave(RingServer& ring, const GroupId& group);
  void leave(RingServer& ring);  // all groups

  // The next record of this ring uses something fresh. Returns when it may go on; then its next record
  // is maybe another one.
  void sync(RingServer& ring);

  void set_check_every(uint64_t windows);  // 0: only once
  bool shares() const { return shares_.load(std::memory_order_relaxed); }  // no: never again
  CrewStats stats() const;

 private:
  void choose();
  bool all_wait() const;
  bool nobody_else_moves(uint64_t& seen, uint64_t& since) const;
  void together();
  void compare();
  void merge();
  uint32_t rank_of(RingServer& ring) const;
  void publish();

  std::atomic<bool> shares_{true};
  std::mutex mutex_;  // held while rings run together
  std::condition_variable changed_;
  std::map<GroupId, std::map<RingServer*, uint32_t>> groups_;
  std::vector<RingServer*> members_;     // by rank
  std::set<const RingServer*> waiting_;  // at a sync point
  uint64_t round_ = 0;                   // of sync points
  std::string folder_;
  Validation validation_;
  uint64_t executed_ = 0, skipped_ = 0, merged_bytes_ = 0;
  mutable std::mutex stats_mutex_;
  CrewStats stats_;
};

}  // namespace singularity
