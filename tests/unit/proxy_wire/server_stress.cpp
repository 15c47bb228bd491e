// The torch-free parts of worker and device proxy under the sanitizers, with all their threads at once.
// Usage: server_stress FOLDER SEED. FOLDER holds ring0.ring .. ring2.ring.
//
//   * three rings of one process; several threads send into each, under the channel's lock, while the
//     queues are full and empty in turn and both ends sleep
//   * each ring's server appends every record to a journal, restarts it, answers, stops when it is
//     asked to, detaches and attaches again
//   * copies through a few buffers to a "device" that is always late
//   * a file that is shortened under a reader
//
// Prints "ok <records> <pauses> <copies> <hits>" or what was wrong.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "device/src/ring/guard.h"
#include "device/src/recovery/journal.h"
#include "device/src/ranks/pipeline.h"
#include "wire/records.h"
#include "wire/ring.h"

using namespace singularity;

namespace {

constexpr int kRings = 3, kSenders = 3, kRecords = 1500;  // per sender

[[noreturn]] void fail(const char* what, uint64_t where) {
  std::printf("%s at %llu\n", what, static_cast<unsigned long long>(where));
  std::fflush(stdout);
  std::_Exit(1);
}

void fill(char* at, size_t n, uint64_t seed) {
  for (size_t i = 0; i < n; i++) at[i] = static_cast<char>(seed * 131 + i);
}
void check(const char* at, size_t n, uint64_t seed, const char* who) {
  for (size_t i = 0; i < n; i++)
    if (at[i] != static_cast<char>(seed * 131 + i)) fail(who, seed);
}

// ---- a worker: several threads, one ring

struct Worker {
  RingFile file;
  Producer requests;
  Consumer replies;
  std::mutex mutex;
  uint64_t seq = 0;

  explicit Worker(const std::string& path) {
    file.open(path);
    requests.bind(file.request_words(), file.request_base(), file.request_bytes());
    replies.bind(file.reply_words(), file.reply_base(), file.reply_bytes());
  }
  void send(unsigned seed) {
    std::mt19937 random(seed);
    WaitPolicy wait;
    wait.spin_ns = random() % 2 ? 30000 : 0;
    for (int i = 0; i < kRecords; i++) {
      std::lock_guard<std::mutex> lock(mutex);
      const size_t body = random() % 16 ? random() % 200 : random() % 3000;
      const size_t length = padded(sizeof(RecordHeader) + body);
      const bool asks = random() % 10 == 0;
      char* place = requests.reserve(length, wait);
      const RecordHeader header{static_cast<uint32_t>(length), 1, static_cast<uint16_t>(asks ? kReply : 0), ++seq, 0,
                                static_cast<uint32_t>(body), 0};
      std::memcpy(place, &header, sizeof(header));
      fill(place + sizeof(header), body, seq);
      requests.advance(length);
      if (asks || random() % 3 == 0) requests.publish();
      if (!asks) continue;
      const char* at = replies.peek(sizeof(ReplyHeader), wait);
      ReplyHeader head;
      std::memcpy(&head, at, sizeof(head));
      if (head.seq != seq) fail("the reply of another record", head.seq);
      check(replies.peek(head.length, wait) + sizeof(head), head.payload_bytes, seq + 7, "wrong reply");
      replies.release(head.length);
    }
    std::lock_guard<std::mutex> lock(mutex);
    requests.publish();
  }
};

// ---- the server of one ring

struct Server {
  std::string path, journal_path;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> done{0}, pauses{0};
  std::mutex mutex;
  std::condition_variable changed;
  bool paused = false;

  static bool go_on(void* self) { return !static_cast<Server*>(self)->stop.load(); }

  void run(unsigned seed) {
    std::mt19937 random(seed);
    const SignalsBlocked blocked;
    uint64_t seq = 0;
    const uint64_t all = uint64_t{kSenders} * kRecords;
    while (seq < all) {  // each time as another proxy would: everything comes from the header
      RingFile file;
      file.open(path);
      const Guard header(file.header(), kHeaderBytes), queue(file.request_base(), 2 * file.request_bytes());
      Consumer requests;
      Producer replies;
      requests.bind(file.request_words(), file.request_base(), file.request_bytes());
      replies.bind(file.reply_words(), file.reply_base(), file.reply_bytes());
      Journal journal;
      journal.open(journal_path, seq);
      journal.plan(1 << 16);
      file.header()->state.store(static_cast<uint32_t>(RingState::attached));
      WaitPolicy wait;
      wait.spin_ns = random() % 2 ? 20000 : 0;
      wait.sleep_ms = 5;
      wait.poll = &Server::go_on;
      wait.context = this;
      uint64_t base = seq;
      while (seq < all) {
        const char* at = stop.load() ? nullptr : requests.peek(sizeof(RecordHeader), wait);
        if (!at) break;
        RecordHeader record;
        std::memcpy(&record, at, sizeof(record));
        if (record.seq != seq + 1 || !requests.available(record.length)) fail("not the next record", record.seq);
        if (requests.published() > requests.capacity()) fail("more than the queue holds", record.seq);
        check(at + sizeof(record), record.key_bytes, record.seq, "wrong record");
        journal.append(record, at + sizeof(record));
        seq = record.seq;
        if (record.flags & kReply) {
          const size_t body = random() % 100, length = padded(sizeof(ReplyHeader) + body);
          char* place = replies.reserve(length, wait);
          if (!place) fail("one reply has no room", seq);
          const ReplyHeader head{static_cast<uint32_t>(length), static_cast<uint32_t>(body), seq, 0, 0};
          std::memcpy(place, &head, sizeof(head));
          fill(place + sizeof(head), body, seq + 7);
          replies.advance(length);
          replies.publish();
        }
        file.header()->done_seq.store(seq, std::memory_order_release);
        done.store(seq);
        requests.release(record.length);
        if (random() % 400 == 0) {
          replay(journal, base, seq);
          journal.restart(seq);
          base = seq;
        }
      }
      replay(journal, base, seq);
      journal.remove();
      file.header()->state.store(static_cast<uint32_t>(RingState::detached));
      std::unique_lock<std::mutex> lock(mutex);
      if (!stop.load()) continue;
      paused = true;
      changed.notify_all();
      changed.wait(lock, [&] { return !stop.load(); });
      paused = false;
    }
  }
  void replay(const Journal& journal, uint64_t base, uint64_t last) {
    uint64_t position = 0, seq = base;
    RecordHeader record;
    while (const char* body = journal.next(position, record)) {
      if (record.seq != ++seq) fail("the journal has a gap", record.seq);
      check(body, record.key_bytes, record.seq, "wrong body in the journal");
    }
    if (seq != last) fail("the journal ends early", seq);
  }
  // As the control thread does it: stop between two records, look, go on.
  void pause() {
    {
      std::unique_lock<std::mutex> lock(mutex);
      stop.store(true);
      if (!changed.wait_for(lock, std::chrono::seconds(1), [&] { return paused; })) {
        stop.store(false);  // it has ended meanwhile
        changed.notify_all();
        return;
      }
      pauses.fetch_add(1);
      stop.store(false);
    }
    changed.notify_all();
  }
};

// ---- copies to a device that is late

class LateDevice final : public Copies {
 public:
  LateDevice(size_t slots, size_t slot_bytes, size_t device_bytes)
      : memory(device_bytes), buffers_(slots, std::vector<char>(slot_bytes)), wanted_(slots), finished_(slots),
        thread_([this] { run(); }) {}
  ~LateDevice() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      end_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  char* buffer(size_t slot) override { return buffers_[slot].data(); }
  void to_device(size_t slot, uint64_t offset, uint64_t bytes) override { start({slot, offset, bytes, true}); }
  void to_host(size_t slot, uint64_t offset, uint64_t bytes) override { start({slot, offset, bytes, false}); }
  void wait(size_t slot) override {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return finished_[slot] == wanted_[slot]; });
  }
  std::vector<char> memory;

 private:
  struct Job {
    size_t slot;
    uint64_t offset, bytes;
    bool to_device;
  };
  void start(Job job) {
    std::lock_guard<std::mutex> lock(mutex_);
    wanted_[job.slot]++;
    jobs_.push_back(job);
    changed_.notify_all();
  }
  void run() {
    std::mt19937 random(1);
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return end_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const Job job = jobs_.front();
      jobs_.pop_front();
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      if (job.to_device) std::memcpy(memory.data() + job.offset, buffers_[job.slot].data(), job.bytes);
      else std::memcpy(buffers_[job.slot].data(), memory.data() + job.offset, job.bytes);
      lock.lock();
      finished_[job.slot]++;
      changed_.notify_all();
    }
  }
  std::vector<std::vector<char>> buffers_;
  std::vector<uint64_t> wanted_, finished_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool end_ = false;
  std::thread thread_;
};

uint64_t copy_late(unsigned seed) {
  std::mt19937 random(seed);
  uint64_t copies = 0;
  for (const size_t slots : {1, 2, 3, 4}) {
    constexpr size_t kSlot = 512, kDevice = 16384;
    LateDevice device(slots, kSlot, kDevice);
    Pipeline pipeline(slots, kSlot);
    std::vector<char> mirror(kDevice), record, back;
    for (int i = 0; i < 60; i++, copies++) {
      const uint64_t bytes = random() % 4 ? random() % 3000 : random() % 2 * kSlot, offset = random() % (kDevice - 3000);
      if (random() % 3) {
        record.resize(bytes + 1);
        fill(record.data(), bytes, random());
        pipeline.send(device, offset, bytes, [&](char* to, uint64_t at, uint64_t n) { std::memcpy(to, record.data() + at, n); });
        std::memcpy(mirror.data() + offset, record.data(), bytes);
        std::memset(record.data(), 0, bytes);  // the record has left the ring; the device is still copying
      } else {
        back.assign(bytes + 1, 1);
        pipeline.fetch(device, offset, bytes, [&](const char* from, uint64_t at, uint64_t n) { std::memcpy(back.data() + at, from, n); });
        if (std::memcmp(back.data(), mirror.data() + offset, bytes)) fail("a copy brought something else", offset);
      }
    }
    pipeline.settle(device);
    if (mirror != device.memory) fail("the device holds something else", slots);
  }
  return copies;
}

// ---- a file that is shortened under its reader

uint64_t shorten(const std::string& path, unsigned seed) {
  std::mt19937 random(seed);
  uint64_t hits = 0;
  constexpr size_t kBytes = 1 << 16;
  for (int i = 0; i < 30; i++) {
    const Descriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (::ftruncate(fd.get(), kBytes)) fail("cannot lengthen", 0);
    auto* at = static_cast<volatile char*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
    {
      const Guard guard(const_cast<char*>(at), kBytes);
      std::thread cutter([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
        if (::ftruncate(fd.get(), 0)) fail("cannot shorten", 0);
      });
      int sum = 0;
      for (int round = 0; round < 200000 && !guard.hit(); round++) sum += at[(round * 4096) % kBytes];
      cutter.join();
      for (size_t page = 0; page < kBytes; page += 4096) at[page] = static_cast<char>(sum);
      if (!guard.hit()) fail("a missing page was not noticed", 0);
      hits++;
    }
    ::munmap(const_cast<char*>(at), kBytes);
  }
  return hits;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  const std::string folder = arguments[1];
  const auto seed = static_cast<unsigned>(std::atoi(arguments[2]));
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::thread> threads;
  for (int i = 0; i < kRings; i++) {
    const std::string path = folder + "/ring" + std::to_string(i);
    workers.push_back(std::make_unique<Worker>(path + ".ring"));
    servers.push_back(std::make_unique<Server>());
    servers.back()->path = path + ".ring";
    servers.back()->journal_path = path + ".journal";
  }
  std::atomic<bool> ending{false};
  std::atomic<uint64_t> copies{0}, hits{0};
  for (int i = 0; i < kRings; i++) {
    threads.emplace_back(&Server::run, servers[static_cast<size_t>(i)].get(), seed + 100u * static_cast<unsigned>(i));
    for (int s = 0; s < kSenders; s++)
      threads.emplace_back(&Worker::send, workers[static_cast<size_t>(i)].get(), seed + static_cast<unsigned>(10 * i + s));
  }
  std::thread copier([&] { copies = copy_late(seed); });
  std::thread cutter([&] { hits = shorten(folder + "/cut", seed); });
  std::thread control([&] {
    std::mt19937 random(seed + 9);
    while (!ending.load()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1 + random() % 3));
      servers[random() % kRings]->pause();
    }
  });
  for (std::thread& thread : threads) thread.join();
  ending.store(true);
  copier.join();
  cutter.join();
  control.join();
  uint64_t records = 0, pauses = 0;
  for (const auto& server : servers) {
    records += server->done.load();
    pauses += server->pauses.load();
  }
  if (records != uint64_t{kRings} * kSenders * kRecords) fail("records are missing", records);
  std::printf("ok %llu %llu %llu %llu\n", static_cast<unsigned long long>(records), static_cast<unsigned long long>(pauses),
              static_cast<unsigned long long>(copies.load()), static_cast<unsigned long long>(hits.load()));
  return 0;
}
