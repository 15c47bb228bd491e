// Memory of ranks that wait, in host memory while the rank that runs needs the device for itself.
//
// Nothing is moved before an allocation does not fit. Then storages that only a waiting rank holds go,
// the largest first of the rank whose turn is farthest; each comes back when it is used next. A storage
// that is away keeps its place: only its memory is another one, so whoever knows it need not be told.
#pragma once

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
  uint64_t move_out(State& state, uint64_t bytes);
  bool put_away(const c10::Storage& storage);
  void fetch(const c10::Storage& storage);

  std::mutex mutex_;
  std::vector<std::pair<uint32_t, State*>> ranks_;  // by order
  std::atomic<uint64_t> out_{0}, back_{0}, away_{0};
};

}  // namespace singularity
