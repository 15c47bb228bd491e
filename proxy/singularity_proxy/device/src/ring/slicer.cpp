#include "slicer.h"

#include <algorithm>
#include <chrono>

namespace singularity {
namespace {

// So long a rank runs while others wait. A rank that is stopped in the middle of a step keeps its
// activations, so this is longer than steps are.
constexpr auto kLongest = std::chrono::seconds(5);
constexpr auto kSliceLook = std::chrono::milliseconds(20);

}  // namespace

Slicer& Slicer::one() {
  static auto& instance = *new Slicer();
  return instance;
}

bool Slicer::take(Seat& seat, uint32_t order, const std::atomic<bool>& stop) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (seat.has_turn_) return true;
  seat.order_ = order;
  seat.waits_ = true;
  waiting_.push_back(&seat);
  if (!holder_) call_next();
  const auto began = std::chrono::steady_clock::now();
  while (!seat.has_turn_ && !stop.load()) {
    seat.called_.wait_for(lock, kSliceLook);
    if (!seat.has_turn_ && std::chrono::steady_clock::now() - began > kLongest) asked_.store(true);
  }
  seat.waited_ns_ += static_cast<uint64_t>((std::chrono::steady_clock::now() - began).count());
  if (seat.has_turn_) return true;
  std::erase(waiting_, &seat);
  seat.waits_ = false;
  return false;
}

void Slicer::give(Seat& seat) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (holder_ != &seat) return;
  seat.has_turn_ = false;
  holder_ = nullptr;
  last_order_ = seat.order_;
  asked_.store(false);
  call_next();
}

void Slicer::call_next() {
  if (waiting_.empty()) return;
  const auto comes_before = [&](const Seat* a, const Seat* b) {  // those behind the last one first
    return std::make_pair(a->order_ <= last_order_, a->order_) < std::make_pair(b->order_ <= last_order_, b->order_);
  };
  const auto next = std::min_element(waiting_.begin(), waiting_.end(), comes_before);
  holder_ = *next;
  waiting_.erase(next);
  holder_->waits_ = false;
  holder_->has_turn_ = true;
  if (holder_ != last_) switches_.fetch_add(1, std::memory_order_relaxed);
  last_ = holder_;
  holder_->called_.notify_all();
}

void Slicer::wake() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Seat* seat : waiting_) seat->called_.notify_all();
}

}  // namespace singularity
