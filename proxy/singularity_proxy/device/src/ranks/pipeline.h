// The order in which bytes go through a few buffers to and from a device that copies on its own time.
//
// A buffer is filled again only when the copy that last used it is done, so the memory that the bytes
// came from (a record in the ring, a page of a file) is free as soon as they are in a buffer. Nothing
// here knows torch or CUDA: `Copies` starts a copy and waits for one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace singularity {

// Copies between buffer `slot` and bytes of the device; each is started and goes on by itself, in order.
class Copies {
 public:
  virtual ~Copies() = default;
  virtual char* buffer(size_t slot) = 0;
  virtual void to_device(size_t slot, uint64_t offset, uint64_t bytes) = 0;
  virtual void to_host(size_t slot, uint64_t offset, uint64_t bytes) = 0;
  virtual void wait(size_t slot) = 0;  // until the newest copy of that buffer is done
};

class Pipeline {
 public:
  Pipeline(size_t slots, uint64_t slot_bytes) : busy_(slots), slot_bytes_(slot_bytes) {}

  // `fill(buffer, at, n)` puts bytes [at, at + n) into a buffer. Returns when the last copy is started.
  template <class Fill>
  void send(Copies& copies, uint64_t offset, uint64_t bytes, Fill fill) {
    for (uint64_t at = 0; at < bytes; at += slot_bytes_) {
      const size_t slot = take(copies);
      const uint64_t n = std::min(slot_bytes_, bytes - at);
      fill(copies.buffer(slot), at, n);
      copies.to_device(slot, offset + at, n);
      busy_[slot] = true;
    }
  }

  // `drain(buffer, at, n)` takes bytes [at, at + n) out of a buffer, while the next copy goes on.
  template <class Drain>
  void fetch(Copies& copies, uint64_t offset, uint64_t bytes, Drain drain) {
    size_t slot = 0, following = 0;
    const auto start = [&](uint64_t at) {
      following = take(copies);
      copies.to_host(following, offset + at, std::min(slot_bytes_, bytes - at));
      busy_[following] = true;
    };
    if (bytes) start(0);
    for (uint64_t at = 0; at < bytes; at += slot_bytes_) {
      slot = following;
      if (at + slot_bytes_ < bytes && busy_.size() > 1) start(at + slot_bytes_);
      release(copies, slot);
      drain(copies.buffer(slot), at, std::min(slot_bytes_, bytes - at));
      if (at + slot_bytes_ < bytes && busy_.size() == 1) start(at + slot_bytes_);
    }
  }

  // Until nothing uses a buffer any more. An exception in `fill` or `drain` leaves copies under way.
  void settle(Copies& copies) {
    for (size_t slot = 0; slot < busy_.size(); slot++) release(copies, slot);
  }

 private:
  void release(Copies& copies, size_t slot) {
    if (busy_[slot]) copies.wait(slot);
    busy_[slot] = false;
  }
  size_t take(Copies& copies) {
    const size_t slot = next_;
    next_ = (next_ + 1) % busy_.size();
    release(copies, slot);
    return slot;
  }
  std::vector<bool> busy_;
  const uint64_t slot_bytes_;
  size_t next_ = 0;
};

}  // namespace singularity
