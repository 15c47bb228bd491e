#include "turn.h"

#include <c10/util/Exception.h>
#include <time.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <vector>

namespace singularity {
namespace {

constexpr size_t kMaxSettings = 4096;

std::mutex mutex;  // of everything below, but `changing` and `applied` are read without it
std::mutex remember_mutex;  // of `remembered`, for threads inside a Turn: whoever changes waits for them
std::atomic<bool> changing{false};
std::atomic<const Settings*> applied{nullptr};

std::vector<TurnTaker*>& takers() {
  static auto& all = *new std::vector<TurnTaker*>();
  return all;
}
const Settings* remembered(const Settings& settings) {
  static auto& all = *new std::set<Settings>();
  const auto found = all.find(settings);
  if (found != all.end()) return &*found;
  TORCH_CHECK(all.size() < kMaxSettings, "more than ", kMaxSettings,
              " different combinations of torch's settings were used on a device; use fewer");
  return &*all.insert(settings).first;
}

void doze() {
  const timespec t{0, 20000};
  nanosleep(&t, nullptr);
}

}  // namespace

TurnTaker::TurnTaker() {
  settings_at_start();
  std::lock_guard<std::mutex> lock(mutex);
  takers().push_back(this);
}
TurnTaker::~TurnTaker() {
  std::lock_guard<std::mutex> lock(mutex);
  std::erase(takers(), this);
}

const Settings* remember(const Settings& settings) {
  std::lock_guard<std::mutex> lock(remember_mutex);
  return remembered(settings);
}

const Settings* settings_at_start() {
  static const Settings* start = [] {
    const Settings* now = remember(current_settings());
    applied.store(now);
    return now;
  }();
  return start;
}

// Entering is: say that I am inside, then look whether somebody changes. Changing is: say that I
// change, then look who is inside. Both look after they said, so at least one sees the other.
Turn::Turn(TurnTaker& taker, const Settings* wanted) : taker_(taker) {
  taker_.inside_.store(true, std::memory_order_seq_cst);
  if (__builtin_expect(!changing.load(std::memory_order_seq_cst), 1) &&
      __builtin_expect(applied.load(std::memory_order_relaxed) == wanted, 1))
    return;
  taker_.inside_.store(false, std::memory_order_seq_cst);
  change(wanted);
}

void Turn::change(const Settings* wanted) {
  std::lock_guard<std::mutex> lock(mutex);
  if (applied.load() != wanted) {
    changing.store(true, std::memory_order_seq_cst);
    for (const TurnTaker* other : takers())
      while (other->inside_.load(std::memory_order_seq_cst)) doze();
    apply_settings(*wanted);
    applied.store(wanted);
    taker_.inside_.store(true, std::memory_order_seq_cst);
    changing.store(false, std::memory_order_seq_cst);
    return;
  }
  taker_.inside_.store(true, std::memory_order_seq_cst);  // nobody changes: that needs the mutex
}

}  // namespace singularity
