#include "membership.h"

#include <c10/util/Exception.h>

#include <thread>

#include "worker/src/tensors/device.h"
#include "worker/src/calls/encode.h"
#include "worker/src/ring/interrupts.h"

namespace singularity {
namespace {

void put_integer(Buffer& key, int64_t value) {
  key.put(Tag::integer);
  key.put<int64_t>(value);
}

// For the length of a wait.
struct WithoutGil {
  PyThreadState* saved = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  ~WithoutGil() {
    end_of_wait();
    if (saved) PyEval_RestoreThread(saved);
  }
};

}  // namespace

Membership::Membership(int device, const GroupId& id, int rank, int size, FoldOrder order, Milliseconds timeout, std::string name)
    : channel_(channel(device)), id_(id), rank_(rank), size_(size), order_(order), name_(std::move(name)), timeout_(timeout) {}

void Membership::tell(Channel& c) {
  RecordHeader* record = c.begin(Kind::join_group, 0, kJoinBytes + name_.size());
  record->base = number_ ? number_ : c.next_group;
  record->op = static_cast<uint32_t>(order_);
  char* p = reinterpret_cast<char*>(record + 1);
  const uint32_t numbers[] = {static_cast<uint32_t>(rank_), static_cast<uint32_t>(size_)};
  const auto timeout = static_cast<uint64_t>(timeout_.count());
  const auto name = static_cast<uint32_t>(name_.size());
  std::memcpy(p, id_.data(), 16);
  std::memcpy(p + 16, numbers, 8);
  std::memcpy(p + 24, &timeout, 8);
  std::memcpy(p + 32, &name, 4);
  std::memcpy(p + kJoinBytes, name_.data(), name_.size());
  c.send(record);
  if (!number_) number_ = c.next_group++;
}

void Membership::join() {
  Locked lock(channel_);
  channel_.raise_async_error();
  if (!number_) tell(channel_);
}

void Membership::set_timeout(Milliseconds timeout) {
  if (!channel_.is_open()) {
    timeout_ = timeout;  // told when it joins
    return;
  }
  Locked lock(channel_);
  timeout_ = timeout;
  if (number_) tell(channel_);
}

void Membership::put_stretches(Channel& c, const Stretches& stretches) const {
  c.key.put(Tag::tensor_list);
  c.key.put<uint32_t>(static_cast<uint32_t>(stretches.size()));
  for (const Stretch& one : stretches) {
    const StorageRecord* storage = record_of(one.tensor);
    TORCH_CHECK_VALUE(storage->channel == &c, "Tensors must be on the same GPU device: cuda:", c.index, " and cuda:",
                      storage->channel->index, " in one collective");
    c.key.put(Tag::tensor);
    c.key.put<uint8_t>(static_cast<uint8_t>(one.dtype));
    c.key.put<uint8_t>(1);
    c.key.put<uint8_t>(kContiguous);
    c.key.put<int64_t>(one.count);
    c.values.put<uint64_t>(storage->id);
    c.values.put<int64_t>(one.offset);
  }
}

uint64_t Membership::issue(Collective what, const Fold& fold, int64_t root, const Stretches& inputs, const Stretches& outputs) {
  Channel& c = channel_;
  Locked lock(c);
  c.raise_async_error();
  if (device_count() > 1) c.flush_frees();
  else c.flush_many_frees();
  if (!number_) tell(c);
  const bool pair = what == Collective::send || what == Collective::recv;
  uint64_t* const before = pair ? &(what == Collective::send ? sent_ : received_)[root] : nullptr;
  const uint64_t next = (pair ? *before : sequence()) + 1;

  c.key.clear();
  c.values.clear();
  c.key.put<uint16_t>(kCollectiveArguments);
  put_integer(c.key, static_cast<int64_t>(next));
  put_integer(c.key, static_cast<int64_t>(what));
  put_integer(c.key, static_cast<int64_t>(fold.reduction));
  c.key.put(Tag::value_real);
  c.values.put<double>(fold.factor);
  put_integer(c.key, root);
  put_stretches(c, inputs);
  put_stretches(c, outputs);

  const size_t key_bytes = padded(c.key.size());
  RecordHeader* record = c.begin(Kind::collective, kNoOutputs, key_bytes + c.values.size());
  record->base = number_;
  record->key_bytes = static_cast<uint32_t>(c.key.size());
  char* body = reinterpret_cast<char*>(record + 1);
  std::memcpy(body, c.key.data(), c.key.size());
  std::memcpy(body + key_bytes, c.values.data(), c.values.size());
  const uint64_t number = record->seq;
  c.send(record);
  if (pair) *before = next;
  else sequence_.store(next, std::memory_order_relaxed);
  c.async_records++;
  return number;
}

void Membership::leave() {
  if (number_ && channel_.is_open()) channel_.free_storage({kGroupNumber | number_, nullptr, 0});
  number_ = 0;
}

bool Membership::wait(std::chrono::steady_clock::time_point deadline) const {
  Channel& c = channel_;
  uint64_t last = 0;
  {
    Locked lock(c);
    c.raise_async_error();
    c.flush_frees();
    RecordHeader* record = c.begin(Kind::sync, 0, 0);
    last = record->seq;
    c.send(record);
  }
  {
    const WithoutGil without;
    while (c.header()->done_seq.load(std::memory_order_acquire) < last) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      c.poll();  // Ctrl-C, and a device that is gone for good
      std::this_thread::sleep_for(Milliseconds(1));
    }
  }
  Locked lock(c, false);
  c.raise_async_error();
  return true;
}

void forget_group(Channel& c, uint64_t number) {
  RecordHeader* record = c.begin(Kind::leave_group, 0, 0);
  record->base = number & ~kGroupNumber;
  c.send(record);
}

}  // namespace singularity
