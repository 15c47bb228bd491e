// Proxied storages: the worker knows an id, a size and an address that nobody may touch.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include "worker/src/ring/channel.h"

namespace singularity {

c10::Allocator* device_allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* address);
bool pin_memory(uintptr_t address, size_t bytes);  // memory of somebody else; false: a part of it is pinned
bool unpin_memory(uintptr_t address);              // false: nothing was pinned there by `pin_memory`

void delete_record(void* context);  // of a DataPtr
[[noreturn]] void refuse_storage(const c10::StorageImpl* storage);
// The record behind `storage`; throws for a storage that is not ours.
inline StorageRecord* record_of(const c10::StorageImpl* storage) {
  if (C10_UNLIKELY(!storage || storage->data_ptr().get_deleter() != &delete_record || !storage->data_ptr().get_context()))
    refuse_storage(storage);
  return static_cast<StorageRecord*>(storage->data_ptr().get_context());
}
inline StorageRecord* record_of(const at::Tensor& tensor) {
  return record_of(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

// What Python's storage[a:b] is: memory without an id of its own. A tensor that is set to it gets its base.
struct StorageSlice {
  c10::Storage base;
  int64_t start;  // in bytes
};
const StorageSlice* slice_of(const c10::Storage& storage);  // null: it is none
c10::Storage slice_storage(const c10::Storage& base, int64_t start, uint64_t bytes);

// A storage that the proxy makes (as the result of an operator) under `id`.
c10::Storage make_storage(Channel& channel, uint64_t id, uint64_t bytes);
at::Tensor make_tensor(c10::Storage storage, c10::ScalarType dtype, at::IntArrayRef sizes,
                       at::IntArrayRef strides, int64_t offset, uint8_t flags);

// A tensor that takes its shape from another one: what torch computes from sizes and strides (the number
// of elements, in which formats it is contiguous) is copied instead of computed for each result.
class ShapedTensor final : public c10::TensorImpl {
 public:
  // The one to copy from; it has no storage.
  ShapedTensor(c10::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset);
  ShapedTensor(c10::Storage&& storage, const ShapedTensor& like);
};
using Shape = c10::intrusive_ptr<ShapedTensor>;

// Grows or shrinks the bytes behind `storage`; its id stays, its address changes.
void resize_storage(c10::StorageImpl* storage, uint64_t bytes);
// The proxy grew it while it executed an operator (an out= argument). Under the channel's lock.
void storage_has_grown(c10::StorageImpl* storage, uint64_t bytes);

// torch.cuda.memory_stats() of this process on one device; the arrays are indexed by Usage::Pool.
struct MemoryFigures {
  std::array<Usage::Figures, 3> allocated, requested, reserved, count;
  int64_t out_of_memory = 0;  // errors raised
};
MemoryFigures memory_figures(int index);
void reset_peak_memory(int index);
void reset_accumulated_memory(int index);
void empty_cache(int index);  // the proxy gives memory that it keeps for later back to its device
std::pair<uint64_t, uint64_t> memory_info(int index);  // free and all bytes of the device

}  // namespace singularity
