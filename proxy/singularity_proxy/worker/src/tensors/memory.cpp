#include "memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "worker/src/ring/channel.h"

namespace singularity {
namespace {

constexpr uint64_t kSmallBytes = 1 << 20;
constexpr uint64_t kGrain = 512;  // of addresses, and of CUDA's allocator

uint64_t grains(uint64_t bytes) { return std::max<uint64_t>((bytes + kGrain - 1) & ~(kGrain - 1), kGrain); }

// What an allocation takes on the device: a cpu device counts every byte, CUDA's allocator its blocks.
int64_t block_bytes(uint64_t bytes) { return static_cast<int64_t>(proxy_is_cpu() ? bytes : grains(bytes)); }

// Sizes that share their addresses: exact ones up to 1 MiB, eighths of a power of two above, so that
// at most an eighth of the address space is wasted and the number of lists is bounded.
uint64_t size_class(uint64_t bytes) {
  const uint64_t n = grains(bytes);
  if (n <= kSmallBytes) return n;
  const uint64_t step = std::bit_floor(n) / 8;
  return (n + step - 1) / step * step;
}

class Reservation {
 public:
  Reservation() {
    for (uint64_t bytes : {1ull << 44, 1ull << 40, 1ull << 36, 1ull << 32}) {  // under a ulimit -v: smaller
      void* area = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (area == MAP_FAILED) continue;
      base_ = static_cast<char*>(area);
      bytes_ = bytes;
      return;
    }
    TORCH_CHECK(false, "no address space is left for device pointers (4 GiB are needed; see ulimit -v)");
  }
  void* take(uint64_t bytes) {
    uint64_t at = next_.load();
    do {
      TORCH_CHECK_WITH(OutOfMemoryError, bytes <= bytes_ - at, "no address space is left for device pointers (", bytes_,
                       " bytes are reserved; see ulimit -v): free tensors that are not needed any more");
    } while (!next_.compare_exchange_weak(at, at + bytes));
    return base_ + at;
  }

 private:
  char* base_ = nullptr;
  uint64_t bytes_ = 0;
  std::atomic<uint64_t> next_{0};
};

void increase(std::atomic<int64_t>& word, int64_t by) {  // one writer at a time: no locked instruction is needed
  word.store(word.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}
void raise(std::atomic<int64_t>& word, int64_t to) {
  if (to > word.load(std::memory_order_relaxed)) word.store(to, std::memory_order_relaxed);
}

}  // namespace

void Usage::add(uint64_t bytes) {
  if (!bytes) return;
  const int pool = bytes > kSmallBytes;
  increase(added_[kBytes][pool], block_bytes(bytes));
  increase(added_[kRequested][pool], static_cast<int64_t>(bytes));
  increase(added_[kCount][pool], 1);
  for (const What what : {kBytes, kRequested, kCount}) raise_peaks(what, pool);
}
void Usage::remove(uint64_t bytes) {
  if (!bytes) return;
  const int pool = bytes > kSmallBytes;
  increase(removed_[kBytes][pool], block_bytes(bytes));
  increase(removed_[kRequested][pool], static_cast<int64_t>(bytes));
  increase(removed_[kCount][pool], 1);
}
void Usage::raise_peaks(What what, int pool) {
  const int64_t now = current(what, pool);
  raise(peak_[what][pool], now);
  raise(peak_[what][kAll], now + current(what, 1 - pool));
}
Usage::Figures Usage::figures(What what, Pool pool) const {
  Figures sum;
  for (int p = 0; p < 2; p++) {
    if (pool != kAll && pool != p) continue;
    sum.current += current(what, p);
    sum.added += added_[what][p].load() - added_before_[what][p].load();
    sum.removed += removed_[what][p].load() - removed_before_[what][p].load();
  }
  sum.peak = std::max(peak_[what][pool].load(), sum.current);
  return sum;
}
void Usage::reset_peak() {
  for (int what = 0; what < kWhats; what++) {
    const int64_t small = current(static_cast<What>(what), 0), large = current(static_cast<What>(what), 1);
    peak_[what][kSmall].store(small);
    peak_[what][kLarge].store(large);
    peak_[what][kAll].store(small + large);
  }
}
void Usage::reset_accumulated() {
  for (int what = 0; what < kWhats; what++)
    for (int pool = 0; pool < 2; pool++) {
      added_before_[what][pool].store(added_[what][pool].load());
      removed_before_[what][pool].store(removed_[what][pool].load());
    }
}

Addresses::List& Addresses::unused(uint64_t rounded_bytes) {
  if (rounded_bytes > kSmallBytes) return large_[rounded_bytes];
  if (small_.empty()) small_.resize(kSmallBytes / kGrain + 1);
  return small_[rounded_bytes / kGrain];
}
void* Addresses::take(uint64_t bytes) {
  static Reservation& space = *new Reservation();
  const uint64_t n = size_class(bytes);
  List& addresses = unused(n);
  if (addresses.empty()) return space.take(n);
  void* address = addresses.back();
  addresses.pop_back();
  return address;
}
void Addresses::give_back(void* address, uint64_t bytes) {
  if (address) unused(size_class(bytes)).push_back(address);
}

}  // namespace singularity
