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

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "capacity.h"
#include "errors.h"
#include "executor.h"
#include "files.h"
#include "guard.h"
#include "journal.h"
#include "snapshot.h"
#include "state.h"
#include "wire/ring.h"

namespace singularity {

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

struct RingStats {
  uint64_t records, operations, last_record_ns, done_seq, journal_bytes, snapshots;
  bool worker_waiting, recovery;
  std::string recovery_off;   // why there is none, though it was asked for
  std::string broken;         // why it stopped for ever
  std::string running;        // what it executes now ("aten::mm"); empty between records
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

  // ---- only while paused
  // Writes the state beside its place; nothing when it is unchanged. Returns the bytes of the state's
  // file. Throws FileError; then everything is as before.
  uint64_t prepare_park();
  void commit_park();     // the snapshot is in its place; serving on is still possible
  void leave();           // the journal is gone, the ring is detached
  void abandon_park();
  // The device's memory stays where it is, for the driver to take away: the ring is detached but kept.
  // Throws Refused when a proxy that then dies could not be replaced.
  void step_aside();
  void come_back(uint64_t epoch);  // as if attached again; then resume
  uint64_t save_copy(const std::string& path, bool durable);  // elsewhere

  // Ends the thread and frees the state. `forget` also deletes the files of the state.
  void stop(bool forget);

  RingStats stats() const;
  void beat();   // the heartbeat word; called by the process's heart, never waits
  void gauge();  // the memory words; may wait for the device's allocator

 private:
  enum class Step { done, stopped };
  class Executing;

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
  bool may_wait() const;
  Step step(const RecordHeader& record, const char* body);
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
  void append(const RecordHeader& record, const char* body);
  bool write_long(const RecordHeader& record, const char* body);
  void switch_recovery_off(const std::string& why);
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
  DeviceFacts facts_;
  RingFile file_;
  std::vector<Guard> guards_;  // of the mapped file
  Descriptor lock_;      // flock on the ring file: one proxy at a time
  Consumer requests_;
  Producer replies_;
  WaitPolicy idle_, brief_;
  State state_;
  Executor executor_;
  Account& account_ = new_account();
  Journal journal_;
  Buffer reply_{1 << 16};
  std::unique_ptr<Snapshot> prepared_;

  bool caught_up_ = false;      // what is in the ring from before the attach is behind us
  bool dirty_ = false;          // a record changed the state since the snapshot
  bool have_snapshot_ = false;
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
};

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
