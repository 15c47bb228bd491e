#include "storage.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/version.h>

#include <iterator>
#include <map>
#include <set>

#include "device.h"
#include "worker/src/ring/settings.h"

// DeviceAllocator::getMemoryInfo is younger than the oldest torch that is supported.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 10
#define MEMORY_INFO_OVERRIDE override
#else
#define MEMORY_INFO_OVERRIDE
#endif

namespace singularity {
namespace {

const c10::DispatchKeySet kStorageKeys(c10::DispatchKey::CUDA);

// Under the channel's lock.
c10::DataPtr make_pointer(Channel& channel, uint64_t id, uint64_t bytes) {
  void* address = bytes ? channel.addresses.take(bytes) : nullptr;  // as CUDA's allocator
  if (bytes) channel.usage.add(bytes);
  StorageRecord* record = channel.new_record();
  *record = StorageRecord{&channel, id, bytes, address};
  return c10::DataPtr(address, record, &delete_record,
                      c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(channel.index)));
}

// The same storage with other bytes: its id stays, its address changes, as after a resize on CUDA.
void replace_pointer(Channel& c, c10::StorageImpl* storage, uint64_t bytes) {
  StorageRecord* record = record_of(storage);
  c10::DataPtr old = storage->set_data_ptr(make_pointer(c, record->id, bytes));
  old.release_context();  // without telling the proxy that the id is free
  c.free_storage({0, record->address, record->bytes, record});
  storage->set_nbytes(bytes);
}

struct ProxiedAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    Channel& c = channel(current_device());
    Locked lock(c);
    c.raise_async_error();
    follow_settings(c);
    c.flush_frees();
    const bool wait = bytes && (launch_blocking() || c.near_capacity(bytes));
    const uint64_t id = c.next_storage++;
    RecordHeader* record = c.begin(Kind::allocate, wait ? kReply : 0, 8);
    record->base = id;
    const uint64_t n = bytes;
    std::memcpy(record + 1, &n, 8);
    c.send(record);
    try {
      if (wait) c.finish(c.receive());
    } catch (...) {  // interrupted: the proxy makes it all the same
      c.free_storage({id, nullptr, 0});
      throw;
    }
    return make_pointer(c, id, bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_record; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "device memory cannot be copied by address; copy the tensor");
  }
  // torch.accelerator's memory functions.
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {
    for (int i = 0; i < device_count(); i++) empty_cache(i);
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    const MemoryFigures figures = memory_figures(index);
    const auto put = [](c10::CachingAllocator::StatArray& to, const std::array<Usage::Figures, 3>& from) {
      // StatType: AGGREGATE, SMALL_POOL, LARGE_POOL
      const Usage::Figures* order[] = {&from[Usage::kAll], &from[Usage::kSmall], &from[Usage::kLarge]};
      for (size_t i = 0; i < std::size(order); i++) {
        to[i].current = order[i]->current;
        to[i].peak = order[i]->peak;
        to[i].allocated = order[i]->added;
        to[i].freed = order[i]->removed;
      }
    };
    put(stats.allocated_bytes, figures.allocated);
    put(stats.active_bytes, figures.allocated);
    put(stats.requested_bytes, figures.requested);
    put(stats.reserved_bytes, figures.reserved);
    put(stats.allocation, figures.count);
    put(stats.active, figures.count);
    stats.num_ooms = figures.out_of_memory;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override { reset_accumulated_memory(index); }
  void resetPeakStats(c10::DeviceIndex index) override { reset_peak_memory(index); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) MEMORY_INFO_OVERRIDE {
    const auto [free, total] = memory_info(index);
    return {free, total};
  }
};

// Page-locked memory has no meaning without a device in the process: plain memory that knows it was
// asked for as pinned.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* p = std::aligned_alloc(64, (std::max<size_t>(bytes, 1) + 63) & ~size_t{63});
    TORCH_CHECK_WITH(OutOfMemoryError, p, "no host memory for ", bytes, " pinned bytes");
    std::lock_guard<std::mutex> guard(mutex_);
    ranges_[static_cast<char*>(p)] = std::max<size_t>(bytes, 1);
    return {p, p, &free_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, std::size_t n) const override { std::memcpy(to, from, n); }
  bool has(const void* address) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto it = ranges_.upper_bound(static_cast<char*>(const_cast<void*>(address)));
    if (it == ranges_.begin()) return false;
    --it;
    return static_cast<const char*>(address) < it->first + it->second;
  }
  // Memory of somebody else that counts as pinned from now on; false: a part of it does already.
  bool add(char* start, size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    const auto after = ranges_.lower_bound(start + bytes);
    if (after != ranges_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second > start) return false;
    }
    registered_.insert(start);
    ranges_[start] = bytes;
    return true;
  }
  bool remove(char* start) {
    std::lock_guard<std::mutex> guard(mutex_);
    return registered_.erase(start) && ranges_.erase(start);
  }

 private:
  static void free_pinned(void* p);
  std::mutex mutex_;
  std::map<char*, size_t> ranges_;
  std::set<char*> registered_;
};
PinnedAllocator& pinned() {
  static PinnedAllocator& one = *new PinnedAllocator();
  return one;
}
void PinnedAllocator::free_pinned(void* p) {
  {
    std::lock_guard<std::mutex> guard(pinned().mutex_);
    pinned().ranges_.erase(static_cast<char*>(p));
  }
  std::free(p);
}

}  // namespace

c10::Allocator* device_allocator() {
  static ProxiedAllocator one;
  return &one;
}
c10::Allocator* pinned_allocator() { return &pinned(); }
bool is_pinned(const void* address) { return pinned().has(address); }
bool pin_memory(uintptr_t address, size_t bytes) { return pinned().add(reinterpret_cast<char*>(address), bytes); }
bool unpin_memory(uintptr_t address) { return pinned().remove(reinterpret_cast<char*>(address)); }

void delete_record(void* context) {
  auto* record = static_cast<StorageRecord*>(context);
  record->channel->free_storage({record->id, record->address, record->bytes, record});
}

static void delete_slice(void* context) { delete static_cast<StorageSlice*>(context); }

const StorageSlice* slice_of(const c10::Storage& storage) {
  const c10::DataPtr& pointer = storage.data_ptr();
  return pointer.get_deleter() == &delete_slice ? static_cast<const StorageSlice*>(pointer.get_context()) : nullptr;
}

c10::Storage slice_storage(const c10::Storage& base, int64_t start, uint64_t bytes) {
  const StorageRecord* record = record_of(base.unsafeGetStorageImpl());
  c10::DataPtr pointer(bytes ? static_cast<char*>(record->address) + start : nullptr, new StorageSlice{base, start},
                       &delete_slice, base.device());
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                            std::move(pointer), device_allocator(), false));
}

void refuse_storage(const c10::StorageImpl* storage) {
  TORCH_CHECK(storage, "this tensor has no storage on the device");
  TORCH_CHECK(false, "this tensor's memory does not belong to the device proxy (it was made from a raw pointer); "
                     "make it with torch functions on device 'cuda'");
  std::abort();  // TORCH_CHECK threw
}

c10::Storage make_storage(Channel& channel, uint64_t id, uint64_t bytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, make_pointer(channel, id, bytes), device_allocator(), true));
}

at::Tensor make_tensor(c10::Storage storage, c10::ScalarType dtype, at::IntArrayRef sizes,
                       at::IntArrayRef strides, int64_t offset, uint8_t flags) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), kStorageKeys,
                                                               c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  if (flags & kConjugate) tensor._set_conj(true);
  if (flags & kNegative) tensor._set_neg(true);
  return tensor;
}

ShapedTensor::ShapedTensor(c10::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset)
    : TensorImpl(kStorageKeys, c10::scalarTypeToTypeMeta(dtype), c10::Device(c10::kCUDA, 0)) {
  set_sizes_and_strides(sizes, strides, offset);
}
ShapedTensor::ShapedTensor(c10::Storage&& storage, const ShapedTensor& like)
    : TensorImpl(std::move(storage), kStorageKeys, like.data_type_) {
  sizes_and_strides_ = like.sizes_and_strides_;
  storage_offset_ = like.storage_offset_;
  numel_ = like.numel_;
  is_contiguous_ = like.is_contiguous_;
  is_channels_last_ = like.is_channels_last_;
  is_channels_last_contiguous_ = like.is_channels_last_contiguous_;
  is_channels_last_3d_ = like.is_channels_last_3d_;
  is_channels_last_3d_contiguous_ = like.is_channels_last_3d_contiguous_;
  is_non_overlapping_and_dense_ = like.is_non_overlapping_and_dense_;
}

void resize_storage(c10::StorageImpl* storage, uint64_t bytes) {
  Channel& c = *record_of(storage)->channel;
  Locked lock(c);
  const StorageRecord* record = record_of(storage);  // another thread may have resized it before
  c.raise_async_error();
  follow_settings(c);
  c.flush_frees();
  const bool wait = launch_blocking() || c.near_capacity(bytes);
  RecordHeader* r = c.begin(Kind::resize, wait ? kReply : 0, 8);
  r->base = record->id;
  std::memcpy(r + 1, &bytes, 8);
  c.send(r);
  if (wait) c.finish(c.receive());
  replace_pointer(c, storage, bytes);
}

void storage_has_grown(c10::StorageImpl* storage, uint64_t bytes) {
  replace_pointer(*record_of(storage)->channel, storage, bytes);
}

// ---- figures

MemoryFigures memory_figures(int index) {
  Channel& c = channel(index);
  MemoryFigures f;
  for (const auto pool : {Usage::kSmall, Usage::kLarge, Usage::kAll}) {
    f.allocated[pool] = c.usage.allocated(pool);
    f.requested[pool] = c.usage.requested(pool);
    f.count[pool] = c.usage.count(pool);
  }
  f.reserved = f.allocated;
  f.out_of_memory = c.out_of_memory.load();
  if (!c.is_open()) return f;
  const RingHeader* h = c.header();
  // The proxy also knows what operators took for themselves while they ran.
  auto& all = f.allocated[Usage::kAll];
  all.peak = std::max(all.peak, static_cast<int64_t>(h->ring_memory_peak.load()));
  auto& reserved = f.reserved[Usage::kAll];
  reserved.current = std::max(reserved.current, static_cast<int64_t>(h->ring_memory_reserved.load()));
  reserved.peak = std::max({all.peak, reserved.current, reserved.peak});
  return f;
}

void reset_peak_memory(int index) {
  Channel& c = channel(index);
  if (!c.is_open()) return;
  // What is queued belongs to the old peak. Without a device nothing is executed meanwhile.
  if (c.attached()) synchronize(index);
  Locked lock(c, false);
  c.usage.reset_peak();
  c.header()->ring_memory_peak.store(0);  // the proxy starts a new one
}
void reset_accumulated_memory(int index) {
  Channel& c = channel(index);
  if (!c.is_open()) return;
  Locked lock(c, false);
  c.usage.reset_accumulated();
  c.out_of_memory.store(0);
}

void empty_cache(int index) {
  Channel& c = channel(index);
  if (proxy_is_cpu() || !c.is_open() || !c.attached()) return;  // such a device keeps nothing for later
  Locked lock(c);
  c.flush_frees();
  RecordHeader* r = c.begin(Kind::sync, kReply, 0);
  r->base = kEmptyCache;
  c.send(r);
  c.finish(c.receive());
}

std::pair<uint64_t, uint64_t> memory_info(int index) {
  Channel& c = channel(index);
  if (!c.is_open()) Locked lock(c, false);
  const RingHeader* h = c.header();
  uint64_t total = h->memory_capacity.load();
  if (!total) total = h->device_memory.load();
  const uint64_t all = h->memory_current.load(), mine = h->ring_memory_current.load();
  const uint64_t used = (all > mine ? all - mine : 0) + std::max<uint64_t>(c.usage.allocated_bytes(), 0);
  return {total > used ? total - used : 0, total};
}

}  // namespace singularity
