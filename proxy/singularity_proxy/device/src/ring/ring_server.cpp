#include "ring_server.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "device/src/memory/memory.h"
#include "wire/bulk.h"

namespace singularity {
namespace {

// A new base is also due when rebuilding would take this long, or this many times the time that
// writing the last base took, whichever is longer: a bounded recovery for at most 1 % of the work.
constexpr uint64_t kMaxReplayNs = 10'000'000'000ull;
constexpr uint64_t kSnapshotShare = 100;
constexpr size_t kErrorReplyBytes = 8192;
// A small state's base is due when the journal is so many times longer: writing it costs less than fresh
// memory for a longer journal does.
constexpr uint64_t kSmallStateShare = 8;
constexpr uint64_t kShortJournal = 16 << 20;

// A base writes the whole state; the journal between two of them is so many times longer, as long as
// that is no more than so many times `journal_bytes`. So long may also a spare snapshot be, whose memory
// the next one takes: memory that is in use already is written several times faster than fresh memory.
constexpr uint64_t kBaseShare = 3;
constexpr uint64_t kMostKept = 4;

}  // namespace

// ---- serving

void RingServer::serve() {
  struct TurnGiven {
    Slicer::Seat& seat;
    ~TurnGiven() { Slicer::one().give(seat); }
  } given{seat_};
  busy_since_ = monotonic_ns();
  bool idle = false;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (state_.pending_seq && !flush_reply(true)) return;
    if (__builtin_expect(hold_.load(std::memory_order_relaxed), 0) && !stand_if_due(idle)) return;
    const bool waiting = !requests_.available(sizeof(RecordHeader));
    const char* at = requests_.peek(sizeof(RecordHeader), queue_);
    idle = !at;
    if (!at && stop_.load()) return;
    if (!at) {  // nothing to do but this
      take_results_in_turn();
      continue;
    }
    if (takes_turns_) {
      const bool waits = !seat_.has_turn();
      if (!take_turn()) return;
      if (waits && has_reached_targets()) {  // the barrier came meanwhile
        idle = true;
        continue;
      }
    }
    if (waiting) busy_since_ = monotonic_ns();
    RecordHeader record;
    std::memcpy(&record, at, sizeof(record));
    check_readable(record);
    if (record.seq > state_.seq) {
      if (__builtin_expect(in_crew_.load(std::memory_order_relaxed), 0) && !may_go_on(record, at + sizeof(record))) continue;
      if (step(record, at + sizeof(record)) == Step::stopped) return;
      caught_up_ = true;
    }
    requests_.release(record.length);
  }
}

// Nothing that the worker wrote is believed: not the length, not the number, not even the position.
void RingServer::check_readable(const RecordHeader& record) {
  if (record.length >= sizeof(record) && record.length % 8 == 0 && record.length <= kMaxRecordBytes &&
      requests_.available(record.length) && requests_.published() <= requests_.capacity() &&
      (record.seq == state_.seq + 1 || (record.seq <= state_.seq && !caught_up_)) && !guards_[1].hit())
    return;
  check_positions();
  throw StateError("the worker wrote a record that the device proxy cannot read (record " + std::to_string(record.seq) +
                   " after " + std::to_string(state_.seq) + "), so this ring is not served any more");
}

void RingServer::check_positions() const {
  for (const Guard& guard : guards_)
    if (guard.hit())
      throw StateError("the file of this ring was shortened while it was in use, so the ring is not served any more");
  if (requests_.published() > requests_.capacity() || replies_.unreleased() > replies_.capacity())
    throw StateError("the positions in this ring's header were changed to impossible ones, so the ring is not served any more");
}

// While a queue is empty or full.
bool RingServer::may_wait() {
  if (stop_.load()) return false;
  check_positions();
  if (takes_turns_) linger();
  return true;
}
bool RingServer::may_wait_for_record() {
  if (!may_wait()) return false;
  if (!takes_turns_) return true;
  if (has_reached_targets()) return false;  // it stands instead
  queue_.sleep_ms = seat_.has_turn() ? kLingerMs : collectives_.idle() ? kIdleSleepMs : kBlockedSleepMs;
  return !collectives_.result_is_there();
}

RingServer::Step RingServer::step(const RecordHeader& record, const char* body) {
  for (;;) {
    try {
      return try_step(record, body);
    } catch (const NotYet& what) {
      if (!wait_until_possible(what)) return Step::stopped;
    }
  }
}

RingServer::Step RingServer::try_step(const RecordHeader& record, const char* body) {
  if (only_asks(static_cast<Kind>(record.kind))) return answer(record, body);
  RecordHeader kept = record;
  if (static_cast<Kind>(record.kind) == Kind::event_record) {
    executor_.settle();
    stamp(kept, clock_ns());
  }
  begin_record();
  const bool collective = static_cast<Kind>(record.kind) == Kind::collective;
  if (__builtin_expect(collective, 0)) take_results();  // before the record is in the journal
  if (!write_long(kept, body)) {
    const bool appended = append(kept, body);
    // One that ended proxies before it was in the journal: a long write, or without a journal.
    Failure failure;
    const bool give_up = kept.seq == options_.give_up_seq;
    if (give_up) failure = given_up(kept);
    try {
      Executing executing(*this, kept);
      apply(kept, body, give_up ? &failure : nullptr, false);
    } catch (const NotYet&) {
      if (appended && journal_.is_open()) journal_.retract(kept);
      throw;
    }
  }
  finish(kept);
  if (__builtin_expect(kept.kind >= static_cast<uint16_t>(Kind::join_group) && kept.kind <= static_cast<uint16_t>(Kind::leave_group), 0))
    tell_crew();
  new_base_if_due();
  return Step::done;
}

// One that changes the state.
void RingServer::begin_record() {
  if (dirty_) return;
  dirty_ = true;
  if (!journal_.is_open() && have_snapshot_) {  // from here on it would rebuild an old state
    ::unlink(snapshot_path().c_str());
    have_snapshot_ = false;
  }
}

// A long copy into host memory: journal and storage get the bytes in one pass over them. When this
// process ends in the middle, the entry does not exist and the storage is gone, so the record never
// began. False: nothing was done, the record is one for the usual way.
bool RingServer::write_long(const RecordHeader& record, const char* body) {
  if (__builtin_expect(static_cast<Kind>(record.kind) != Kind::write || record.length < kLongCopy, 1)) return false;
  // One that ended proxies must be in the journal before it is tried again.
  if (!journal_.is_open() || record.flags || record.seq == options_.give_up_seq) return false;
  Reader in(body, body + record.length - sizeof(record));
  const auto offset = in.get<uint64_t>(), bytes = in.get<uint64_t>();
  char *used = nullptr, *kept = nullptr;
  try {
    if (bytes <= in.left()) used = state_.host_memory(record.base, offset, bytes);
  } catch (...) {  // memory that must be copied first, and is not there
  }
  if (!used || !journaled([&] { kept = journal_.open_write(record, offset, bytes); })) return false;
  {
    Executing executing(*this, record);
    const char* from = in.bytes(bytes);
    copy_twice(kept, used, state_.storage(record.base).nbytes() >= kBeyondCaches, from, bytes);
    if (executor_.keeps_lineage()) executor_.lineage().copied(state_.entry(record.base), offset, bytes, from);
  }
  journal_.close_write();
  records_since_base_++;
  journal_now_.store(journal_.bytes(), std::memory_order_relaxed);
  return true;
}

// A record that changes nothing: it is executed when its reply can be published, so that stopping
// before that is stopping in front of the record.
RingServer::Step RingServer::answer(const RecordHeader& record, const char* body) {
  if (static_cast<Kind>(record.kind) == Kind::sync && !collectives_.idle()) {
    take_results();
    if (!collectives_.idle()) throw NotYet{.ticket = collectives_.oldest()};
  }
  if (record.seq > file_.header()->replied_seq.load(std::memory_order_relaxed)) {
    try {
      if (record.seq == options_.give_up_seq) {
        const Failure failure = given_up(record);
        make_reply(record.seq, failure.status, failure.text.data(), failure.text.size());
      } else if (static_cast<Kind>(record.kind) == Kind::read) {
        if (!reply_bytes(record, body)) return Step::stopped;
      } else {
        reply_.clear();
        Executing executing(*this, record);
        executor_.execute(record, body, reply_);
        make_reply(record.seq, Status::ok, reply_.data(), reply_.size());
      }
    } catch (const NotYet&) {
      throw;
    } catch (...) {
      const Failure failure = describe(std::current_exception());
      make_reply(record.seq, failure.status, failure.text.data(), failure.text.size());
    }
    if (state_.pending_seq && !flush_reply(true)) {
      state_.pending_seq = 0;
      state_.pending_reply.clear();
      return Step::stopped;
    }
  }
  if (journal_.is_open()) journaled([&] { journal_.append_stub(record); });
  finish(record);
  return Step::done;
}

// Kind::read: straight from the storage into the queue. False when asked to stop before.
bool RingServer::reply_bytes(const RecordHeader& record, const char* body) {
  Reader in(body, body + record.length - sizeof(record));
  const auto offset = in.get<uint64_t>(), bytes = in.get<uint64_t>();
  const size_t length = padded(sizeof(ReplyHeader) + bytes);
  TORCH_CHECK(bytes <= kMaxPayloadBytes && length <= replies_.capacity(), "a copy of ", bytes,
              " bytes is too long for one reply");
  char* place = replies_.reserve(length, idle_);
  if (!place) return false;
  {
    Executing executing(*this, record);
    state_.read(record.base, offset, bytes, place + sizeof(ReplyHeader));
  }
  const ReplyHeader head{static_cast<uint32_t>(length), static_cast<uint32_t>(bytes), record.seq, 0, 0};
  std::memcpy(place, &head, sizeof(head));
  publish_memory();
  publish_reply(record.seq, length);
  return true;
}

// Executes a record that changes the state. `known` is its failure, when it is known not to repeat.
void RingServer::apply(const RecordHeader& record, const char* body, const Failure* known, bool replaying) {
  reply_.clear();
  Failure failure;
  const auto kind = static_cast<Kind>(record.kind);
  const bool of_group = kind >= Kind::join_group && kind <= Kind::collective;
  bool failed = known != nullptr;
  if (known) {
    failure = *known;
  } else {
    try {
      if (__builtin_expect(of_group, 0))
        collectives_.execute(record, body, replaying);
      else
        executor_.execute(record, body, reply_);
      if (static_cast<Kind>(record.kind) == Kind::define_op) remember_name(record);
    } catch (const NotYet&) {
      throw;
    } catch (...) {
      failure = describe(std::current_exception());
      failed = true;
    }
    // What failed like this before has a mark in the journal, so this succeeded: without it the state
    // would be another one, and nobody would know.
    if (failed && !failure.repeatable && replaying && record.seq <= already_done_)
      throw Refused("the device state cannot be rebuilt on this device now, because " + executor_.name_of(record) +
                    " succeeded before and fails here (" + failure.text +
                    "); the saved state was kept: try again, or move the session to another device");
  }
  if (failed) failed_ = failure;
  if (failed && !failure.repeatable && !replaying && journal_.is_open()) {
    journaled([&] { journal_.append_failed(record.seq, static_cast<uint32_t>(failure.status), failure.text); });
    // It may have changed a part of its arguments: only a new base can repeat that.
    if (journal_.is_open() && (record.flags & kNoOutputs)) next_base_bytes_ = 0;
  }
  if (failed && kind == Kind::collective) tell_others(record, body, failure.text);
  if (of_group) tell_of_groups();
  if (record.flags & kReply) {
    if (record.seq <= file_.header()->replied_seq.load(std::memory_order_relaxed)) return;
    if (failed)
      make_reply(record.seq, failure.status, failure.text.data(), failure.text.size());
    else
      make_reply(record.seq, Status::ok, reply_.data(), reply_.size());
    if (!replaying) flush_reply(false);
  } else if (failed) {
    const bool first = failure.origin.empty();
    const std::string origin = first ? executor_.name_of(record) + ": " + failure.text : failure.origin;
    executor_.mark_failed(record, origin);
    // Whoever uses a result that was never made learns of the first failure only.
    if (first && (!replaying || record.seq > already_done_)) publish_error(record, failure.status, origin);
  }
}

// The failure of a record that would only end this process too.
Failure RingServer::given_up(const RecordHeader& record) const {
  Failure failure;
  failure.text = "the device proxy ended " + std::to_string(options_.deaths) + " times while it executed " +
                 executor_.name_of(record) +
                 " (a fault in that operation, or no host memory left for it), so this call was given up; "
                 "everything else is as it was before it: avoid this operation";
  failure.repeatable = false;
  return failure;
}

void RingServer::remember_name(const RecordHeader& record) {
  const std::string name = executor_.name_of(RecordHeader{0, static_cast<uint16_t>(Kind::op), 0, 0, record.op, 0, 0});
  std::lock_guard<std::mutex> lock(mutex_);
  if (names_.size() <= record.op) names_.resize(record.op + 1);
  names_[record.op] = name;
}

void RingServer::finish(const RecordHeader& record) {
  RingHeader* h = file_.header();
  state_.seq = record.seq;
  records_.store(records_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  operations_.store(executor_.operations(), std::memory_order_relaxed);
  // In a row of records only now and then: asking for the time costs as much as a small record, and the
  // figures of memory as much on a cpu device, more on others. But a worker that wants a new peak gets
  // it at once, and one that had a reply has them since before it.
  const bool answered = record.flags & kReply;
  const bool look = answered || record.seq % 16 == 0 || !requests_.available(record.length + sizeof(record));
  if (!answered && state_.device.is_cpu() &&
      (look || !h->memory_peak.load(std::memory_order_relaxed) || !h->ring_memory_peak.load(std::memory_order_relaxed)))
    publish_memory();
  if (look) {
    const uint64_t now = monotonic_ns();
    busy_ns_ += now - busy_since_;
    busy_since_ = now;
    h->last_record_ns.store(now, std::memory_order_relaxed);
  }
  if (record.seq > h->done_seq.load(std::memory_order_relaxed)) h->done_seq.store(record.seq, std::memory_order_release);
}

void RingServer::publish_error(const RecordHeader& record, Status status, const std::string& text) {
  RingHeader* h = file_.header();
  if (h->error_seq.load(std::memory_order_acquire)) return;  // the first one is still unread
  const size_t n = std::min(text.size(), kFailureBytes - 1);
  std::memcpy(h->failure, text.data(), n);
  h->failure[n] = '\0';
  h->error_status.store(static_cast<uint32_t>(status), std::memory_order_relaxed);
  h->error_seq.store(record.seq, std::memory_order_release);
}

void RingServer::publish_memory() {
  RingHeader* h = file_.header();
  Memory memory = memory_of(state_.device);
  h->memory_current.store(memory.current, std::memory_order_relaxed);
  RingMemory mine = ring_memory(state_.device, account_);
  h->ring_memory_current.store(mine.current, std::memory_order_relaxed);
  h->ring_memory_reserved.store(mine.reserved, std::memory_order_relaxed);
  uint64_t known = h->memory_peak.load(std::memory_order_relaxed);
  for (int i = 0; i < 16; i++) {  // a worker that stores into it all the time holds nobody
    if (known == 0) {  // the worker asked for a new one
      reset_peak(state_.device);
      memory = memory_of(state_.device);
    }
    const uint64_t peak = std::max<uint64_t>(memory.peak, 1);
    if (known >= peak || h->memory_peak.compare_exchange_weak(known, peak)) break;
  }
  known = h->ring_memory_peak.load(std::memory_order_relaxed);
  for (int i = 0; i < 16; i++) {
    if (known == 0) {  // the worker asked for a new one
      account_.peak.store(account_.current.load());
      if (!state_.device.is_cpu()) reset_peak(state_.device);
      mine = ring_memory(state_.device, account_);
    }
    const uint64_t peak = std::max<uint64_t>(mine.peak, 1);
    if (known >= peak || h->ring_memory_peak.compare_exchange_weak(known, peak)) return;
  }
}

void RingServer::beat() {
  if (attached_.load(std::memory_order_acquire))
    file_.header()->heartbeat_ns.store(monotonic_ns(), std::memory_order_relaxed);
}

void RingServer::gauge() {
  if (attached_.load(std::memory_order_acquire)) publish_memory();
}

// ---- replies

void RingServer::make_reply(uint64_t seq, Status status, const char* payload, size_t bytes) {
  std::string too_long;
  const size_t room = replies_.capacity() - sizeof(ReplyHeader);
  if (status != Status::ok) {
    bytes = std::min({bytes, room, kErrorReplyBytes});
  } else if (bytes > room) {
    status = Status::runtime_error;
    too_long = "the description of the results is too long for one reply of the device proxy";
    payload = too_long.data();
    bytes = std::min(too_long.size(), room);
  }
  const ReplyHeader head{static_cast<uint32_t>(padded(sizeof(ReplyHeader) + bytes)), static_cast<uint32_t>(bytes), seq,
                         static_cast<uint32_t>(status), 0};
  state_.pending_reply.assign(reinterpret_cast<const char*>(&head), sizeof(head));
  state_.pending_reply.append(payload, bytes);
  state_.pending_reply.resize(head.length, '\0');
  state_.pending_seq = seq;
}

// False when there is no room (or, when waiting, the thread was asked to stop first): the reply then
// stays a part of the state.
bool RingServer::flush_reply(bool wait) {
  publish_memory();
  const size_t n = state_.pending_reply.size();
  char* place = replies_.reserve(n, wait ? idle_ : brief_);
  if (!place) return false;
  std::memcpy(place, state_.pending_reply.data(), n);
  publish_reply(state_.pending_seq, n);
  state_.pending_seq = 0;
  state_.pending_reply.clear();
  return true;
}

void RingServer::publish_reply(uint64_t seq, size_t bytes) {
  RingHeader* h = file_.header();
  h->reply_intent_head.store(replies_.position() + bytes, std::memory_order_release);
  h->reply_intent_seq.store(seq, std::memory_order_release);
  replies_.advance(bytes);
  replies_.publish();
  h->replied_seq.store(seq, std::memory_order_release);
}

// ---- the journal

bool RingServer::append(const RecordHeader& record, const char* body) {
  if (!journal_.is_open() || !journaled([&] { journal_.append(record, body); })) return false;
  records_since_base_++;
  journal_now_.store(journal_.bytes(), std::memory_order_relaxed);
  return true;
}

// The user's work goes on; only a kill of this proxy would lose it from now on. What is on file would
// rebuild an old state, so it goes (and makes room).
void RingServer::switch_recovery_off(const std::string& why) {
  journal_.remove();
  drop_spare();
  journal_now_.store(0, std::memory_order_relaxed);
  recovery_.store(false, std::memory_order_relaxed);
  if (dirty_) {
    ::unlink(snapshot_path().c_str());
    have_snapshot_ = false;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  recovery_off_ = why;
}

void RingServer::new_base_if_due() {
  if (!journal_.is_open()) return;
  const bool slow = busy_ns_ > std::max(kMaxReplayNs, kSnapshotShare * snapshot_ns_);
  const bool many = options_.journal_records && records_since_base_ >= options_.journal_records;
  if (__builtin_expect(journal_.bytes() <= next_base_bytes_ && !slow && !many, 1)) return;
  if (!collectives_.durable()) return;  // it would be without what is pending: soon
  if (!slow && !many && next_base_bytes_) {
    const uint64_t limit = wanted_length();
    if (journal_.bytes() <= limit) {
      plan(limit);
      return;
    }
  }
  try {
    new_base();
  } catch (const FileError&) {
    // No room for it: the old base and the journal still rebuild everything. Try again later.
    plan(2 * std::max<uint64_t>(journal_.bytes(), options_.journal_bytes));
    busy_ns_ = 0;
    records_since_base_ = 0;
  }
}

uint64_t RingServer::most_kept() const {
  const uint64_t most = options_.journal_bytes * kMostKept;
  return most / kMostKept == options_.journal_bytes ? most : UINT64_MAX;
}

// Of the journal when the next base is due, if nothing else asks for one.
uint64_t RingServer::wanted_length() const {
  const uint64_t state = state_.bytes();
  if (state < options_.journal_bytes / kSmallStateShare)
    return std::min(options_.journal_bytes, std::max(kShortJournal, kSmallStateShare * state));
  return std::max({options_.journal_bytes, state, std::min(kBaseShare * state, most_kept())});
}

bool RingServer::drop_spare() { return ::unlink(NewFile::temporary_of(snapshot_path()).c_str()) == 0; }

void RingServer::plan(uint64_t bytes) {
  next_base_bytes_ = bytes;
  journal_.plan(bytes);
}

void RingServer::new_base() {
  const uint64_t start = monotonic_ns();
  {
    Snapshot snapshot(state_, clock_ns(), snapshot_path(), {.reuse = true});
    snapshot.commit(most_kept());
  }
  have_snapshot_ = true;
  dirty_ = false;
  snapshots_.fetch_add(1, std::memory_order_relaxed);
  snapshot_ns_ = monotonic_ns() - start;
  busy_ns_ = 0;
  records_since_base_ = 0;
  plan(wanted_length());
  try {
    journal_.restart(state_.seq);
  } catch (const FileError& error) {
    switch_recovery_off(error.text);
  }
  journal_now_.store(journal_.bytes(), std::memory_order_relaxed);
}

}  // namespace singularity
