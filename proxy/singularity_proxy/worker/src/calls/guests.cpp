#include "guests.h"

#include "worker/src/tensors/device.h"
#include "ship.h"

namespace singularity {

using at::Tensor;
using c10::IValue;

namespace {

uint64_t bytes_on_host(const IValue& v) {
  if (!v.isTensor()) return 0;
  const Tensor& t = v.toTensor();
  return t.defined() && t.is_cpu() && t.dim() ? t.nbytes() : 0;
}

// Takes the bytes of `v` from `room`; false: there is too little.
bool fits(const IValue& v, uint64_t& room) {
  const uint64_t bytes = bytes_on_host(v);
  if (bytes > room) return false;
  room -= bytes;
  return true;
}

void bring_hosts(IValue& v, uint64_t& room, c10::Device device) {
  if (v.isTensor()) {
    if (!fits(v, room)) v = v.toTensor().to(device);
    return;
  }
  if (!v.isList()) return;
  const auto items = v.toListRef();
  uint64_t all = 0;
  for (const IValue& item : items) all += bytes_on_host(item);
  if (C10_LIKELY(all <= room)) {
    room -= all;
    return;
  }
  c10::List<std::optional<Tensor>> list;  // the caller's own stays as it is
  for (const IValue& item : items) {
    if (!item.isTensor()) list.push_back(std::nullopt);
    else list.push_back(fits(item, room) ? item.toTensor() : item.toTensor().to(device));
  }
  v = std::move(list);
}

}  // namespace

Guests::Guests(const Operator& op, torch::jit::Stack& stack) {
  const Channel& c = channel_of(torch::jit::last(stack, op.arguments));
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(c.index));
  uint64_t room = kMaxPayloadBytes;
  for (size_t i = 0; i < op.arguments; i++) {
    IValue& v = torch::jit::peek(stack, i, op.arguments);
    if (op.is_host[i]) {
      bring_hosts(v, room, device);
    } else if (v.isGenerator() && v.toGenerator().device().is_cuda() && v.toGenerator().device() != device) {
      owner_ = v.toGenerator();
      guest_ = copy_generator(owner_, c.index);
      v = guest_;
    }
  }
}

void Guests::go_home() {
  if (C10_UNLIKELY(owner_.defined())) owner_.set_state(guest_.get_state());
}

}  // namespace singularity
