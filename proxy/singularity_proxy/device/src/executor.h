// Executes records on a State. One per ring, used by the ring's thread only.
#pragma once

#include <ATen/core/stack.h>

#include <array>
#include <vector>

#include "reader.h"
#include "state.h"
#include "wire/records.h"

namespace singularity {

// True for records that change nothing: they only ask.
constexpr bool only_asks(Kind kind) {
  return kind == Kind::read || kind == Kind::get_rng || kind == Kind::sync || kind == Kind::event_time ||
         kind == Kind::compile;
}

// When an event happened: the ring's thread writes its clock where an operator has its number, so
// that the journal keeps it.
inline void stamp(RecordHeader& record, uint64_t ns) {
  record.op = static_cast<uint32_t>(ns);
  record.key_bytes = static_cast<uint32_t>(ns >> 32);
}
inline uint64_t stamp_of(const RecordHeader& record) {
  return record.op | static_cast<uint64_t>(record.key_bytes) << 32;
}

// The tensor that a storage was last used as. Parameters and their optimizer state come with the same
// shape in every step; making a tensor for each use would cost as much as calling a small operator.
class RecentTensors {
 public:
  struct Entry {
    uint64_t id = 0;          // of the storage; 0: empty
    bool contiguous = false;  // as kContiguous has it: also the strides of dimensions of size one
    at::Tensor tensor;
  };
  Entry& of(uint64_t id) { return entries_[id % entries_.size()]; }
  // The storage is freed or replaced: its memory must not live on in here.
  void forget(uint64_t id) {
    Entry& entry = of(id);
    if (entry.id != id) return;
    entry.id = 0;
    entry.tensor.reset();
  }

 private:
  std::array<Entry, 2048> entries_;
};

class Executor {
 public:
  explicit Executor(State& state);

  // Executes one record; the payload of its reply (if it asks for one) is appended to `reply`.
  // Throws what the operation throws. Not for Kind::read: its bytes go straight to the queue.
  void execute(const RecordHeader& record, const char* body, Buffer& reply);
  // Until the device has finished everything so far. A cpu device is never behind; any other one works
  // on while its proxy reads the next record.
  void settle() const;
  uint64_t operations() const { return operations_; }

  // What a failed record leaves behind when its worker does not learn of it at once.
  void mark_failed(const RecordHeader& record, const std::string& origin);
  // "aten::mm", or what the record does, for error texts.
  std::string name_of(const RecordHeader& record) const;

 private:
  void run(const RecordHeader& record, const char* body, Buffer& reply);
  void call(OperatorEntry& op, size_t count, const char* key, size_t key_bytes);
  void results(const RecordHeader& record, const OperatorEntry& op, Buffer& reply);
  void tensor_result(const at::Tensor& tensor, bool all_new, Buffer* reply);
  c10::IValue argument(Reader& key, Reader& values, bool inside = false);
  c10::IValue scalar(uint8_t tag, Reader& key, Reader& values) const;
  at::Tensor device_tensor(Reader& key, Reader& values);
  // sparse.cpp: see wire/layouts.h
  at::Tensor sparse_tensor(Reader& key, Reader& values);
  void sparse_result(const at::Tensor& tensor, Buffer* reply);
  static at::Tensor host_tensor(uint8_t tag, Reader& key, Reader& values);

  State& state_;
  const c10::DispatchKeySet device_key_;
  RecentTensors recent_;
  bool plain_ = true;                           // no tensor of the record has a lazy conjugate or negative
  TurnTaker turns_;
  torch::jit::Stack stack_, kept_;
  std::vector<c10::StorageImpl*> inputs_;       // of the record's device tensors, in order
  std::vector<c10::Storage> made_;              // new storages of its results, in order
  uint64_t operations_ = 0;
};

}  // namespace singularity
