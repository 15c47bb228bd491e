// Whose turn of the device it is, among the rings of a proxy whose ranks are in process groups.
//
// They run one at a time, and the turn passes where a rank has to wait: what a rank needs besides its
// parameters is then there once and not once for each rank. The next one is the next in the order of
// their virtual devices. Rings without groups take no part.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace singularity {

class Slicer {
 public:
  // A ring's place; belongs to its thread.
  class Seat {
   public:
    Seat() = default;
    Seat(const Seat&) = delete;
    Seat& operator=(const Seat&) = delete;
    ~Seat() { Slicer::one().give(*this); }
    bool has_turn() const { return has_turn_; }
    // Others have waited for long: the turn should be given when a record is done.
    bool asked() const { return Slicer::one().asked_.load(std::memory_order_relaxed); }
    uint64_t waited_ns() const { return waited_ns_.load(std::memory_order_relaxed); }

   private:
    friend class Slicer;
    uint32_t order_ = 0;
    bool has_turn_ = false, waits_ = false;
    std::condition_variable called_;
    std::atomic<uint64_t> waited_ns_{0};
  };

  static Slicer& one();
  // Waits until it is the seat's turn; false when `stop` became true first (call `wake` then).
  bool take(Seat& seat, uint32_t order, const std::atomic<bool>& stop);
  void give(Seat& seat);  // also when it has none
  void wake();
  uint64_t switches() const { return switches_.load(std::memory_order_relaxed); }

 private:
  void call_next();
  std::mutex mutex_;
  std::vector<Seat*> waiting_;
  Seat* holder_ = nullptr;
  uint32_t last_order_ = 0;
  const Seat* last_ = nullptr;
  std::atomic<bool> asked_{false};
  std::atomic<uint64_t> switches_{0};
};

}  // namespace singularity
