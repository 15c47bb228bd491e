// Executes records on a State. One per ring, used by the ring's thread only.
#pragma once

#include <ATen/core/stack.h>

#include <vector>

#include "device/src/recovery/lineage.h"
#include "reader.h"
#include "device/src/memory/state.h"
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

// A collective as its record has it.
struct CollectiveCall {
  uint64_t seq = 0;
  Collective what = Collective::barrier;
  Reduction reduction = Reduction::sum;
  double factor = 1;
  int64_t root = -1;
  std::vector<at::Tensor> inputs, outputs;
  std::vector<uint64_t> output_ids;  // their storages
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
  Lineage& lineage() { return lineage_; }
  // From here on the identities of storages are kept, and shared ones are owned before they are written.
  void keep_lineage() { kept_lineage_ = &lineage_; }
  // Finds out what an operator's record does to lineage, before it is executed.
  void look(const RecordHeader& record, const char* body);
  bool keeps_lineage() const { return kept_lineage_; }
  size_t last_made() const { return last_made_; }  // new storages of the last operator

  // collective.cpp. Without `tensors` only the numbers, for a call whose tensors cannot be had.
  CollectiveCall collective(const RecordHeader& record, const char* body, bool tensors);
  void make_pending(const CollectiveCall& call, uint64_t ticket);

  // What a failed record leaves behind when its worker does not learn of it at once.
  void mark_failed(const RecordHeader& record, const std::string& origin);
  // "aten::mm", or what the record does, for error texts.
  std::string name_of(const RecordHeader& record) const;

 private:
  class Warnings;
  void run(const RecordHeader& record, const char* body, Buffer& reply);
  void resize(uint64_t id, uint64_t bytes);
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
  bool plain_ = true;                           // no tensor of the record has a lazy conjugate or negative
  Lineage lineage_;
  Lineage* kept_lineage_ = nullptr;             // nullptr: nobody asks
  TurnTaker turns_;
  torch::jit::Stack stack_, kept_;
  std::vector<c10::StorageImpl*> inputs_;       // of the record's device tensors, in order
  std::vector<c10::Storage> made_;              // new storages of its results, in order
  size_t last_made_ = 0;
  uint64_t operations_ = 0;
};

}  // namespace singularity
