// How a ring waits for the ranks of its groups, and takes the results of collectives.
#include <c10/core/InferenceMode.h>

#include <climits>

#include "ring_server.h"

namespace singularity {
namespace {

constexpr uint64_t kTellNs = 100'000'000;     // how old the sentence about what it waits for may be
constexpr uint64_t kResultPiece = 16 << 20;   // of a result, in one entry of the journal
constexpr int kLingersTight = 10;

}  // namespace

void RingServer::set_activity(Activity activity, std::string waits_for) {
  if (activity_.load(std::memory_order_relaxed) == activity && waits_for.empty()) return;
  activity_.store(activity);
  std::lock_guard<std::mutex> lock(mutex_);
  waits_for_ = std::move(waits_for);
}

void RingServer::sleep_on(std::atomic<uint32_t>* bell) {
  std::lock_guard<std::mutex> lock(bell_mutex_);
  sleeps_on_ = bell;
}
void RingServer::wake_blocked() {
  std::lock_guard<std::mutex> lock(bell_mutex_);  // while it is held the bell stays mapped
  if (!sleeps_on_) return;
  sleeps_on_->fetch_add(1);
  futex_wake(*sleeps_on_, INT_MAX);
}

// ---- turns

// The turn is kept for a moment: the next record is mostly on its way. For longer where memory is short: what
// a rank has in the middle of a step would be moved to the host and back.
void RingServer::linger() {
  if (seat_.has_turn() && lingers_++ < (Swap::one().is_tight() ? kLingersTight : 1)) return;
  Slicer::one().give(seat_);
  set_activity(Activity::idle);
}

bool RingServer::take_turn() {
  lingers_ = 0;
  if (__builtin_expect(seat_.has_turn() && !seat_.asked(), 1)) return true;
  Slicer::one().give(seat_);
  set_activity(Activity::waiting);
  const bool taken = Slicer::one().take(seat_, file_.header()->virtual_device, stop_);
  if (taken) set_activity(Activity::running);
  busy_since_ = monotonic_ns();
  return taken;
}

void RingServer::take_results_in_turn() {
  if (collectives_.result_is_there() && take_turn()) take_results();
}

// The thread holds nothing meanwhile: no turn, no settings, no lock.
bool RingServer::wait_until_possible(const NotYet& what) {
  if (what.fresh) return at_sync_point();
  std::atomic<uint32_t>* bell = collectives_.bell(what);
  if (!bell) return true;  // the result came meanwhile
  if (!collectives_.possible(what)) {
    blocked_.fetch_add(1, std::memory_order_relaxed);
    Slicer::one().give(seat_);
    struct Awake {
      RingServer* self;
      ~Awake() { self->sleep_on(nullptr); }
    } awake{this};
    sleep_on(bell);
    uint64_t told_ns = 0;
    for (bool again = false;; again = true) {
      const uint32_t seen = bell->load();
      if (stop_.load()) return false;
      check_positions();
      if (what.ticket ? collectives_.possible(what) : again) break;
      if (const uint64_t now = monotonic_ns(); now - told_ns > kTellNs) {
        set_activity(Activity::blocked, collectives_.waits_for(what));
        told_ns = now;
      }
      futex_wait(*bell, seen, kBlockedSleepMs);
    }
  }
  if (!take_turn()) return false;
  take_results();
  return true;
}

// The next record is the first to use the results that came last: a training step is behind, and its
// activations are gone.
bool RingServer::at_sync_point() {
  if (hold_.load(std::memory_order_relaxed) && !stand_if_due(true)) return false;
  state_.use_fresh();
  return true;
}

bool RingServer::take_results() {
  bool any = false;
  while (const std::unique_ptr<Collectives::Result> result = collectives_.next_result()) {
    any = true;
    if (journal_.is_open()) journaled([&] {
        const uint64_t seq = state_.seq;
        for (size_t i = 0; i < result->values.size(); i++) {
          const at::Tensor value = result->values[i].cpu();
          const auto* from = static_cast<const char*>(value.const_data_ptr());
          for (uint64_t at = 0; at < value.nbytes(); at += kResultPiece)
            journal_.append_result_bytes(seq, result->ticket, i, at, from + at, std::min(kResultPiece, value.nbytes() - at));
        }
        journal_.append_result(seq, result->ticket, result->failure);
      });
    journal_now_.store(journal_.bytes(), std::memory_order_relaxed);
    dirty_ = true;
    collectives_.settle(*result);
    if (!result->failure.empty() && !result->told) {
      RecordHeader record{};
      record.seq = result->ticket;
      publish_error(record, Status::distributed_error, result->failure);
    }
  }
  if (any) tell_of_groups();
  return any;
}

void RingServer::replay_result(const RecordHeader& entry, const char* body) {
  const std::string failure = collectives_.replay(entry, body);
  // It was maybe not told any more.
  if (failure.empty() || entry.seq < already_done_) return;
  RecordHeader record{};
  record.seq = entry.seq;
  publish_error(record, Status::distributed_error, failure);
}

void RingServer::tell_others(const RecordHeader& record, const char* body, const std::string& why) {
  try {
    collectives_.failed(record, body, why);
  } catch (const c10::Error&) {  // it names no group, or no collective of one
  }
}

void RingServer::settle_collectives() {
  if (collectives_.idle()) return;
  c10::InferenceMode inference;
  take_results();
}

void RingServer::tell_of_groups() {
  pending_.store(collectives_.pending(), std::memory_order_relaxed);
  sync_points_.store(state_.sync_points, std::memory_order_relaxed);
  takes_turns_ = collectives_.takes_turns();
  if (!takes_turns_) Slicer::one().give(seat_);
  std::vector<GroupStats> now = collectives_.stats();
  std::lock_guard<std::mutex> lock(mutex_);
  groups_ = std::move(now);
}

std::string RingServer::waiting_text() const {
  return collectives_.idle() ? "others have not taken what it contributed"
                             : collectives_.waits_for(NotYet{.ticket = collectives_.oldest()});
}

}  // namespace singularity
