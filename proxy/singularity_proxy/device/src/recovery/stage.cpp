#include "stage.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <optional>

namespace singularity {

class Stage::TorchCopies final : public Copies {
 public:
  TorchCopies(Stage& stage, c10::Device device, size_t slots, uint64_t bytes) : stage_(stage), device_(device) {
    const auto plain = at::TensorOptions().dtype(at::kByte);
    const auto size = static_cast<int64_t>(bytes);
    stage.pinned_ = !device.is_cpu();
    for (size_t i = 0; i < slots; i++) {
      Slot slot;
      try {
        slot.memory = at::empty({size}, plain.pinned_memory(stage.pinned_));
      } catch (const c10::Error&) {  // no more memory can be pinned: slower, and as right
        stage.pinned_ = false;
        slot.memory = at::empty({size}, plain);
      }
      if (!device.is_cpu()) slot.done.emplace(device.type());
      slots_.push_back(std::move(slot));
    }
  }
  char* buffer(size_t slot) override { return static_cast<char*>(slots_[slot].memory.mutable_data_ptr()); }
  void to_device(size_t slot, uint64_t offset, uint64_t bytes) override {
    on_device(offset, bytes).copy_(on_host(slot, bytes), /*non_blocking=*/true);
    mark(slot);
  }
  void to_host(size_t slot, uint64_t offset, uint64_t bytes) override {
    on_host(slot, bytes).copy_(on_device(offset, bytes), /*non_blocking=*/true);
    mark(slot);
  }
  void wait(size_t slot) override {
    if (slots_[slot].done) slots_[slot].done->synchronize();
  }

 private:
  struct Slot {
    at::Tensor memory;
    std::optional<c10::Event> done;
  };
  at::Tensor on_host(size_t slot, uint64_t bytes) { return slots_[slot].memory.narrow(0, 0, static_cast<int64_t>(bytes)); }
  at::Tensor on_device(uint64_t offset, uint64_t bytes) const {
    const auto options = at::TensorOptions().dtype(at::kByte).device(stage_.storage_->device());
    return at::empty({0}, options).set_(*stage_.storage_, static_cast<int64_t>(offset), {static_cast<int64_t>(bytes)}, {1});
  }
  void mark(size_t slot) {
    if (!slots_[slot].done) return;
    const auto* guard = c10::impl::getDeviceGuardImpl(device_.type());
    slots_[slot].done->record(guard->getStream(device_));
  }
  Stage& stage_;
  const c10::Device device_;
  std::vector<Slot> slots_;
};

Stage::Stage(c10::Device device, size_t slots, uint64_t slot_bytes)
    : copies_(std::make_unique<TorchCopies>(*this, device, slots, slot_bytes)), pipeline_(slots, slot_bytes) {}

Stage::~Stage() {
  try {
    settle();
  } catch (...) {  // the device is gone: nothing copies any more
  }
}

}  // namespace singularity
