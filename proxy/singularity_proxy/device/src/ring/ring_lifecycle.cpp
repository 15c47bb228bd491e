// How a ring's thread begins, stops between records, and ends.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <torch/version.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "device/src/ranks/crew.h"
#include "guard.h"
#include "heart.h"
#include "device/src/memory/memory.h"
#include "ring_server.h"

namespace singularity {
namespace {

c10::Device device_of(const std::string& name) {
  c10::Device device(name);
  if (!device.is_cpu() && !device.has_index()) device.set_index(0);
  return device.is_cpu() ? c10::Device(c10::kCPU) : device;
}

std::string folder_of(const std::string& path) {
  const size_t end = path.rfind('/');
  return end == std::string::npos ? "." : path.substr(0, end);
}

}  // namespace

RingServer::RingServer(RingOptions options)
    : options_(std::move(options)), state_(device_of(options_.device)), executor_(state_),
      collectives_(state_, executor_) {
  state_.account = &account_;
  idle_.sleep_ms = kIdleSleepMs;
  idle_.poll = [](void* self) { return static_cast<RingServer*>(self)->may_wait(); };
  idle_.context = this;
  queue_ = idle_;
  queue_.poll = [](void* self) { return static_cast<RingServer*>(self)->may_wait_for_record(); };
  brief_.spin_ns = 0;
  brief_.poll = [](void*) { return false; };
}

RingServer::~RingServer() { stop(false); }

RingServer::Started RingServer::start() {
  {
    const SignalsBlocked blocked;  // they belong to Python's main thread
    thread_ = std::thread(&RingServer::run, this);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return started_; });
  if (start_error_) {
    lock.unlock();
    thread_.join();
    std::rethrow_exception(start_error_);
  }
  return start_result_;
}

void RingServer::run() {
  pthread_setname_np(pthread_self(), "ring");
  struct Ended {  // whatever happens below, nobody waits for this thread for ever
    RingServer* self;
    ~Ended() {
      Crew::one().leave(*self);
      std::lock_guard<std::mutex> lock(self->mutex_);
      self->started_ = self->ended_ = true;
      self->changed_.notify_all();
    }
  } ended{this};
  charge_to(&account_);
  c10::InferenceMode inference;
  c10::OptionalDeviceGuard on_device;
  try {
    if (!state_.device.is_cpu()) {
      at::globalContext().lazyInitDevice(state_.device.type());
      on_device.reset_device(state_.device);
    }
    at::set_num_threads(std::max(options_.threads, 1));  // of this thread: OpenMP keeps one per thread
    start_result_ = rebuild();
    attach();
  } catch (...) {
    start_error_ = std::current_exception();
    give_up();
    return;
  }
  Heart::one().add(this);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    started_ = true;
  }
  changed_.notify_all();
  for (;;) {
    try {
      serve();
    } catch (...) {
      break_down(describe(std::current_exception()).text);
    }
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      if (stop_.load()) {
        Swap::one().leave(state_);  // whoever paused this ring uses its storages
        paused_ = true;
        changed_.notify_all();
      }
      changed_.wait(lock, [&] { return ending_ || stop_.load() != paused_; });
      if (ending_) return;
      if (stop_.load()) continue;
      paused_ = false;
      if (in_crew_.load()) Swap::one().enter(state_, file_.header()->virtual_device);
      if (broken_.empty()) break;  // a broken ring is not served again, it only waits for its end
    }
  }
}

// Whoever still holds this object after a failed start, the next attempt finds the ring free.
void RingServer::give_up() {
  journal_.close();
  state_.storages.clear();
  state_.generators.clear();
  lock_.close();
  guards_.clear();
  file_.unmap();
}

void RingServer::break_down(const std::string& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_ = why;  // first: whoever sees the state may ask for the reason
  }
  RingHeader* h = file_.header();
  const size_t n = std::min(why.size(), kFailureBytes - 1);
  std::memcpy(h->failure, why.data(), n);
  h->failure[n] = '\0';
  h->state.store(static_cast<uint32_t>(RingState::failed));
  futex_wake(h->state, INT_MAX);
}

RingServer::Started RingServer::rebuild() {
  file_.open(options_.path);
  guards_.clear();
  guards_.emplace_back(file_.header(), kHeaderBytes);
  guards_.emplace_back(file_.request_base(), 2 * file_.request_bytes());
  guards_.emplace_back(file_.reply_base(), 2 * file_.reply_bytes());
  RingHeader* h = file_.header();
  lock_ = Descriptor(::open(options_.path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (lock_.get() < 0) throw FileError(errno, "cannot open the ring", options_.path);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB))
    throw Refused("another device proxy still serves this ring; end it first");
  const auto ring_state = static_cast<RingState>(h->state.load());
  if (ring_state == RingState::failed || ring_state == RingState::closed)
    throw Refused(ring_state == RingState::closed ? "this ring is closed: its worker has ended"
                                                  : "this ring has failed: " + std::string(h->failure, strnlen(h->failure, kFailureBytes)));
  if (options_.epoch < h->epoch.load())
    throw Stale("this device belongs to an older lease of the session (epoch " + std::to_string(options_.epoch) +
                "; the ring is at " + std::to_string(h->epoch.load()) + ")");
  name_device_in_errors(h->virtual_device);
  if (const std::string version = text_of(h->worker_torch); !version.empty()) state_.worker_torch = version;
  requests_.bind(file_.request_words(), file_.request_base(), file_.request_bytes());
  replies_.bind(file_.reply_words(), file_.reply_base(), file_.reply_bytes());
  requests_.available(1);
  check_positions();
  // Was the reply that the last proxy was about to publish published?
  if (h->reply_intent_seq.load() > h->replied_seq.load() && h->reply.head.load() == h->reply_intent_head.load())
    h->replied_seq.store(h->reply_intent_seq.load());
  already_done_ = h->done_seq.load();
  h->executing_seq.store(0);

  Started started;
  Unlimited unlimited;
  have_snapshot_ = snapshot_exists(snapshot_path());
  attached_ns_ = monotonic_ns();
  if (have_snapshot_) {
    const uint64_t used = memory_of(state_.device).current;
    const uint64_t room = options_.capacity ? std::max<uint64_t>(options_.capacity - std::min(used, options_.capacity), 1) : 0;
    const Restored restored = load_snapshot(state_, snapshot_path(), room);
    started.restored_bytes = restored.bytes;
    clock_base_ = restored.clock_ns;
    if (state_.pending_seq && state_.pending_seq <= h->replied_seq.load()) {
      state_.pending_seq = 0;
      state_.pending_reply.clear();
    }
  }
  folder_ = folder_of(options_.path);
  collectives_.live_in(folder_);
  collectives_.arrive();
  for (size_t i = 0; i < state_.ops.size(); i++) remember_name(RecordHeader{0, 0, 0, 0, static_cast<uint32_t>(i), 0, 0});
  limit_account(state_.memory_limit);
  replay(started);
  tell_of_groups();
  if (state_.seq < already_done_)
    throw StateError("the device state cannot be rebuilt: record " + std::to_string(already_done_) +
                     " of the ring was executed, but what is saved ends at record " + std::to_string(state_.seq) +
                     (have_snapshot_ || started.replayed_records ? "" : " (nothing was saved: recovery was off)"));
  if (options_.give_up_seq == state_.seq + 1 && requests_.available(sizeof(RecordHeader))) {
    RecordHeader first;  // of a record that only asks: such a one is not in the journal
    std::memcpy(&first, requests_.peek(sizeof(first), brief_), sizeof(first));
    if (first.seq == options_.give_up_seq) started.given_up = executor_.name_of(first);
  }
  snapshot_ns_ = monotonic_ns() - attached_ns_;
  plan(wanted_length());
  attached_ns_ = monotonic_ns();
  tell_crew();
  return started;
}

void RingServer::replay(Started& started) {
  const uint64_t base = state_.seq;
  const bool wanted = options_.journal_bytes > 0;
  if (!wanted && ::access(journal_path().c_str(), F_OK)) return;
  try {
    journal_.open(journal_path(), state_.seq);
  } catch (const FileError& error) {
    if (error.number != ENOSPC && error.number != EDQUOT) throw;
    if (::access(journal_path().c_str(), F_OK) == 0 && state_.seq < already_done_) throw;  // it is needed
    switch_recovery_off(error.text);
    return;
  }
  uint64_t position = 0;
  RecordHeader following{};
  const char* next = journal_.next(position, following);
  while (next) {
    const RecordHeader record = following;
    const char* body = next;
    next = journal_.next(position, following);
    if (record.kind == kResultBytes || record.kind == kResult) {
      if (record.seq == state_.seq) replay_result(record, body);
      continue;
    }
    if (record.seq <= state_.seq) continue;
    if (record.seq != state_.seq + 1)
      throw StateError("the journal goes on with record " + std::to_string(record.seq) + " after record " +
                       std::to_string(state_.seq) + ", so the device state cannot be rebuilt");
    if (!only_asks(static_cast<Kind>(record.kind))) {
      Failure failure;
      const bool failed = next && following.kind == kFailedMark && following.seq == record.seq;
      if (failed) {
        Reader in(next, next + following.length - sizeof(following));
        failure.status = static_cast<Status>(in.get<uint32_t>());
        const auto n = in.get<uint32_t>();
        failure.text.assign(in.bytes(n), n);
        failure.repeatable = false;
      }
      if (static_cast<Kind>(record.kind) == Kind::event_record) clock_base_ = std::max(clock_base_, stamp_of(record));
      const bool give_up = !failed && record.seq == options_.give_up_seq;
      if (give_up && (record.seq <= already_done_ || next))
        throw StateError("the device state cannot be rebuilt: the device proxy ended " + std::to_string(options_.deaths) +
                         " times while it repeated " + executor_.name_of(record) + " (record " +
                         std::to_string(record.seq) +
                         "); variables in host memory were kept: restart the kernel, and avoid that operation");
      if (give_up) failure = given_up(record);
      try {
        Executing executing(*this, record);
        apply(record, body, failed || give_up ? &failure : nullptr, true);
      } catch (const NotYet&) {  // the last proxy ended before it took this entry back
        if (next) throw StateError("the journal uses the result of a collective before it has it, so the device state cannot be rebuilt");
        journal_.retract(record);
        break;
      }
      dirty_ = true;
      started.replayed_records++;
      records_since_base_++;
      if (give_up) {  // the last entry: its mark goes right behind it
        started.given_up = executor_.name_of(record);
        const uint32_t status = static_cast<uint32_t>(failure.status);
        journal_.append_failed(record.seq, status, failure.text);
      }
    }
    state_.seq = record.seq;
    RingHeader* h = file_.header();
    if (record.seq > h->done_seq.load()) h->done_seq.store(record.seq);
  }
  if (!wanted) {
    journal_.remove();
    drop_spare();
    if (dirty_ && have_snapshot_) {
      ::unlink(snapshot_path().c_str());
      have_snapshot_ = false;
    }
    return;
  }
  // Only when nothing went by: the numbers of records that changed nothing are in no snapshot.
  if (state_.seq == base && !dirty_ && journal_.bytes()) journal_.restart(base);
  recovery_.store(true);
  journal_now_.store(journal_.bytes());
}

// Stores `to` unless the state is one that `may_change` keeps. A worker that changes the word all the
// time cannot hold this thread: it gives up then.
template <class MayChange>
bool RingServer::move_state(RingState to, MayChange may_change) {
  RingHeader* h = file_.header();
  uint32_t now = h->state.load();
  for (int i = 0; i < 1000 && may_change(static_cast<RingState>(now)); i++)
    if (h->state.compare_exchange_weak(now, static_cast<uint32_t>(to))) return true;
  return false;
}

void RingServer::publish_facts() {
  RingHeader* h = file_.header();
  h->device_memory.store(facts_.memory);
  h->cudnn_version.store(facts_.cudnn_version);
  h->capability.store(facts_.capability);
  h->multiprocessors.store(facts_.multiprocessors);
  put_text(h->device_name, facts_.name);
  put_text(h->proxy_torch, TORCH_VERSION);
}

void RingServer::attach() {
  RingHeader* h = file_.header();
  h->device_type.store(state_.device.is_cpu() ? 0 : 1);
  h->memory_capacity.store(options_.capacity);
  h->epoch.store(options_.epoch);
  h->heartbeat_ns.store(monotonic_ns());
  publish_memory();
  publish_facts();
  h->generation.fetch_add(1);
  attached_.store(true, std::memory_order_release);
  if (!move_state(RingState::attached, [](RingState now) { return now != RingState::closed && now != RingState::failed; })) {
    attached_.store(false);
    throw Refused("this ring was closed while its state was restored");
  }
  futex_wake(h->state, INT_MAX);
}

void RingServer::detach() {
  attached_.store(false);
  RingHeader* h = file_.header();
  move_state(RingState::detached, [](RingState now) { return now == RingState::attached || now == RingState::moving; });
  futex_wake(h->state, INT_MAX);
  lock_.close();  // from here on another proxy may attach
}

void RingServer::request_pause() {
  stop_.store(true);
  wake_idle();
  wake_blocked();
  changed_.notify_all();
}

void RingServer::wake_idle() {
  if (!file_.is_open()) return;  // before the start
  for (std::atomic<uint32_t>* word : {&file_.header()->request.consumer_sleeps, &file_.header()->reply.producer_sleeps})
    if (word->exchange(0)) futex_wake(*word);
}

void RingServer::wait_paused() {
  std::unique_lock<std::mutex> lock(mutex_);
  // The wake-up of a thread that was just about to sleep can be lost: ask again.
  while (!changed_.wait_for(lock, std::chrono::microseconds(200), [&] { return paused_ || ended_; })) {
    lock.unlock();
    request_pause();
    lock.lock();
  }
}

void RingServer::resume() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_.store(false);
  }
  changed_.notify_all();
}

uint64_t RingServer::prepare_park() {
  prepared_.reset();
  keep_journal_ = !collectives_.durable();
  if (keep_journal_) {  // what is saved already and the journal rebuild it all
    if (!journal_.is_open())
      throw Refused("this ring waits for other ranks in a collective and keeps no journal, so it cannot be parked now; "
                    "nothing was changed: try again");
    return state_.bytes();
  }
  if (!dirty_ && (have_snapshot_ || state_.seq == 0)) return state_.bytes();
  prepared_ = std::make_unique<Snapshot>(state_, clock_ns(), snapshot_path(), Snapshot::Options{.reuse = true});
  return prepared_->bytes();
}

void RingServer::commit_park() {
  if (prepared_) {
    prepared_->commit();
    prepared_.reset();
    have_snapshot_ = true;
    dirty_ = false;
    snapshots_.fetch_add(1);
  } else if (have_snapshot_ && !keep_journal_) {
    advance_snapshot(snapshot_path(), state_.seq);
  }
}

void RingServer::leave() {
  if (keep_journal_) journal_.close();
  else journal_.remove();
  drop_spare();
  collectives_.depart(RankState::away);
  Crew::one().leave(*this);
  recovery_.store(false);
  detach();
}

void RingServer::step_aside() {
  if (dirty_ && !journal_.is_open())
    throw Refused("this ring keeps no journal, so its device can be parked by a copy only");
  drop_spare();
  collectives_.set_aside(true);
  attached_.store(false);
  move_state(RingState::detached, [](RingState now) { return now == RingState::attached || now == RingState::moving; });
  futex_wake(file_.header()->state, INT_MAX);
}

void RingServer::come_back(uint64_t epoch) {
  options_.epoch = std::max(options_.epoch, epoch);
  attach();
  collectives_.set_aside(false);
}

void RingServer::abandon_park() { prepared_.reset(); }

uint64_t RingServer::save_copy(const std::string& path, bool durable) {
  if (!collectives_.durable())
    throw Refused("a rank waits for others in a collective (" + waiting_text() +
                  "), so no copy of its device was made; stop all ranks at a common place first (the barrier)");
  Snapshot snapshot(state_, clock_ns(), path, {.durable = durable});
  snapshot.commit();
  return snapshot.bytes();
}

void RingServer::stop(bool forget) {
  if (thread_.joinable()) {
    Heart::one().remove(this);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (file_.is_open()) {
      request_pause();
      wait_paused();
    }
    thread_.join();
  }
  if (forget && file_.is_open()) {
    collectives_.depart(RankState::died);
    journal_.remove();
    drop_spare();
    ::unlink(snapshot_path().c_str());
    detach();
  }
  prepared_.reset();
  journal_.close();
  lock_.close();
}

RingStats RingServer::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  RingHeader* h = file_.header();
  std::string running;
  if (h->executing_seq.load(std::memory_order_acquire)) {
    const uint64_t what = running_.load(std::memory_order_relaxed);
    const auto op = static_cast<uint32_t>(what);
    RecordHeader record{};
    record.kind = static_cast<uint16_t>(what >> 32);
    if (static_cast<Kind>(record.kind) != Kind::op)
      running = executor_.name_of(record);
    else if (op < names_.size())
      running = names_[op];
  }
  return {records_.load(), operations_.load(), h->last_record_ns.load(), h->done_seq.load(), journal_now_.load(),
          snapshots_.load(), h->worker_waiting.load() != 0, recovery_.load(), recovery_off_, broken_, running,
          activity_.load(), waits_for_, h->virtual_device, groups_, stands_.load(), pending_.load(), blocked_.load(), sync_points_.load(),
          seat_.waited_ns(), skipped_.load()};
}

}  // namespace singularity
