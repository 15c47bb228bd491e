// What a worker knows of its memory on one virtual device: how much it is, and which addresses it has.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace singularity {

// A storage that died: its id is told to the proxy (0: it has none), its address is used again.
struct Freed {
  uint64_t id;
  void* address;
  uint64_t bytes;
  struct StorageRecord* record = nullptr;  // what hung on it; to be used again
};

// Counters of live storages as torch.cuda.memory_stats() names them. An allocation counts as soon as
// the worker has asked for it, as on CUDA, whether or not the proxy has executed it already. `add` is
// called under one lock and `remove` under another, so each word has one writer at a time.
class Usage {
 public:
  enum Pool { kSmall, kLarge, kAll };  // up to 1 MiB, larger, both: CUDA's two pools
  struct Figures {
    int64_t current = 0, peak = 0, added = 0, removed = 0;
  };
  void add(uint64_t bytes);
  void remove(uint64_t bytes);
  uint64_t allocated_bytes() const {
    return static_cast<uint64_t>(current(kBytes, kSmall) + current(kBytes, kLarge));
  }
  Figures allocated(Pool pool) const { return figures(kBytes, pool); }
  Figures requested(Pool pool) const { return figures(kRequested, pool); }
  Figures count(Pool pool) const { return figures(kCount, pool); }
  void reset_peak();         // under the lock of `add`
  void reset_accumulated();  // likewise

 private:
  enum What { kBytes, kRequested, kCount, kWhats };
  using Word = std::atomic<int64_t>;
  int64_t current(What what, int pool) const {
    return added_[what][pool].load(std::memory_order_relaxed) - removed_[what][pool].load(std::memory_order_relaxed);
  }
  void raise_peaks(What what, int pool);
  Figures figures(What what, Pool pool) const;
  Word added_[kWhats][2]{}, removed_[kWhats][2]{}, peak_[kWhats][3]{};
  Word added_before_[kWhats][2]{}, removed_before_[kWhats][2]{};  // at the last reset_accumulated
};

// Unique addresses from a reservation without memory: pointer arithmetic works, and touching one is a
// clean SIGSEGV instead of someone else's bytes. An address is used again for a storage of about the
// same size, after the last one that had it is gone. Guarded by the owner.
class Addresses {
 public:
  void* take(uint64_t bytes);
  void give_back(void* address, uint64_t bytes);

 private:
  using List = std::vector<void*>;
  List& unused(uint64_t rounded_bytes);
  std::vector<List> small_;                   // up to 1 MiB: by number of grains, without a look-up
  std::unordered_map<uint64_t, List> large_;  // by rounded size
};

}  // namespace singularity
