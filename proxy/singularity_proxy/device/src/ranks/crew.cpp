#include "crew.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "device/src/recovery/files.h"
#include "lockstep.h"
#include "device/src/ring/ring_server.h"
#include "device/src/memory/swap.h"

namespace singularity {
namespace {

// A ring waits so long at a sync point while none of the others does anything, and so long for the next
// record of a ring in lockstep: leaving too early costs time and memory, waiting costs time.
constexpr uint64_t kPatienceNs = 20'000'000;
constexpr auto kLook = std::chrono::milliseconds(1);
// In the folder of the session's rings: why no proxy of the session shares anything any more.
constexpr const char* kOffFile = "/squashing-off";
constexpr size_t kMaxWhy = 4096;

std::string read_text(const std::string& path) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  char text[kMaxWhy];
  const ssize_t n = fd.get() < 0 ? 0 : ::read(fd.get(), text, sizeof(text));
  return std::string(text, n > 0 ? static_cast<size_t>(n) : 0);
}
// Another proxy of the session that finds no file compares for itself before it shares.
void write_text(const std::string& path, const std::string& text) {
  Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.get() >= 0 && ::write(fd.get(), text.data(), std::min(text.size(), kMaxWhy)) < 0) ::unlink(path.c_str());
}

}  // namespace

Crew& Crew::one() {
  static auto& instance = *new Crew();
  return instance;
}

void Crew::enter(RingServer& ring, const GroupId& group, uint32_t rank, const std::string& folder) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (folder_.empty()) {
    folder_ = folder;
    if (const std::string why = read_text(folder_ + kOffFile); !why.empty()) {
      validation_.switch_off(why);
      shares_.store(false);
    }
  }
  groups_[group][&ring] = rank;
  choose();
}

void Crew::leave(RingServer& ring, const GroupId& group) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto found = groups_.find(group); found != groups_.end()) {
    found->second.erase(&ring);
    if (found->second.empty()) groups_.erase(found);
  }
  choose();
}
void Crew::leave(RingServer& ring) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [id, rings] : groups_) rings.erase(&ring);
  std::erase_if(groups_, [](const auto& group) { return group.second.empty(); });
  choose();
}

void Crew::choose() {
  std::map<RingServer*, uint32_t> chosen;
  for (const auto& [id, rings] : groups_)
    if (rings.size() >= 2)
      for (const auto& [ring, rank] : rings) chosen.emplace(ring, rank);
  for (RingServer* ring : members_)
    if (!chosen.count(ring)) {
      ring->in_crew(false);
      Swap::one().leave(ring->state());
    }
  members_.clear();
  for (const auto& [ring, rank] : chosen) {
    members_.push_back(ring);
    ring->in_crew(true);
    if (!ring->asked_to_stop()) Swap::one().enter(ring->state(), ring->virtual_device());
  }
  std::sort(members_.begin(), members_.end(), [&](RingServer* a, RingServer* b) { return chosen.at(a) < chosen.at(b); });
  std::erase_if(waiting_, [&](const RingServer* ring) { return !chosen.count(const_cast<RingServer*>(ring)); });
  publish();
  changed_.notify_all();
}

bool Crew::all_wait() const { return members_.size() >= 2 && waiting_.size() == members_.size(); }

bool Crew::nobody_else_moves(uint64_t& seen, uint64_t& since) const {
  uint64_t records = 0;
  for (const RingServer* ring : members_)
    if (!waiting_.count(ring)) records += ring->records();
  const uint64_t now = monotonic_ns();
  if (records != seen || !since) {
    seen = records;
    since = now;
  }
  return now - since > kPatienceNs;
}

void Crew::sync(RingServer& ring) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (std::find(members_.begin(), members_.end(), &ring) == members_.end() || ring.is_held()) return ring.refresh();
  waiting_.insert(&ring);
  if (all_wait()) return together();
  ring.give_turn();
  const uint64_t round = round_;
  uint64_t seen = 0, since = 0;
  while (round_ == round && waiting_.count(&ring) && !ring.asked_to_stop() && !ring.is_held() && !nobody_else_moves(seen, since))
    changed_.wait_for(lock, kLook);
  if (round_ == round) waiting_.erase(&ring);
  lock.unlock();
  // Asked to stop or to stand: the sync point is still to come.
  if (!ring.asked_to_stop() && !ring.is_held()) ring.refresh();
}

// By the thread of the ring that came last. The others wait, so theirs are safe to use.
void Crew::together() {
  struct Released {
    Crew* self;
    ~Released() {
      self->waiting_.clear();
      self->round_++;
      self->publish();
      self->changed_.notify_all();
    }
  } released{this};
  if (validation_.state() == Validation::State::off) return;
  if (validation_.compares()) compare();
  if (validation_.merges()) merge();
  for (RingServer* ring : members_) ring->refresh();
  if (!validation_.next_window()) return;
  const Squashed done = run_in_lockstep(members_, kPatienceNs);
  executed_ += done.executed;
  skipped_ += done.skipped;
}

namespace {

struct Held {
  RingServer* ring = nullptr;
  uint64_t id = 0;
  StorageEntry* entry = nullptr;
};

// Calls `both` for each pair of storages of one identity that are not one already.
template <class Both>
void for_equal_ones(const std::vector<RingServer*>& members, Both both) {
  std::unordered_map<Identity, Held, IdentityHash> known;
  for (RingServer* ring : members)
    for (auto& [id, entry] : ring->state().storages) {
      if (!entry.identity.known() || entry.pending || !entry.storage.nbytes()) continue;
      const Held mine{ring, id, &entry};
      const auto [first, fresh] = known.try_emplace(entry.identity, mine);
      if (fresh || first->second.entry->storage.is_alias_of(entry.storage)) continue;
      if (!both(first->second, mine)) return;
    }
}

}  // namespace

void Crew::compare() {
  uint64_t pairs = 0;
  std::string wrong;
  for_equal_ones(members_, [&](const Held& a, const Held& b) {
    pairs++;
    if (same_bytes(a.entry->storage, b.entry->storage)) return true;
    wrong = "storages " + std::to_string(a.id) + " of rank " + std::to_string(rank_of(*a.ring)) + " and " +
            std::to_string(b.id) + " of rank " + std::to_string(rank_of(*b.ring)) + " (" +
            std::to_string(b.entry->storage.nbytes()) + " bytes, last written by " + b.ring->writer_of(*b.entry) +
            ") should be equal and are not, so each rank computes everything itself from here on; nothing was lost";
    return false;
  });
  validation_.compared(pairs, wrong);
  if (wrong.empty()) return;
  write_text(folder_ + kOffFile, wrong);
  shares_.store(false);
}

void Crew::merge() {
  for_equal_ones(members_, [&](const Held& a, const Held& b) {
    merged_bytes_ += b.entry->storage.nbytes();
    share(*a.entry, a.ring->state(), b.id, *b.entry, b.ring->state());
    return true;
  });
}

uint32_t Crew::rank_of(RingServer& ring) const {
  for (const auto& [id, rings] : groups_)
    if (const auto found = rings.find(&ring); found != rings.end()) return found->second;
  return 0;
}

void Crew::set_check_every(uint64_t windows) {
  std::lock_guard<std::mutex> lock(mutex_);
  validation_.set_every(windows);
}

void Crew::publish() {
  CrewStats now;
  switch (validation_.state()) {
    case Validation::State::unproven: now.state = members_.empty() ? "alone" : "unproven"; break;
    case Validation::State::proven: now.state = "proven"; break;
    case Validation::State::off: now.state = "off"; break;
  }
  now.why_off = validation_.why_off();
  now.executed = executed_;
  now.skipped = skipped_;
  now.windows = validation_.windows();
  now.comparisons = validation_.comparisons();
  now.merged_bytes = merged_bytes_;
  std::lock_guard<std::mutex> lock(stats_mutex_);
  stats_ = std::move(now);
}

CrewStats Crew::stats() const {
  std::lock_guard<std::mutex> lock(stats_mutex_);
  return stats_;
}

}  // namespace singularity
