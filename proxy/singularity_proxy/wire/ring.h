// The ring: two single-producer single-consumer byte queues in one named /dev/shm file.
//
// One file per (worker process, virtual device). The worker produces requests and consumes replies,
// the device proxy does the opposite. The node agent creates and deletes the file (wire/ring.py has
// the same layout); the session owns it, proxies attach and detach. Each queue is mapped twice in a
// row, so that a record never wraps. A record is visible only when it is complete: the producer
// writes it and then publishes `head`.
#pragma once

#include <fcntl.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>

namespace singularity {

constexpr uint64_t kRingMagic = 0x53494e4752494e47ull;
constexpr uint32_t kRingVersion = 1;
constexpr size_t kHeaderBytes = 64 * 1024;
constexpr size_t kFailureBytes = 7168;

enum class RingState : uint32_t { detached = 0, attached = 1, moving = 2, failed = 3, closed = 4 };

// One direction. `head` and `tail` count bytes since the file was made and never decrease.
struct QueueWords {
  alignas(64) std::atomic<uint64_t> head;               // published by the producer
  alignas(64) std::atomic<uint64_t> tail;               // released by the consumer
  alignas(64) std::atomic<uint32_t> consumer_sleeps;    // futex word: 1 while it sleeps on "empty"
  alignas(64) std::atomic<uint32_t> producer_sleeps;    // futex word: 1 while it sleeps on "full"
};

struct RingHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t virtual_device;
  uint64_t request_bytes;
  uint64_t reply_bytes;
  alignas(64) std::atomic<uint32_t> state;              // RingState, futex word
  std::atomic<uint32_t> generation;                     // how often a proxy attached
  std::atomic<uint64_t> epoch;
  std::atomic<uint64_t> heartbeat_ns;                   // CLOCK_MONOTONIC, by the proxy
  std::atomic<uint32_t> device_type;                    // 0 cpu, 1 cuda
  std::atomic<uint32_t> worker_waiting;                 // 1 while a thread waits for a device
  std::atomic<uint64_t> memory_capacity;                // bytes, of the whole proxy
  std::atomic<uint64_t> memory_current;
  std::atomic<uint64_t> memory_peak;                    // a worker that wants a new peak stores 0
  std::atomic<uint64_t> last_record_ns;                 // CLOCK_MONOTONIC of the last record
  QueueWords request;
  QueueWords reply;
  alignas(64) std::atomic<uint64_t> done_seq;           // last executed record
  std::atomic<uint64_t> error_seq;                      // first failed asynchronous record; 0 none
  std::atomic<uint32_t> error_status;                   // Status of that record
  std::atomic<uint64_t> executing_seq;                  // record being executed or that ended a proxy; 0 none
  alignas(64) std::atomic<uint64_t> replied_seq;        // last record whose reply is published
  // A proxy can be killed between publishing a reply and storing `replied_seq`. It says first which
  // reply it is about to publish and where the reply queue's head will be then; the next proxy
  // compares, so that no reply is lost or repeated.
  std::atomic<uint64_t> reply_intent_head;
  std::atomic<uint64_t> reply_intent_seq;
  // Of this ring alone, by the proxy. (memory_current and memory_peak are of the whole proxy.)
  std::atomic<uint64_t> ring_memory_current;
  std::atomic<uint64_t> ring_memory_peak;               // a worker that wants a new peak stores 0
  std::atomic<uint64_t> ring_memory_reserved;           // with what the device's allocator keeps for later
  // What the physical device is, by the proxy at each attach; 0 and "" where it does not know.
  std::atomic<uint64_t> device_memory;                  // bytes
  std::atomic<uint64_t> cudnn_version;
  std::atomic<uint32_t> capability;                     // major << 16 | minor
  std::atomic<uint32_t> multiprocessors;
  char device_name[48];
  // PyTorch of both sides; operators that differ between them are refused (Kind::define_op).
  char proxy_torch[32];
  char worker_torch[32];
  char reserved[1024 - 888];
  char failure[kFailureBytes];                          // sentence: why failed, or the async error
};
static_assert(offsetof(RingHeader, state) == 64 && offsetof(RingHeader, memory_capacity) == 96);
static_assert(offsetof(RingHeader, last_record_ns) == 120 && offsetof(RingHeader, request) == 128);
static_assert(offsetof(RingHeader, reply) == 384 && offsetof(RingHeader, done_seq) == 640);
static_assert(offsetof(RingHeader, error_status) == 656 && offsetof(RingHeader, executing_seq) == 664);
static_assert(offsetof(RingHeader, replied_seq) == 704 && offsetof(RingHeader, failure) == 1024);
static_assert(offsetof(RingHeader, ring_memory_current) == 728 && offsetof(RingHeader, device_name) == 776);
static_assert(offsetof(RingHeader, proxy_torch) == 824 && offsetof(RingHeader, reserved) == 888);
static_assert(sizeof(RingHeader) <= kHeaderBytes && sizeof(std::atomic<uint64_t>) == 8);

inline uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000ull + static_cast<uint64_t>(t.tv_nsec);
}

// A text of the header: always NUL terminated by us, never believed to be.
template <size_t N>
void put_text(char (&field)[N], const std::string& text) {
  std::memset(field, 0, N);
  std::memcpy(field, text.data(), text.size() < N ? text.size() : N - 1);
}
template <size_t N>
std::string text_of(const char (&field)[N]) {
  return std::string(field, strnlen(field, N));
}

inline void futex_wake(std::atomic<uint32_t>& word, int count = 1) {
  syscall(SYS_futex, &word, FUTEX_WAKE, count, nullptr, nullptr, 0);
}

// Sleeps while `word` is `expected`, at most `milliseconds`. May return early for any reason.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, int milliseconds) {
  timespec t{milliseconds / 1000, (milliseconds % 1000) * 1000000l};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &t, nullptr, 0);
}

// What a side does while it waits longer than the spin: look at the ring state, signals, a stop
// flag. Returns false to give up waiting; may throw.
using PollFn = bool (*)(void* context);

struct WaitPolicy {
  uint64_t spin_ns = 30000;       // busy wait before sleeping
  uint64_t yield_after_ns = 1500; // from here on give the core away between looks: worker and proxy
                                  // may share one core, and a blind spin would cost twice its length
  int sleep_ms = 20;              // one futex sleep; then `poll` is asked again
  PollFn poll = nullptr;
  void* context = nullptr;
};

// Waits until `ready()`; sleeps on `sleeps` (set to 1 while asleep; the other side clears and wakes).
template <class Ready>
bool wait_until(Ready ready, std::atomic<uint32_t>& sleeps, const WaitPolicy& policy) {
  const uint64_t start = monotonic_ns();
  for (;;) {
    for (int i = 0; i < 64; i++) {
      if (ready()) return true;
      _mm_pause();
    }
    const uint64_t waited = monotonic_ns() - start;
    if (waited < policy.spin_ns) {
      if (waited > policy.yield_after_ns) sched_yield();
      continue;
    }
    if (policy.poll && !policy.poll(policy.context)) return false;
    sleeps.store(1, std::memory_order_seq_cst);
    if (ready()) {
      sleeps.store(0, std::memory_order_relaxed);
      return true;
    }
    futex_wait(sleeps, 1, policy.sleep_ms);
    sleeps.store(0, std::memory_order_relaxed);
  }
}

// The producing end of one queue. Not thread-safe: guarded by the owner.
class Producer {
 public:
  void bind(QueueWords* words, char* base, uint64_t bytes) {
    words_ = words;
    base_ = base;
    bytes_ = bytes;
    position_ = words->head.load();
    seen_tail_ = words->tail.load();
  }
  uint64_t capacity() const { return bytes_; }
  // Whether `reserve` would return without waiting.
  bool has_room(size_t n) {
    if (__builtin_expect(!fits(n), 0)) seen_tail_ = words_->tail.load(std::memory_order_acquire);
    return fits(n);
  }
  // A place for `n` bytes, or nullptr when `policy.poll` gave up while the queue was full.
  char* reserve(size_t n, const WaitPolicy& policy) {
    if (!fits(n)) {
      seen_tail_ = words_->tail.load(std::memory_order_acquire);
      if (!fits(n)) publish();  // what is complete but not visible yet would never be released
      if (!fits(n) && !wait_until(
                          [&] {
                            seen_tail_ = words_->tail.load(std::memory_order_seq_cst);
                            return fits(n);
                          },
                          words_->producer_sleeps, policy))
        return nullptr;
    }
    return base_ + (position_ & (bytes_ - 1));
  }
  void advance(size_t n) { position_ += n; }
  // Makes everything advanced so far visible and wakes a sleeping consumer.
  void publish() {
    words_->head.store(position_, std::memory_order_seq_cst);
    if (__builtin_expect(words_->consumer_sleeps.load(std::memory_order_seq_cst), 0) &&
        words_->consumer_sleeps.exchange(0))
      futex_wake(words_->consumer_sleeps);
  }
  uint64_t position() const { return position_; }
  // Bytes that the consumer has not released. More than the capacity: its word is not to be believed.
  uint64_t unreleased() const { return position_ - seen_tail_; }

 private:
  bool fits(size_t n) const { return position_ + n - seen_tail_ <= bytes_; }
  QueueWords* words_ = nullptr;
  char* base_ = nullptr;
  uint64_t bytes_ = 0, position_ = 0, seen_tail_ = 0;
};

// The consuming end of one queue. Not thread-safe: guarded by the owner.
class Consumer {
 public:
  void bind(QueueWords* words, char* base, uint64_t bytes) {
    words_ = words;
    base_ = base;
    bytes_ = bytes;
    // A new consumer (a proxy that attaches) starts where the last one stopped. The seen head must
    // start there too: a stale smaller value would underflow and old bytes would be executed.
    position_ = seen_head_ = words->tail.load();
  }
  bool available(size_t n) {
    if (seen_head_ - position_ < n) seen_head_ = words_->head.load(std::memory_order_acquire);
    return seen_head_ - position_ >= n;
  }
  // `n` readable bytes, or nullptr when `policy.poll` gave up first.
  const char* peek(size_t n, const WaitPolicy& policy) {
    if (!available(n) && !wait_until(
                             [&] {
                               seen_head_ = words_->head.load(std::memory_order_seq_cst);
                               return seen_head_ - position_ >= n;
                             },
                             words_->consumer_sleeps, policy))
      return nullptr;
    return base_ + (position_ & (bytes_ - 1));
  }
  void release(size_t n) {
    position_ += n;
    words_->tail.store(position_, std::memory_order_seq_cst);
    if (__builtin_expect(words_->producer_sleeps.load(std::memory_order_seq_cst), 0) &&
        words_->producer_sleeps.exchange(0))
      futex_wake(words_->producer_sleeps);
  }
  uint64_t position() const { return position_; }
  uint64_t capacity() const { return bytes_; }
  // Bytes that the producer published. More than the capacity: its word is not to be believed.
  uint64_t published() const { return seen_head_ - position_; }

 private:
  QueueWords* words_ = nullptr;
  char* base_ = nullptr;
  uint64_t bytes_ = 0, position_ = 0, seen_head_ = 0;
};

// A mapped ring file. Throws std::runtime_error with one sentence when the file is not a ring.
class RingFile {
 public:
  RingFile() = default;
  RingFile(const RingFile&) = delete;
  RingFile& operator=(const RingFile&) = delete;
  ~RingFile() { unmap(); }

  void open(const std::string& path) {
    unmap();
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) throw std::runtime_error("cannot open the ring " + path + ": " + strerror(errno));
    try {
      map(fd, path);
    } catch (...) {
      ::close(fd);
      unmap();
      throw;
    }
    ::close(fd);
  }

  RingHeader* header() const { return header_; }
  QueueWords* request_words() const { return &header_->request; }
  QueueWords* reply_words() const { return &header_->reply; }
  char* request_base() const { return request_; }
  char* reply_base() const { return reply_; }
  // As they were when the file was mapped; the header's words may have been changed since.
  uint64_t request_bytes() const { return request_bytes_; }
  uint64_t reply_bytes() const { return reply_bytes_; }
  bool is_open() const { return header_ != nullptr; }

  void unmap() {
    if (header_) munmap(header_, kHeaderBytes);
    if (request_) munmap(request_, 2 * request_bytes_);
    if (reply_) munmap(reply_, 2 * reply_bytes_);
    header_ = nullptr;
    request_ = reply_ = nullptr;
  }

 private:
  void map(int fd, const std::string& path) {
    struct stat info;
    if (fstat(fd, &info)) throw std::runtime_error("cannot stat the ring " + path);
    if (static_cast<size_t>(info.st_size) < kHeaderBytes)
      throw std::runtime_error(path + " is too short to be a ring");
    // Not from the mapping: a file that is shortened just now would end the process.
    struct {
      uint64_t magic;
      uint32_t version, virtual_device;
      uint64_t request_bytes, reply_bytes;
    } start{};
    if (pread(fd, &start, sizeof(start), 0) != sizeof(start) || start.magic != kRingMagic || start.version != kRingVersion)
      throw std::runtime_error(path + " is not a ring of version 1");
    request_bytes_ = start.request_bytes;
    reply_bytes_ = start.reply_bytes;
    if (!power_of_pages(request_bytes_) || !power_of_pages(reply_bytes_) ||
        static_cast<uint64_t>(info.st_size) < kHeaderBytes + request_bytes_ + reply_bytes_)
      throw std::runtime_error(path + " has queue sizes that do not fit the file");
    void* p = mmap(nullptr, kHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) throw std::runtime_error("cannot map the ring " + path);
    header_ = static_cast<RingHeader*>(p);
    request_ = map_twice(fd, kHeaderBytes, request_bytes_);
    reply_ = map_twice(fd, kHeaderBytes + request_bytes_, reply_bytes_);
  }
  static bool power_of_pages(uint64_t n) { return n >= 4096 && n <= (1ull << 32) && !(n & (n - 1)); }
  static char* map_twice(int fd, uint64_t offset, uint64_t bytes) {
    void* area = mmap(nullptr, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) throw std::runtime_error("no address space for a ring");
    char* base = static_cast<char*>(area);
    for (int half = 0; half < 2; half++)
      if (mmap(base + half * bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
               static_cast<off_t>(offset)) == MAP_FAILED) {
        munmap(area, 2 * bytes);
        throw std::runtime_error("cannot map the queues of a ring");
      }
    return base;
  }
  RingHeader* header_ = nullptr;
  char* request_ = nullptr;
  char* reply_ = nullptr;
  uint64_t request_bytes_ = 0, reply_bytes_ = 0;
};

}  // namespace singularity
