// Memory of ranks that wait, in host memory while the rank that runs needs the device for itself.
//
// Nothing is moved before an allocation does not fit. Then go, in this order: storages that only one waiting
// rank holds, of the rank whose turn is farthest first, the largest first; what is on the shelf
// (contributions that are not added yet, and sums that are not complete); storages that several ranks
// share, all of which wait. Each comes back when it is used next. A storage that is away keeps its place:
// only its memory is another one, so whoever knows it need not be told.
//
// A storage whose bytes nobody will ever look at, because a collective's result overwrites all of them,
// need not even go to the host: it gives up its memory at once (`discard`, `take`).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace singularity {

class State;

struct SwapStats {
  uint64_t out_bytes = 0, back_bytes = 0, away_bytes = 0;  // moved so far; in host memory now
};

class Swap {
 public:
  static Swap& one();

  // A rank whose storages may be moved while another one runs, by the order of their turns. Ranks that
  // have entered run one at a time.
  void enter(State& state, uint32_t order);
  void leave(State& state);

  // By the thread of the ring that runs: frees so many bytes of the device, or what there is. False:
  // nothing could be moved.
  bool make_room(uint64_t bytes);
  SwapStats stats() const;
  bool is_tight() const { return out_.load(std::memory_order_relaxed) > 0; }  // something had to be moved

  // ---- memory that nobody reads or writes between these two calls, whoever holds it
  void shelve(const c10::Storage& storage);
  void unshelve(const c10::Storage& storage);  // it is there afterwards; throws when there is no room

  // ---- a storage that will be overwritten whole before anybody reads it
  static void discard(const c10::Storage& storage);  // it is all zeros if it is used all the same
  // The same for the storage of `whole`, a tensor of all of it: its memory is the result's from here on.
  static at::Tensor take(const at::Tensor& whole);

  static bool is_away(const c10::Storage& storage) {
    return !storage.data_ptr().get() && storage.data_ptr().get_deleter() == &Swap::drop;
  }
  // Nothing to do for one that is there. Throws when the device has no memory for it.
  static void bring_back(const c10::Storage& storage) {
    if (__builtin_expect(is_away(storage), 0)) one().fetch(storage);
  }
  // Where the bytes of a storage can be read on the host; nullptr: only on the device.
  static const char* readable(const c10::Storage& storage);

 private:
  struct Away;
  static void drop(void* away);
  static c10::DataPtr empty(const c10::Storage& storage);
  uint64_t move_private(State& state, uint64_t bytes);
  uint64_t move_shelved(uint64_t bytes);
  uint64_t move_shared(State& running, uint64_t bytes);
  bool put_away(const c10::Storage& storage);
  void fetch(const c10::Storage& storage);

  std::mutex mutex_;
  std::vector<std::pair<uint32_t, State*>> ranks_;  // by order
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> shelf_;
  std::atomic<uint64_t> out_{0}, back_{0}, away_{0};
};

}  // namespace singularity
