// One ring, served by one native thread: executes its records in order, answers, keeps the journal.
//
// The thread stops between two records when asked (`pause`); then the state can be saved, and the
// thread either goes on (`resume`) or ends. Whatever kills the process in between, `start` in another
// one rebuilds the same state from `<prefix>.snap`, `<prefix>.journal` and the ring:
//   * a record is in the journal before it is executed, and leaves the ring after its reply is there;
//     so a record in both is skipped in the ring, a record in neither never began (a long copy into
//     host memory is journaled when it is done: what it fills ends with the process);
//   * the reply queue is the worker's truth about replies: `replied_seq` (and, for the instant between
//     publishing and storing it, the intent words) says which one was the last.
#pragma once

#include <cerrno>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "device/src/memory/capacity.h"
#include "device/src/ranks/collectives.h"
#include "device/src/ranks/lockstep.h"
#include "device/src/exec/errors.h"
#include "device/src/exec/executor.h"
#include "device/src/recovery/files.h"
#include "guard.h"
#include "device/src/recovery/journal.h"
#include "slicer.h"
#include "device/src/recovery/snapshot.h"
#include "device/src/memory/state.h"
#include "wire/ring.h"

namespace singularity {

// A stop request wakes a sleeping thread, and so do the worker and other ranks: these only bound lost
// wake-ups, and how late a timeout is noticed.
constexpr int kIdleSleepMs = 100, kBlockedSleepMs = 20;
constexpr int kLingerMs = 3;  // with an empty queue, before the turn is given to another rank

struct RingOptions {
  std::string path;           // of the ring file
  std::string prefix;         // of its .snap and .journal
  std::string device;         // "cpu" or "cuda:0"
  uint64_t journal_bytes = 0; // 0: a killed proxy loses the state
  uint64_t journal_records = 0;  // so many records, a new snapshot; 0: only the bytes count
  uint64_t give_up_seq = 0;   // this record ended `deaths` proxies: it fails instead of being executed
  uint64_t deaths = 0;
  uint64_t epoch = 0;
  uint64_t capacity = 0;      // bytes, told to the worker; 0: no limit
  int threads = 1;
};

// What the physical device is, as its own torch tells; 0 and "" where it does not.
struct DeviceFacts {
  std::string name;
  uint64_t memory = 0, cudnn_version = 0;      // bytes; as torch.backends.cudnn.version()
  uint32_t capability = 0, multiprocessors = 0;  // major << 16 | minor
};

// The ring was granted to someone else meanwhile.
struct Stale : Refused {
  using Refused::Refused;
};

// What a ring's thread is doing, as others may look at it.
enum class Activity : uint32_t {
  idle = 0,     // its queue is empty
  running = 1,
  blocked = 2,  // the next record needs the result of a collective that is not there
  waiting = 3,  // for its turn of the device
};

struct RingStats {
  uint64_t records, operations, last_record_ns, done_seq, journal_bytes, snapshots;
  bool worker_waiting, recovery;
  std::string recovery_off;   // why there is none, though it was asked for
  std::string broken;         // why it stopped for ever
  std::string running;        // what it executes now ("aten::mm"); empty between records
  Activity activity;
  std::string waits_for;      // Activity::blocked: a sentence
  uint32_t virtual_device;
  std::vector<GroupStats> groups;
  bool stands;                // for the barrier
  uint64_t pending;           // collectives whose results are not taken
  uint64_t blocked;           // how often it waited for one
  uint64_t sync_points;       // how often it used results that nothing had used before
  uint64_t turn_wait_ns;      // how long it waited for its turn
  uint64_t skipped;           // calls that another rank made for it
};


class RingServer {
 public:
  explicit RingServer(RingOptions options);
  RingServer(const RingServer&) = delete;
  RingServer& operator=(const RingServer&) = delete;
  ~RingServer();

  void set_facts(DeviceFacts facts) { facts_ = std::move(facts); }  // before the start
  // Rebuilds the state, then serves. Throws FileError, StateError, Refused, Stale; nothing was
  // changed then. Returns when the ring is attached.
  struct Started {
    uint64_t restored_bytes = 0, replayed_records = 0;
    std::string given_up;  // name of the operation that was given up (RingOptions::give_up_seq)
  };
  Started start();

  void request_pause();   // returns at once
  void wait_paused();     // until the thread is between two records
  void resume();

  // ---- the barrier, at any time
  // Stops when each group has at least `targets` (Collectives::reached): where the last result is used,
  // where the queue is empty, or after `grace_ns`. Higher targets let it go on. Rings without groups do
  // not stop.
  void hold(std::map<std::string, uint64_t> targets, uint64_t grace_ns);
  void let_go();

  // ---- only while paused
  // Writes the state beside its place; nothing when it is unchanged. Returns the bytes of the state's
  // file. Throws FileError; then everything is as before.
  uint64_t prepare_park();
  void commit_park();     // the snapshot is in its place; serving on is still possible
  void leave();           // the journal is gone, the ring is detached
  void abandon_park();
  // Takes every result that is there, so that fewer are pending. For all rings, before one is saved.
  void settle_collectives();
  // The device's memory stays where it is, for the driver to take away: the ring is detached but kept.
  // Throws Refused when a proxy that then dies could not be replaced.
  void step_aside();
  void come_back(uint64_t epoch);  // as if attached again; then resume
  uint64_t save_copy(const std::string& path, bool durable);  // elsewhere

  // Ends the thread and frees the state. `forget` also deletes the files of the state.
  void stop(bool forget);

  RingStats stats() const;

  // ---- for the Crew: by any thread
  void in_crew(bool is) { in_crew_.store(is); }
  uint64_t records() const { return records_.load(std::memory_order_relaxed); }
  bool asked_to_stop() const { return stop_.load(); }
  bool is_held() const { return hold_.load(); }  // for a barrier
  uint32_t virtual_device() const { return file_.header()->virtual_device; }
  // ... while paused
  void keep_lineage();
  std::map<uint64_t, std::string> identities() const;  // storage -> 32 hex digits
  // ... while this ring's thread waits at a sync point
  State& state() { return state_; }
  void refresh();    // nothing is fresh any more
  void give_turn();
  std::string writer_of(const StorageEntry& entry) const;
  // ... and in lockstep: see there
  Ready ready();
  Identity call();
  bool asks();
  void alone();
  void own(const std::vector<RingServer*>& rings);
  bool lead();
  void follow(RingServer& leader, bool well);

  void beat();   // the heartbeat word; called by the process's heart, never waits
  void gauge();  // the memory words; may wait for the device's allocator

 private:
  enum class Step { done, stopped };
  class Executing;
  class Acting;

  void run();
  Started rebuild();
  void replay(Started& started);
  void attach();
  void give_up();
  template <class MayChange>
  bool move_state(RingState to, MayChange may_change);
  void detach();
  void break_down(const std::string& why);  // the ring cannot be served any more
  void serve();
  void check_readable(const RecordHeader& record);
  void check_positions() const;
  bool may_wait();
  bool may_wait_for_record();
  void linger();
  Step step(const RecordHeader& record, const char* body);
  void begin_record();
  void tell_crew();
  bool may_go_on(const RecordHeader& record, const char* body);
  bool next_record(RecordHeader& record, const char*& body);
  void take(RingServer& leader, const RecordHeader& record);
  Step try_step(const RecordHeader& record, const char* body);
  Step answer(const RecordHeader& record, const char* body);
  void apply(const RecordHeader& record, const char* body, const Failure* known, bool replaying);
  void finish(const RecordHeader& record);
  Failure given_up(const RecordHeader& record) const;
  void remember_name(const RecordHeader& record);
  bool reply_bytes(const RecordHeader& record, const char* body);
  void make_reply(uint64_t seq, Status status, const char* payload, size_t bytes);
  bool flush_reply(bool wait);
  void publish_reply(uint64_t seq, size_t bytes);
  void publish_error(const RecordHeader& record, Status status, const std::string& text);
  bool append(const RecordHeader& record, const char* body);  // true: it is in the journal
  bool write_long(const RecordHeader& record, const char* body);
  void switch_recovery_off(const std::string& why);
  // ring_collectives.cpp
  // These three: false when asked to stop first.
  bool wait_until_possible(const NotYet& what);
  bool take_turn();
  bool at_sync_point();
  void take_results_in_turn();
  bool take_results();                           // those that are there; true: there was one
  void replay_result(const RecordHeader& entry, const char* body);
  void tell_others(const RecordHeader& record, const char* body, const std::string& why);
  void tell_of_groups();
  void sleep_on(std::atomic<uint32_t>* bell);
  void wake_blocked();
  void wake_idle();
  // ring_barrier.cpp
  bool has_reached_targets() const;
  bool stand_if_due(bool cheap);
  std::string waiting_text() const;
  void set_activity(Activity activity, std::string waits_for = "");
  void new_base_if_due();
  void new_base();
  void plan(uint64_t bytes);  // the journal's length at which the next base is due
  uint64_t wanted_length() const;
  uint64_t most_kept() const;
  bool drop_spare();  // true: there was one
  template <class Append>
  bool journaled(Append append);
  void publish_memory();
  void publish_facts();
  uint64_t clock_ns() const { return clock_base_ + monotonic_ns() - attached_ns_; }
  std::string snapshot_path() const { return options_.prefix + ".snap"; }
  std::string journal_path() const { return options_.prefix + ".journal"; }

  RingOptions options_;
  std::string folder_;         // of the ring's file
  DeviceFacts facts_;
  RingFile file_;
  std::vector<Guard> guards_;  // of the mapped file
  Descriptor lock_;      // flock on the ring file: one proxy at a time
  Consumer requests_;
  Producer replies_;
  WaitPolicy idle_, queue_, brief_;
  State state_;
  Executor executor_;
  Collectives collectives_;
  Account& account_ = new_account();
  Journal journal_;
  Buffer reply_{1 << 16};
  std::unique_ptr<Snapshot> prepared_;

  bool caught_up_ = false;      // what is in the ring from before the attach is behind us
  bool dirty_ = false;          // a record changed the state since the snapshot
  bool have_snapshot_ = false;
  bool keep_journal_ = false;   // it is parked with its journal
  uint64_t already_done_ = 0;   // done_seq at the attach: errors up to here were told
  uint64_t clock_base_ = 0, attached_ns_ = 0;
  uint64_t next_base_bytes_ = 0, snapshot_ns_ = 0;
  uint64_t busy_since_ = 0, busy_ns_ = 0;  // time spent with records since the last base
  uint64_t records_since_base_ = 0;

  std::thread thread_;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool paused_ = false, ending_ = false, started_ = false, ended_ = false;
  std::exception_ptr start_error_;
  Started start_result_;
  std::string recovery_off_, broken_;  // guarded by mutex_
  std::vector<std::string> names_;     // of operators, by index; guarded by mutex_
  std::atomic<uint64_t> running_{0};   // kind and operator of what is executed
  std::atomic<uint64_t> records_{0}, operations_{0}, journal_now_{0}, snapshots_{0};
  std::atomic<bool> recovery_{false}, attached_{false};
  Slicer::Seat seat_;
  bool takes_turns_ = false;    // its rank is in a group with others
  int lingers_ = 0;             // looks at an empty queue since the last record
  std::atomic<bool> in_crew_{false};   // its identities count, and it stops at sync points
  std::atomic<uint64_t> skipped_{0};   // calls that another ring made for it
  std::set<GroupId> told_;             // groups that the crew knows of
  std::exception_ptr stray_;           // what went wrong while another thread worked for this ring
  std::optional<Failure> failed_;      // of the last call
  std::vector<Touch> led_;             // what the call touched that it made for others ...
  uint64_t led_base_ = 0;              // ... and its first new storage
  std::atomic<Activity> activity_{Activity::idle};
  std::atomic<uint64_t> blocked_{0}, pending_{0}, sync_points_{0};
  std::atomic<bool> hold_{false}, stands_{false};
  std::atomic<uint64_t> grace_ns_{0};
  std::map<std::string, uint64_t> targets_;  // of the barrier; guarded by mutex_
  std::atomic<uint64_t> reached_ns_{0};      // when these targets were reached; 0: not yet
  std::vector<GroupStats> groups_;     // guarded by mutex_, as is:
  std::string waits_for_;
  std::atomic<uint32_t>* sleeps_on_ = nullptr;  // the bell that a blocked thread waits for; guarded by bell_mutex_
  std::mutex bell_mutex_;
};

// Room that a spare snapshot takes is had before recovery is given up. True: it is in the journal.
template <class Append>
bool RingServer::journaled(Append append) {
  try {
    try {
      append();
    } catch (const FileError& error) {
      if ((error.number != ENOSPC && error.number != EDQUOT) || !drop_spare()) throw;
      append();
    }
    return true;
  } catch (const FileError& error) {
    switch_recovery_off(error.text);
    return false;
  }
}

// Says in the header which record is executed, so that the agent knows where a proxy ended.
class RingServer::Executing {
 public:
  Executing(RingServer& ring, const RecordHeader& record) : ring_(ring) {
    ring_.running_.store(static_cast<uint64_t>(record.kind) << 32 | record.op, std::memory_order_relaxed);
    ring_.file_.header()->executing_seq.store(record.seq, std::memory_order_release);
  }
  Executing(const Executing&) = delete;
  Executing& operator=(const Executing&) = delete;
  ~Executing() { ring_.file_.header()->executing_seq.store(0, std::memory_order_release); }

 private:
  RingServer& ring_;
};

}  // namespace singularity
