#include "channel.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <torch/csrc/Exceptions.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "interrupts.h"
#include "worker/src/ranks/membership.h"
#include "worker/src/calls/ship.h"

namespace singularity {
namespace {

constexpr uint64_t kSayWhyNs = 10'000'000'000ull;
constexpr uint64_t kNewWaitNs = 1'000'000'000ull;
constexpr uint64_t kSilentNs = 3'000'000'000ull;

PyObject* open_ring_callable = nullptr;
bool blocking = false;
std::atomic<bool> any_open{false};
std::atomic<bool> forked{false};
thread_local int this_device = 0;

bool is_graph(const Freed& freed) { return freed.id >> 62 == kGraphId >> 62; }
bool is_group(const Freed& freed) { return freed.id >> 62 == kGroupNumber >> 62; }
bool has_own_record(const Freed& freed) { return is_graph(freed) || is_group(freed); }

[[noreturn]] void throw_python_error() {  // with the GIL, and an error set
  python_error error;
  error.persist();
  throw std::move(error);
}

[[noreturn]] void raise_status(Status status, const std::string& what) {
  switch (status) {
    case Status::index_error: TORCH_CHECK_INDEX(false, what);
    case Status::value_error: TORCH_CHECK_VALUE(false, what);
    case Status::type_error: TORCH_CHECK_TYPE(false, what);
    case Status::not_implemented: TORCH_CHECK_NOT_IMPLEMENTED(false, what);
    case Status::out_of_memory: TORCH_CHECK_WITH(OutOfMemoryError, false, what);
    case Status::linalg_error: TORCH_CHECK_LINALG(false, what);
    case Status::distributed_error: TORCH_CHECK_WITH(DistBackendError, false, what);
    default: TORCH_CHECK(false, what);
  }
  std::abort();  // every branch above throws
}

}  // namespace

bool proxy_is_cpu() {
  static const bool cpu = [] {
    const char* type = std::getenv("SINGULARITY_DEVICE_TYPE");
    return !type || std::string(type) != "cuda";
  }();
  return cpu;
}

std::array<std::atomic<Channel*>, kMaxDevices> known_channels{};

Channel& checked_channel(int index) {
  static std::array<std::unique_ptr<Channel>, kMaxDevices>& all = *[] {
    auto* made = new std::array<std::unique_ptr<Channel>, kMaxDevices>();  // never destroyed: tensors may outlive main
    for (int i = 0; i < device_count(); i++) (*made)[i] = std::make_unique<Channel>(i);
    pthread_atfork(nullptr, nullptr, [] {
      if (any_open.load()) forked.store(true);
    });
    return made;
  }();
  TORCH_CHECK(index >= 0 && index < device_count(), "CUDA error: invalid device ordinal (cuda:", index,
              " of ", device_count(), ")");
  Channel* found = all[static_cast<size_t>(index)].get();
  known_channels[static_cast<size_t>(index)].store(found, std::memory_order_release);
  return *found;
}

int current_device() { return this_device; }

int exchange_device(int index) {
  const int old = this_device;
  if (index >= 0) {
    channel(index);
    this_device = index;
  }
  return old;
}

bool in_bad_fork() { return forked.load(); }

void set_open_ring(PyObject* callable, uint64_t main) {
  set_main_thread(main);
  Py_INCREF(callable);
  open_ring_callable = callable;
}
void set_launch_blocking(bool on) { blocking = on; }
bool launch_blocking() { return blocking; }

// ---- waiting

void Channel::ring_doorbell() {
  const uint64_t now = monotonic_ns();
  if (now - last_doorbell_ns_ < 1000000000ull) return;
  last_doorbell_ns_ = now;
  const char* path = std::getenv("SINGULARITY_DOORBELL");
  if (!path) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const std::string text = "need " + ring_id_;
  // Lost datagrams do not matter (no agent now, full queue): it rings again every second.
  agent_hears_ = ::sendto(fd, text.data(), text.size(), MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&address),
                          sizeof(address)) >= 0 || (errno != ECONNREFUSED && errno != ENOENT);
  ::close(fd);
}

// A wait may be long for good reasons: the device works, or others have it. Then nothing is said, because
// what a program prints must not depend on when it has its device. Otherwise once per wait.
void Channel::say_why(uint32_t state) {
  const uint64_t now = monotonic_ns();
  if (now - last_poll_ns_.exchange(now, std::memory_order_relaxed) > kNewWaitNs) {  // polls of one wait are closer
    wait_since_ns_.store(now, std::memory_order_relaxed);
    said_why_.store(false, std::memory_order_relaxed);
  }
  if (said_why_.load(std::memory_order_relaxed) || now - wait_since_ns_.load(std::memory_order_relaxed) < kSayWhyNs) return;
  const char* why = nullptr;
  if (state == static_cast<uint32_t>(RingState::attached)) {
    // Not compared with our clock: a process that was restored from its image has a clock of its own.
    const uint64_t beat = header()->heartbeat_ns.load(std::memory_order_relaxed);
    if (last_beat_.exchange(beat, std::memory_order_relaxed) != beat) beat_changed_ns_.store(now, std::memory_order_relaxed);
    if (!beat || now - beat_changed_ns_.load(std::memory_order_relaxed) < kSilentNs) return;  // it works
    why = "its device proxy does not answer; nothing is lost, it is replaced by the node agent";
  } else if (agent_hears_) {
    return;  // it knows, and tells in status and events
  } else {
    why = "the node agent does not answer; nothing is lost, it goes on when the agent is back";
  }
  if (said_why_.exchange(true) || !Py_IsInitialized()) return;
  const std::string text = std::string("waiting for the device: ") + why +
                           ". The code goes on by itself; interrupt it to stop waiting.\n";
  if (const char* log = std::getenv("SINGULARITY_LOG")) {  // a run: what it prints goes into its output notebook
    const int fd = ::open(log, O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    [[maybe_unused]] const ssize_t written = ::write(fd, text.data(), text.size());
    ::close(fd);
    return;
  }
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PySys_WriteStderr("%s", text.c_str());
  PyErr_Restore(type, value, trace);
  PyGILState_Release(gil);
}

bool Channel::poll() {
  RingHeader* h = header();
  const uint32_t state = h->state.load();
  say_why(state);
  switch (static_cast<RingState>(state)) {
    case RingState::attached: break;
    case RingState::failed: TORCH_CHECK(false, std::string(h->failure, strnlen(h->failure, kFailureBytes)));
    case RingState::closed: TORCH_CHECK(false, "This session has ended, so its device is gone; Python variables are kept.");
    default:
      h->worker_waiting.store(1);
      ring_doorbell();
  }
  check_signals();
  return true;
}

WaitPolicy Channel::policy() {
  WaitPolicy p;
  p.poll = [](void* self) { return static_cast<Channel*>(self)->poll(); };
  p.context = this;
  return p;
}

void Channel::wait_for_device() {
  RingHeader* h = header();
  last_doorbell_ns_ = 0;  // a new wait asks at once
  struct Clear {
    RingHeader* h;
    ~Clear() { h->worker_waiting.store(0); }
  } clear{h};
  for (;;) {
    const uint32_t state = h->state.load();
    if (state == static_cast<uint32_t>(RingState::attached)) return;
    poll();
    futex_wait(h->state, state, 50);
  }
}

void Channel::open() {
  TORCH_CHECK(open_ring_callable, "the device proxy is not set up in this process");
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyObject* answer = PyObject_CallFunction(open_ring_callable, "i", index);
  const char *id = nullptr, *path = nullptr;
  if (answer && PyArg_ParseTuple(answer, "ss", &id, &path)) {
    std::string id_copy(id), path_copy(path);
    Py_DECREF(answer);
    PyGILState_Release(gil);
    ring_id_ = id_copy;
    file.open(path_copy);
    put_text(header()->worker_torch, TORCH_VERSION);
    requests.bind(file.request_words(), file.request_base(), header()->request_bytes);
    replies.bind(file.reply_words(), file.reply_base(), header()->reply_bytes);
    any_open.store(true);
    open_.store(true, std::memory_order_release);
    return;
  }
  Py_XDECREF(answer);
  try {
    throw_python_error();
  } catch (...) {
    PyGILState_Release(gil);
    throw;
  }
}

// ---- the lock

Locked::Locked(Channel& channel, bool needs_device) : channel_(channel) {
  TORCH_CHECK(!forked.load(std::memory_order_relaxed),
              "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
              "must use the 'spawn' start method");
  try {
    acquire(needs_device);
  } catch (...) {
    release();
    throw;
  }
}

void Locked::take() {
  locked_ = true;
  channel_.owner.store(pthread_self(), std::memory_order_relaxed);
  channel_.holder = this;
}

void Locked::acquire(bool needs_device) {
  if (__builtin_expect(channel_.mutex.try_lock(), 1)) take();
  for (;;) {
    if (!locked_) {
      TORCH_CHECK(!pthread_equal(channel_.owner.load(std::memory_order_relaxed), pthread_self()),
                  "a signal handler made a device call while another one was under way in the same thread");
      let_gil_go();
      channel_.mutex.lock();
      take();
    }
    if (__builtin_expect(!channel_.is_open(), 0)) {
      let_gil_go();
      channel_.open();
    }
    if (!needs_device) return;
    if (__builtin_expect(channel_.attached(), 1)) {
      if (__builtin_expect(channel_.seed_pending.load(std::memory_order_relaxed), 0)) {
        write_default_seed(channel_);  // throws when it is interrupted in a full queue
        channel_.seed_pending.store(false);
      }
      return;
    }
    let_gil_go();
    channel_.owner.store(pthread_t{}, std::memory_order_relaxed);
    locked_ = false;
    channel_.mutex.unlock();
    channel_.wait_for_device();
  }
}

void Locked::let_gil_go() {
  waited_ = true;
  if (!saved_ && PyGILState_Check()) saved_ = PyEval_SaveThread();
}

void Locked::release() {
  if (locked_) {
    channel_.owner.store(pthread_t{}, std::memory_order_relaxed);
    locked_ = false;
    channel_.mutex.unlock();
  }
  if (__builtin_expect(!waited_, 1)) return;
  end_of_wait();
  if (saved_) PyEval_RestoreThread(saved_);
  saved_ = nullptr;
}

Locked::~Locked() { release(); }

// ---- records

void Channel::make_room(size_t body) {
  const size_t length = padded(sizeof(RecordHeader) + body);
  if (__builtin_expect(requests.has_room(length), 1) || length > kMaxRecordBytes) return;
  holder->let_gil_go();
  requests.reserve(length, policy());
}

RecordHeader* Channel::begin(Kind kind, uint16_t flags, size_t body) {
  const size_t length = padded(sizeof(RecordHeader) + body);
  TORCH_CHECK(length <= kMaxRecordBytes, "this call does not fit one record of the device proxy (",
              length, " of at most ", kMaxRecordBytes, " bytes): split it");
  if (__builtin_expect(!requests.has_room(length), 0)) holder->let_gil_go();
  char* place = requests.reserve(length, policy());
  auto* record = reinterpret_cast<RecordHeader*>(place);
  *record = RecordHeader{static_cast<uint32_t>(length), static_cast<uint16_t>(kind), flags, ++seq, 0, 0, 0};
  return record;
}

void Channel::send(RecordHeader* record) {
  requests.advance(record->length);
  requests.publish();
}

void Channel::flush_frees() {
  if (!freed_.load(std::memory_order_relaxed)) return;
  {
    std::lock_guard<SpinLock> guard(free_lock_);
    freeing_.swap(free_);
    freed_.store(0, std::memory_order_relaxed);
    freed_bytes_.store(0, std::memory_order_relaxed);
  }
  uint64_t ids[1024];
  size_t done = 0;
  try {
    while (done < freeing_.size()) {
      size_t n = 0, next = done;
      for (; next < freeing_.size() && n < std::size(ids) && !has_own_record(freeing_[next]); next++)
        if (freeing_[next].id) ids[n++] = freeing_[next].id;
      if (n) {
        RecordHeader* record = begin(Kind::free_storages, 0, n * 8);
        record->base = n;
        std::memcpy(record + 1, ids, n * 8);
        requests.advance(record->length);  // the last one travels with the record that follows
      }
      for (; done < next; done++) {
        addresses.give_back(freeing_[done].address, freeing_[done].bytes);
        if (freeing_[done].record) spare_records_.push_back(freeing_[done].record);
      }
      for (; done < freeing_.size() && has_own_record(freeing_[done]); done++) {
        if (is_group(freeing_[done])) forget_group(*this, freeing_[done].id);
        else forget_graph(*this, static_cast<uint32_t>(freeing_[done].id));
      }
      if (done < freeing_.size()) requests.publish();  // unpublished, a million of them would fill the queue
    }
  } catch (...) {  // interrupted while the queue was full: the next call tells the rest
    std::lock_guard<SpinLock> guard(free_lock_);
    free_.insert(free_.end(), freeing_.begin() + static_cast<std::ptrdiff_t>(done), freeing_.end());
    freed_.store(kManyFrees, std::memory_order_relaxed);
    freeing_.clear();
    throw;
  }
  freeing_.clear();
}

void Channel::free_storage(const Freed& storage) {
  if (in_bad_fork()) return;  // a thread that was not forked may hold the lock for ever
  std::lock_guard<SpinLock> guard(free_lock_);
  if (storage.address) usage.remove(storage.bytes);
  free_.push_back(storage);
  // Few storages may wait for others; anything else is told with the next call.
  const auto count = storage.record ? static_cast<uint32_t>(std::min<size_t>(free_.size(), kManyFrees)) : kManyFrees;
  freed_.store(std::max(count, freed_.load(std::memory_order_relaxed)), std::memory_order_relaxed);
  freed_bytes_.store(freed_bytes_.load(std::memory_order_relaxed) + storage.bytes, std::memory_order_relaxed);
}

StorageRecord* Channel::new_record() {
  if (spare_records_.empty()) return new StorageRecord();
  StorageRecord* record = spare_records_.back();
  spare_records_.pop_back();
  return record;
}

bool Channel::near_capacity(uint64_t more) const {
  const uint64_t capacity = header()->memory_capacity.load(std::memory_order_relaxed);
  const uint64_t limit = memory_limit.load(std::memory_order_relaxed);
  const uint64_t promised = usage.allocated_bytes();
  if (limit && promised + more > limit / 4 * 3) return true;
  if (!capacity) return false;
  const uint64_t held = header()->memory_current.load(std::memory_order_relaxed);
  return std::max(held, promised) + more > capacity / 4 * 3;
}

void Channel::raise_async_error() {
  RingHeader* h = header();
  if (__builtin_expect(h->error_seq.load(std::memory_order_relaxed) == 0, 1)) return;
  const std::string text(h->failure, strnlen(h->failure, kFailureBytes));
  const auto status = static_cast<Status>(h->error_status.load());
  const uint64_t at = h->error_seq.exchange(0);
  if (status == Status::out_of_memory) out_of_memory++;
  raise_status(status, c10::str(text, "\nThe call that failed was made earlier (record ", at, " of ", seq,
                                "); set CUDA_LAUNCH_BLOCKING=1 to get its exact line."));
}

Reply Channel::receive_of(uint64_t expected, uint64_t first_storage) {
  holder->let_gil_go();
  const uint64_t start = monotonic_ns();
  const WaitPolicy wait = policy();
  try {
    for (;;) {
      const char* at = replies.peek(sizeof(ReplyHeader), wait);
      ReplyHeader head;
      std::memcpy(&head, at, sizeof(head));
      at = replies.peek(head.length, wait) + sizeof(head);
      if (head.seq < expected) {  // of a call that was interrupted while it waited
        auto gone = abandoned_.find(head.seq);
        if (gone != abandoned_.end()) {
          if (gone->second && head.status == 0 && head.payload_bytes >= 4) {
            const uint32_t made = Cursor(at).get<uint32_t>();
            for (uint32_t i = 0; i < made; i++) free_storage({gone->second + i, nullptr, 0});
          }
          abandoned_.erase(gone);
        }
        replies.release(head.length);
        continue;
      }
      sync_wait_ns += monotonic_ns() - start;
      sync_records++;
      if (header()->worker_waiting.load(std::memory_order_relaxed)) header()->worker_waiting.store(0);
      if (head.status) {
        const std::string what(at, head.payload_bytes);
        replies.release(head.length);
        if (static_cast<Status>(head.status) == Status::out_of_memory) out_of_memory++;
        raise_status(static_cast<Status>(head.status), what);
      }
      return Reply{Cursor(at), head.payload_bytes, head.length};
    }
  } catch (python_error&) {
    header()->worker_waiting.store(0);
    abandoned_[expected] = first_storage;
    if (first_storage) next_storage += kMaxRecordBytes;  // more ids than its results may take
    throw;
  }
}

}  // namespace singularity
