// Long copies at every place in a line: each byte arrives where it should, nothing beside it changes.
// Prints "ok" and the number of copies, or what went wrong.
#include "wire/bulk.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

using namespace singularity;

namespace {

constexpr size_t kMost = kLongCopy + 3 * kLine;
constexpr char kUntouched = 0x5a;
uint64_t copies = 0;

// `bytes` bytes at `offset` in a line, with a line before and behind that must stay as it is.
class Place {
 public:
  Place(size_t offset, size_t bytes) : memory_(new (std::align_val_t(kLine)) char[kMost + 4 * kLine]), bytes_(bytes) {
    at = memory_ + kLine + offset;
    std::memset(memory_, kUntouched, kMost + 4 * kLine);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() { ::operator delete[](memory_, std::align_val_t(kLine)); }
  void expect(const char* wanted, const char* what) const {
    bool right = std::memcmp(at, wanted, bytes_) == 0;
    for (const char* p = memory_; p < memory_ + kMost + 4 * kLine; p++)
      right = right && (*p == kUntouched || (p >= at && p < at + bytes_));
    copies++;
    if (right) return;
    std::printf("%s of %zu bytes to offset %zu went wrong\n", what, bytes_, static_cast<size_t>(at - memory_) - kLine);
    std::exit(1);
  }
  char* at;

 private:
  char* memory_;
  size_t bytes_;
};

using Stream = void (*)(char*, char*, const char*, size_t);

void streams(const char* from, size_t bytes, Stream nowhere, Stream cached, Stream streamed, const char* what) {
  Place to(0, bytes), half(32, bytes);
  nowhere(to.at, nullptr, from, bytes);
  to.expect(from, what);
  for (const size_t offset : {0, 8, 32}) {
    Place kept(32, bytes), used(offset, bytes);
    cached(kept.at, used.at, from, bytes);
    kept.expect(from, what);
    used.expect(from, what);
  }
  Place kept(0, bytes);
  streamed(kept.at, half.at, from, bytes);
  kept.expect(from, what);
  half.expect(from, what);
}

}  // namespace

int main() {
  std::mt19937_64 random(7);
  std::unique_ptr<char[]> source(new char[kMost + kLine]);
  for (size_t i = 0; i < kMost + kLine; i++) {
    const auto byte = static_cast<char>(random());
    source[i] = byte == kUntouched ? 0 : byte;
  }
  for (const size_t start : {0, 8, 48}) {
    const char* from = source.get() + start;
    for (const size_t bytes : {size_t{0}, kLine, 3 * kLine, kLongCopy}) {
      streams(from, bytes, stream_narrow<Also::nowhere>, stream_narrow<Also::cached>, stream_narrow<Also::streamed>, "narrow");
      if (__builtin_cpu_supports("avx2"))
        streams(from, bytes, stream_wide<Also::nowhere>, stream_wide<Also::cached>, stream_wide<Also::streamed>, "wide");
    }
    for (const size_t bytes : {size_t{0}, size_t{1}, kLine + 5, kLongCopy - 1, kLongCopy, kLongCopy + 1, kLongCopy + 2 * kLine + 7})
      for (const size_t offset : {0, 1, 8, 16, 32, 63}) {
        Place past(offset, bytes);
        copy_past_caches(past.at, from, bytes);
        past.expect(from, "copy_past_caches");
        for (const size_t other : {0, 16, 32, 40})
          for (const bool far : {false, true}) {
            Place kept(offset, bytes), used(other, bytes);
            copy_twice(kept.at, used.at, far, from, bytes);
            kept.expect(from, "copy_twice");
            used.expect(from, "copy_twice");
          }
      }
  }
  std::printf("ok %llu\n", static_cast<unsigned long long>(copies));
}
