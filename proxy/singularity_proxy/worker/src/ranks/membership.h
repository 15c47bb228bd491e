// A rank's place in a process group, on one virtual device: what it tells the device proxy of it.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "worker/src/ring/channel.h"
#include "wire/fold_order.h"

namespace singularity {

// A stretch of a tensor's memory. What travels has one dimension and is contiguous.
struct Stretch {
  at::Tensor tensor;
  c10::ScalarType dtype;
  int64_t offset, count;  // elements of `dtype`, from the start of the storage
};
using Stretches = c10::SmallVector<Stretch, 2>;

struct Fold {
  Reduction reduction = Reduction::sum;
  double factor = 1;
};

class Membership {
 public:
  using Milliseconds = std::chrono::milliseconds;
  Membership(int device, const GroupId& id, int rank, int size, FoldOrder order, Milliseconds timeout, std::string name);
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;
  ~Membership() { leave(); }

  // Each waits until a device is attached, and raises an earlier record's error.
  void join();  // without it the first collective joins
  // Returns the number of its record. Sequence numbers follow the order of the records, whatever thread sends them.
  uint64_t issue(Collective what, const Fold& fold, int64_t root, const Stretches& inputs, const Stretches& outputs);
  void set_timeout(Milliseconds timeout);

  void leave();  // told with the channel's next record
  // Until everything sent so far is done, collectives included. False when it is not at `deadline`.
  bool wait(std::chrono::steady_clock::time_point deadline) const;

  int device() const { return channel_.index; }
  uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }

 private:
  void tell(Channel& c);  // under its lock
  void put_stretches(Channel& c, const Stretches& stretches) const;

  Channel& channel_;
  const GroupId id_;
  const int rank_, size_;
  const FoldOrder order_;
  const std::string name_;
  // under the channel's lock
  Milliseconds timeout_;
  uint64_t number_ = 0;  // of the group on this ring; 0: not joined
  std::atomic<uint64_t> sequence_{0};
  std::map<int64_t, uint64_t> sent_, received_;  // by the other end
};

// A rank left the group of this number. Called by `Channel::flush_frees`.
void forget_group(Channel& channel, uint64_t number);
constexpr uint64_t kGroupNumber = 3ull << 62;  // in Freed::id: not a storage but a group

}  // namespace singularity
