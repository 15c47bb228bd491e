// The tensor that a storage was last used as. Parameters and their optimizer state come with the same
// shape in every step; making a tensor for each use would cost as much as calling a small operator.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace singularity {

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

}  // namespace singularity
