// A ring among those that share: where it waits for the others, and what it does together with them.
#include <cinttypes>
#include <cstdio>

#include "device/src/ranks/crew.h"
#include "device/src/memory/memory.h"
#include "ring_server.h"

namespace singularity {

// Another ring's thread works for this one: what belongs to a thread is this ring's meanwhile.
class RingServer::Acting {
 public:
  explicit Acting(RingServer& ring) : before_(charged_to()), device_(named_device()) {
    charge_to(&ring.account_);
    name_device_in_errors(ring.file_.header()->virtual_device);
  }
  Acting(const Acting&) = delete;
  Acting& operator=(const Acting&) = delete;
  ~Acting() {
    charge_to(before_);
    name_device_in_errors(device_);
  }

 private:
  Account* before_;
  uint32_t device_;
};

void RingServer::tell_crew() {
  std::set<GroupId> now;
  for (const auto& [number, group] : state_.groups) {
    now.insert(group.id);
    if (!told_.count(group.id)) Crew::one().enter(*this, group.id, group.rank, folder_);
  }
  for (const GroupId& group : told_)
    if (!now.count(group)) Crew::one().leave(*this, group);
  told_ = std::move(now);
}

// True: the record may be executed. False: something happened meanwhile, look again.
bool RingServer::may_go_on(const RecordHeader& record, const char* body) {
  if (stray_) std::rethrow_exception(std::exchange(stray_, nullptr));
  if (!executor_.keeps_lineage() || executor_.lineage().tracks() != Crew::one().shares()) {
    executor_.keep_lineage();
    if (Crew::one().shares()) executor_.lineage().begin();
    else executor_.lineage().end();
  }
  if (!executor_.lineage().tracks()) return true;
  bool fresh = false;
  uint64_t pending = 0;
  if (static_cast<Kind>(record.kind) != Kind::op) return true;
  try {
    executor_.look(record, body);
    for (const Touch& touch : executor_.lineage().touches()) {
      pending = std::max(pending, touch.entry->pending);
      fresh |= touch.entry->fresh;
    }
  } catch (const c10::Error&) {  // it fails again when it is executed, and is answered there
    return true;
  }
  if (pending) wait_until_possible(NotYet{.ticket = pending});
  else if (fresh && (!is_held() || stand_if_due(true))) Crew::one().sync(*this);
  else if (!fresh) return true;
  return false;
}

void RingServer::give_turn() { Slicer::one().give(seat_); }

void RingServer::keep_lineage() {
  executor_.keep_lineage();
  executor_.lineage().begin();
}

std::map<uint64_t, std::string> RingServer::identities() const {
  std::map<uint64_t, std::string> all;
  for (const auto& [id, entry] : state_.storages) {
    char text[33];
    snprintf(text, sizeof(text), "%016" PRIx64 "%016" PRIx64, entry.identity.high, entry.identity.low);
    all[id] = text;
  }
  return all;
}

void RingServer::refresh() { state_.use_fresh(); }

std::string RingServer::writer_of(const StorageEntry& entry) const {
  return entry.writer < state_.ops.size() ? state_.ops[entry.writer].name : "a copy or a collective";
}

// ---- in lockstep

bool RingServer::next_record(RecordHeader& record, const char*& body) {
  if (!requests_.available(sizeof(record))) return false;
  const char* at = requests_.peek(sizeof(record), brief_);
  std::memcpy(&record, at, sizeof(record));
  check_readable(record);
  body = at + sizeof(record);
  return true;
}

namespace {

// At most, of a record that only asks.
uint64_t answer_bytes(const RecordHeader& record, const char* body) {
  constexpr uint64_t kShortAnswer = 8192;
  if (static_cast<Kind>(record.kind) != Kind::read) return kShortAnswer;
  Reader in(body, body + record.length - sizeof(record));
  in.get<uint64_t>();
  return std::min<uint64_t>(in.get<uint64_t>(), kMaxPayloadBytes);
}

}  // namespace

Ready RingServer::ready() {
  if (stop_.load() || is_held() || stray_) return Ready::end;
  try {
    if (state_.pending_seq && !flush_reply(false)) return Ready::end;
    RecordHeader record;
    const char* body;
    if (!next_record(record, body)) return Ready::nothing;
    if (record.seq <= state_.seq || record.seq == options_.give_up_seq) return Ready::end;
    if (only_asks(static_cast<Kind>(record.kind)) && !replies_.has_room(padded(sizeof(ReplyHeader) + answer_bytes(record, body))))
      return Ready::end;
    switch (static_cast<Kind>(record.kind)) {
      case Kind::op: {
        Lineage& lineage = executor_.lineage();
        if (!lineage.has_look(record)) executor_.look(record, body);
        for (const Touch& touch : lineage.touches())
          if (touch.entry->pending) return Ready::end;
        return Ready::call;
      }
      case Kind::write:
      case Kind::resize:
      case Kind::read: {
        const auto found = state_.storages.find(record.base);
        return found != state_.storages.end() && found->second.pending ? Ready::end : Ready::alone;
      }
      case Kind::define_op:
      case Kind::free_storages:
      case Kind::allocate:
      case Kind::seed:
      case Kind::get_rng:
      case Kind::set_rng:
      case Kind::event_record:
      case Kind::event_time:
      case Kind::settings: return Ready::alone;
      default: return Ready::end;
    }
  } catch (...) {  // its own thread will find out, and says so
    return Ready::end;
  }
}

Identity RingServer::call() { return executor_.lineage().call(); }

bool RingServer::asks() {
  RecordHeader record;
  const char* body;
  return next_record(record, body) && record.flags & kReply;
}

void RingServer::alone() {
  const Acting acting(*this);
  try {
    RecordHeader record;
    const char* body;
    if (!next_record(record, body) || step(record, body) == Step::stopped) return;
    caught_up_ = true;
    requests_.release(record.length);
  } catch (...) {
    stray_ = std::current_exception();
  }
}

void RingServer::own(const std::vector<RingServer*>& rings) {
  const Acting acting(*this);
  Lineage& lineage = executor_.lineage();
  const auto& touches = lineage.touches();
  try {
    for (size_t i = 0; i < touches.size(); i++) {
      if (!(touches[i].effect & kWrites)) continue;
      size_t mine = 0;
      for (RingServer* ring : rings)
        mine += ring->executor_.lineage().touches()[i].entry->storage.is_alias_of(touches[i].entry->storage);
      lineage.own(i, mine);
    }
    lineage.all_is_owned();
  } catch (...) {
    // No memory for it: executing tells the worker.
  }
}

bool RingServer::lead() {
  failed_.reset();
  led_ = executor_.lineage().touches();
  RecordHeader record;
  const char* body;
  if (next_record(record, body)) led_base_ = record.base;
  alone();
  return !failed_ && !stray_;
}

// This ring's record is the leader's: its storages get what the leader's got. It is journaled and
// answered as if it had been executed here.
void RingServer::follow(RingServer& leader, bool well) {
  if (leader.stray_) return;  // nothing is known of what it did
  const Acting acting(*this);
  try {
    RecordHeader record;
    const char* body;
    if (!next_record(record, body)) return;
    begin_record();
    append(record, body);
    if (well) {
      take(leader, record);
      if (record.flags & kReply && record.seq > file_.header()->replied_seq.load(std::memory_order_relaxed)) {
        make_reply(record.seq, Status::ok, leader.reply_.data(), leader.reply_.size());
        flush_reply(false);
      }
    } else {
      executor_.lineage().failed();
      apply(record, body, &*leader.failed_, false);
      // A part of its arguments may be changed in the leader's memory only: a replay would not know.
      if (journal_.is_open()) next_base_bytes_ = 0;
    }
    skipped_.fetch_add(1, std::memory_order_relaxed);
    finish(record);
    caught_up_ = true;
    requests_.release(record.length);
    new_base_if_due();
  } catch (...) {
    stray_ = std::current_exception();
  }
}

void RingServer::take(RingServer& leader, const RecordHeader& record) {
  Lineage& lineage = executor_.lineage();
  lineage.take_look(record);
  const auto& touches = lineage.touches();
  for (size_t i = 0; i < touches.size(); i++) {
    StorageEntry& entry = *touches[i].entry;
    entry.fresh = false;
    if (!(touches[i].effect & kWrites)) continue;
    StorageEntry& theirs = leader.state_.storages.at(leader.led_[i].id);
    share(theirs, leader.state_, touches[i].id, entry, state_);
    lineage.follow(i, theirs);
  }
  const size_t made = leader.executor_.last_made();
  state_.check_room(made);
  for (size_t i = 0; i < made; i++) {
    StorageEntry& theirs = leader.state_.storages.at(leader.led_base_ + i);
    const uint64_t id = record.base + i;
    StorageEntry& entry = state_.storages[id] = StorageEntry();
    share(theirs, leader.state_, id, entry, state_);
    entry.identity = theirs.identity;
    entry.writer = record.op;
  }
}

}  // namespace singularity
