// Producer and consumer over a real ring file, for the sanitizers. Usage: ring_stress FILE SEED
// Sends records of random lengths both ways; each side checks every byte that it receives. Pauses make
// both ends sleep on "full" and "empty" too. Prints "ok <requests> <wraps>" or what was wrong.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "wire/records.h"
#include "wire/ring.h"

using namespace singularity;

namespace {

constexpr int kRecords = 6000;
constexpr int kCredit = 8;  // replies that may be unread

[[noreturn]] void fail(const char* what, uint64_t seq) {
  std::printf("%s at record %llu\n", what, static_cast<unsigned long long>(seq));
  std::exit(1);
}

size_t body_of(std::mt19937& random) {
  return random() % 16 ? random() % 300 : random() % 6000;
}
void nap(std::mt19937& random) {
  if (random() % 150 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
}
void fill(char* at, size_t n, uint64_t seq) {
  for (size_t i = 0; i < n; i++) at[i] = static_cast<char>(seq * 31 + i);
}
void check(const char* at, size_t n, uint64_t seq, const char* who) {
  for (size_t i = 0; i < n; i++)
    if (at[i] != static_cast<char>(seq * 31 + i)) fail(who, seq);
}

WaitPolicy policy(uint64_t spin_ns) {
  WaitPolicy p;
  p.spin_ns = spin_ns;
  p.sleep_ms = 50;
  return p;
}

// Takes replies, in order. Waits for one only when `wait`.
uint64_t take_replies(Consumer& replies, uint64_t seen, uint64_t least, const WaitPolicy& wait) {
  while (replies.available(sizeof(ReplyHeader)) || seen < least) {
    const char* at = replies.peek(sizeof(ReplyHeader), wait);
    ReplyHeader head;
    std::memcpy(&head, at, sizeof(head));
    at = replies.peek(head.length, wait) + sizeof(head);
    if (head.seq != seen + 1) fail("reply out of order", head.seq);
    check(at, head.payload_bytes, head.seq + 7, "wrong reply");
    replies.release(head.length);
    seen++;
  }
  return seen;
}

void worker(const char* path, unsigned seed) {
  RingFile file;
  file.open(path);
  Producer requests;
  Consumer replies;
  requests.bind(file.request_words(), file.request_base(), file.header()->request_bytes);
  replies.bind(file.reply_words(), file.reply_base(), file.header()->reply_bytes);
  std::mt19937 random(seed);
  const WaitPolicy wait = policy(random() % 2 ? 30000 : 0);
  uint64_t seen = 0;
  for (uint64_t seq = 1; seq <= kRecords; seq++) {
    const size_t body = body_of(random), length = padded(sizeof(RecordHeader) + body);
    char* place = requests.reserve(length, wait);
    const RecordHeader header{static_cast<uint32_t>(length), 1, 0, seq, 0, static_cast<uint32_t>(body), 0};
    std::memcpy(place, &header, sizeof(header));
    fill(place + sizeof(header), body, seq);
    requests.advance(length);
    if (random() % 4 || seq == kRecords) requests.publish();  // several records may appear at once
    else if (random() % 2) requests.publish();
    nap(random);
    // More unread replies than fit would stop the other side, and then this one.
    if (seq - seen > kCredit || random() % 8 == 0) {
      requests.publish();
      seen = take_replies(replies, seen, seq > kCredit ? seq - kCredit : 0, wait);
    }
  }
  requests.publish();
  take_replies(replies, seen, kRecords, wait);
}

void proxy(const char* path, unsigned seed) {
  RingFile file;
  file.open(path);
  Consumer requests;
  Producer replies;
  std::mt19937 random(seed + 1);
  uint64_t seq = 0;
  // Detaches and attaches several times, as proxies do: positions come from the header alone.
  while (seq < kRecords) {
    requests.bind(file.request_words(), file.request_base(), file.header()->request_bytes);
    replies.bind(file.reply_words(), file.reply_base(), file.header()->reply_bytes);
    const WaitPolicy wait = policy(random() % 2 ? 30000 : 0);
    const uint64_t until = std::min<uint64_t>(seq + 500 + random() % 1000, kRecords);
    while (seq < until) {
      const char* at = requests.peek(sizeof(RecordHeader), wait);
      RecordHeader header;
      std::memcpy(&header, at, sizeof(header));
      if (header.seq != seq + 1) fail("record out of order", header.seq);
      if (!requests.available(header.length)) fail("incomplete record", header.seq);
      check(at + sizeof(header), header.key_bytes, header.seq, "wrong record");
      const size_t body = random() % 200, length = padded(sizeof(ReplyHeader) + body);
      char* place = replies.reserve(length, wait);
      const ReplyHeader reply{static_cast<uint32_t>(length), static_cast<uint32_t>(body), header.seq, 0, 0};
      std::memcpy(place, &reply, sizeof(reply));
      fill(place + sizeof(reply), body, header.seq + 7);
      replies.advance(length);
      replies.publish();
      requests.release(header.length);
      seq = header.seq;
      nap(random);
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  const auto seed = static_cast<unsigned>(std::atoi(arguments[2]));
  std::thread consumer(proxy, arguments[1], seed);
  worker(arguments[1], seed);
  consumer.join();
  RingFile file;
  file.open(arguments[1]);
  const RingHeader* header = file.header();
  if (header->request.head.load() != header->request.tail.load() || header->reply.head.load() != header->reply.tail.load())
    fail("something is left", 0);
  std::printf("ok %d %llu\n", kRecords, static_cast<unsigned long long>(header->request.tail.load() / header->request_bytes));
  return 0;
}
