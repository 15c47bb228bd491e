// The worker's end of one virtual device: its ring, its record numbers, and what to do while the
// device is away.
//
// A `Channel` is opened at the first device call (the node agent makes the ring file) and lives until
// the process ends. Whether a device is behind it changes all the time: before a record is written
// `Locked` waits until a proxy is attached; a reply that is awaited while the session is parked simply
// arrives later.
#pragma once

#include <Python.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "wire/records.h"
#include "wire/ring.h"
#include "worker/src/tensors/memory.h"
#include "mutex.h"
#include "native/settings.h"
#include "visible.h"

namespace singularity {

constexpr int kMaxDevices = 64;

struct StorageRecord;

struct Reply {
  Cursor body;
  uint32_t bytes;    // of the payload
  uint32_t length;   // of the record
};

class Channel {
 public:
  explicit Channel(int index) : index(index) {}

  // ---- sending; only under `Locked`
  // A record with `body` bytes behind its header, numbered and zero-initialised. Waits while the
  // queue is full. Throws when the record would be longer than kMaxRecordBytes.
  RecordHeader* begin(Kind kind, uint16_t flags, size_t body);
  // Waits until a record with `body` bytes would fit.
  void make_room(size_t body);
  void send(RecordHeader* record);
  // Tells the proxy about storages that died since the last record.
  void flush_frees();
  // The same, but a few small ones may wait for others: a record for each would cost as much as an operator.
  void flush_many_frees() {
    if (freed_.load(std::memory_order_relaxed) >= kManyFrees || freed_bytes_.load(std::memory_order_relaxed) >= kManyFreedBytes)
      flush_frees();
  }
  // Raises the pending asynchronous error, if there is one.
  void raise_async_error();
  // Waits for the reply of the newest record, without the GIL. Throws the error that the reply carries. When the wait
  // is interrupted (KeyboardInterrupt) the reply is dropped later, and the storages that it announces
  // (an operator's, numbered from `first_storage`; 0: none) are given back.
  Reply receive(uint64_t first_storage = 0) { return receive_of(seq, first_storage); }
  // The same for an older record; replies to records before it are dropped.
  Reply receive_of(uint64_t expected, uint64_t first_storage = 0);
  void finish(const Reply& reply) { replies.release(reply.length); }

  // ---- from any thread, without the lock
  void free_storage(const Freed& storage);
  bool is_open() const { return open_.load(std::memory_order_acquire); }
  // A record for a new storage, from those that are not used any more. Under the mutex.
  StorageRecord* new_record();
  bool attached() const {
    return file.header()->state.load(std::memory_order_relaxed) ==
           static_cast<uint32_t>(RingState::attached);
  }
  RingHeader* header() const { return file.header(); }
  // True when so much memory is promised that an allocation may fail: calls then wait for their
  // result, so that OutOfMemoryError is raised where it happens.
  bool near_capacity(uint64_t more = 0) const;

  void open();             // under the mutex; asks the agent for the ring
  void wait_for_device();  // without the mutex
  bool poll();             // while any wait lasts; throws on interrupt, failure

  static constexpr uint32_t kManyFrees = 8;
  static constexpr uint64_t kManyFreedBytes = 64 << 10;
  const int index;
  Mutex mutex;
  RingFile file;
  Producer requests;
  Consumer replies;
  uint64_t seq = 0;
  uint64_t next_storage = 1, next_group = 1;
  std::atomic<int64_t> out_of_memory{0};   // errors of that kind, as they were raised
  std::atomic<uint64_t> memory_limit{0};   // bytes that this process may use of the device; 0: all of it
  Usage usage;                             // of live storages, as the worker counts them
  Addresses addresses;                     // under the mutex
  // torch's settings as the proxy knows them (settings.h); under the mutex
  Settings settings_sent;                  // all zero: none
  uint64_t limit_sent = 0, settings_seen = 0;
  uint32_t settings_id = 0;                // equal settings, equal number
  Buffer key, values;                      // scratch of the record being built
  std::vector<bool> defined;               // by operator index: the proxy knows it
  // figures for people and benchmarks
  uint64_t async_records = 0, sync_records = 0, sync_wait_ns = 0;
  std::atomic<bool> seed_pending{false};   // the default generator was seeded while no device was held
  std::atomic<pthread_t> owner{};          // the thread that holds `mutex`
  class Locked* holder = nullptr;          // ... and through what; guarded by `mutex`

 private:
  void ring_doorbell();
  void say_why(uint32_t state);  // one line on stderr when a wait is long and the device is away
  WaitPolicy policy();
  std::atomic<bool> open_{false};
  std::string ring_id_;
  SpinLock free_lock_;
  std::vector<Freed> free_, freeing_;
  std::vector<StorageRecord*> spare_records_;
  std::atomic<uint32_t> freed_{0};          // entries of free_, and the bytes they had
  std::atomic<uint64_t> freed_bytes_{0};
  std::map<uint64_t, uint64_t> abandoned_;  // seq of an interrupted call -> its first storage id
  uint64_t last_doorbell_ns_ = 0;
  bool agent_hears_ = true;                 // the doorbell has a listener
  // of the present wait; the thread that waits for a device and the one that waits for a reply may be
  // two, and then either one's line will do
  std::atomic<uint64_t> wait_since_ns_{0}, last_poll_ns_{0};
  std::atomic<uint64_t> last_beat_{0}, beat_changed_ns_{0};  // the proxy's heartbeat, and when we saw it change
  std::atomic<bool> said_why_{false};
};

// What hangs on the DataPtr of a proxied storage.
struct StorageRecord {
  Channel* channel;
  uint64_t id;
  uint64_t bytes;
  void* address;
};

// Holds a channel for one call: takes the mutex, opens the ring at the first call and waits until a
// device is attached.
//
// The GIL: nobody waits for anything (the mutex, a device, room in a queue, a reply) while holding it,
// because whoever is waited for may need it. A call that need not wait keeps it, which is what makes a
// cached operator cheap; the first one that must wait lets it go until the end of the call.
class Locked {
 public:
  explicit Locked(Channel& channel, bool needs_device = true);
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  ~Locked();
  void let_gil_go();  // before the first wait of this call

 private:
  void acquire(bool needs_device);
  void take();        // the mutex is held
  void release();
  Channel& channel_;
  PyThreadState* saved_ = nullptr;
  bool locked_ = false, waited_ = false;
};

// Sends the default generator's seed (device.cpp); called when it was seeded without a device.
void write_default_seed(Channel& channel);

// The channel of a device. Checks the index: "invalid device ordinal".
Channel& checked_channel(int index);
extern std::array<std::atomic<Channel*>, kMaxDevices> known_channels;  // those that were asked for before
inline Channel& channel(int index) {
  if (const auto i = static_cast<unsigned>(index); __builtin_expect(i < kMaxDevices, 1))
    if (Channel* known = known_channels[i].load(std::memory_order_acquire); __builtin_expect(known != nullptr, 1)) return *known;
  return checked_channel(index);
}
int current_device();             // of this thread
int exchange_device(int index);   // sets it, returns the old one; a negative index changes nothing
bool proxy_is_cpu();              // what the session's physical devices are (SINGULARITY_DEVICE_TYPE)
bool in_bad_fork();               // forked after the first device call

// Called once at import by the hook. `open_ring(index)` returns (ring id, path); `main_thread` is
// threading.main_thread().ident, the one thread that may run signal handlers.
void set_open_ring(PyObject* callable, uint64_t main_thread);
void set_launch_blocking(bool on);
bool launch_blocking();

}  // namespace singularity
