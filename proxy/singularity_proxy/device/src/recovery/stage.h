// Pinned host memory between a ring (or a file) and a device: copies run by DMA beside everything else.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Storage.h>

#include <memory>
#include <vector>

#include "device/src/ranks/pipeline.h"

namespace singularity {

// The buffers of one thread. A device of type cpu gets plain memory and copies at once.
class Stage {
 public:
  Stage(c10::Device device, size_t slots, uint64_t slot_bytes);
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  ~Stage();

  // `fill` and `drain` as in Pipeline; `offset` counts bytes of `storage`. The storage may be freed while
  // a copy to it is under way: the device's allocator gives its memory to later work only.
  template <class Fill>
  void send(const c10::Storage& storage, uint64_t offset, uint64_t bytes, Fill fill) {
    storage_ = &storage;
    pipeline_.send(*copies_, offset, bytes, fill);
  }
  template <class Drain>
  void fetch(const c10::Storage& storage, uint64_t offset, uint64_t bytes, Drain drain) {
    storage_ = &storage;
    pipeline_.fetch(*copies_, offset, bytes, drain);
  }
  void settle() { pipeline_.settle(*copies_); }
  bool pinned() const { return pinned_; }

 private:
  class TorchCopies;
  const c10::Storage* storage_ = nullptr;
  bool pinned_ = false;
  std::unique_ptr<Copies> copies_;
  Pipeline pipeline_;
};

}  // namespace singularity
