#include "storage.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/mman.h>

#include <map>

namespace singularity {
namespace {

const c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

// Unique addresses from a reservation without memory: pointer arithmetic works, and touching one is
// a clean SIGSEGV instead of someone else's bytes.
class AddressSpace {
 public:
  AddressSpace() {
    for (uint64_t bytes : {1ull << 44, 1ull << 40, 1ull << 36, 1ull << 32}) {  // under a ulimit -v: smaller
      void* area = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (area != MAP_FAILED) {
        base_ = static_cast<char*>(area);
        bytes_ = bytes;
        return;
      }
    }
    TORCH_CHECK(false, "no address space is left for device pointers (4 GiB are needed; see ulimit -v)");
  }
  void* take(uint64_t bytes) {
    const uint64_t n = std::max<uint64_t>((bytes + 511) & ~511ull, 512);
    uint64_t at = next_.fetch_add(n);
    if (at + n > bytes_) {  // start over: by now the early ones are long dead
      next_.store(n);
      at = 0;
    }
    return base_ + at;
  }

 private:
  char* base_ = nullptr;
  uint64_t bytes_ = 0;
  std::atomic<uint64_t> next_{0};
};

void* new_address(uint64_t bytes) {
  static AddressSpace& space = *new AddressSpace();
  return space.take(bytes);
}

void delete_record(void* context) {
  auto* record = static_cast<StorageRecord*>(context);
  record->channel->free_storage(record->id, record->bytes);
  delete record;
}

c10::DataPtr make_pointer(Channel& channel, uint64_t id, uint64_t bytes) {
  channel.promised_bytes.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  return c10::DataPtr(new_address(bytes), new StorageRecord{&channel, id, bytes}, &delete_record,
                      c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(channel.index)));
}

struct ProxiedAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    Channel& c = channel(current_device());
    Locked lock(c);
    c.raise_async_error();
    c.flush_frees();
    const bool wait = launch_blocking() || c.near_capacity(bytes);
    const uint64_t id = c.next_storage++;
    RecordHeader* record = c.begin(Kind::allocate, wait ? kReply : 0, 8);
    record->base = id;
    const uint64_t n = bytes;
    std::memcpy(record + 1, &n, 8);
    c.send(record);
    if (wait) c.finish(c.receive());
    return make_pointer(c, id, bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_record; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "device memory cannot be copied by address; copy the tensor");
  }
  // torch.accelerator's memory functions; bytes of the whole device proxy.
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    Channel& c = channel(index);
    if (!c.is_open()) return stats;
    c10::CachingAllocator::Stat held;
    held.current = static_cast<int64_t>(c.header()->memory_current.load());
    held.peak = std::max(held.current, static_cast<int64_t>(c.header()->memory_peak.load()));
    constexpr size_t kAll = 0;  // StatType::AGGREGATE
    stats.allocated_bytes[kAll] = stats.reserved_bytes[kAll] = stats.active_bytes[kAll] = stats.requested_bytes[kAll] = held;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex index) override {
    Channel& c = channel(index);
    if (c.is_open()) c.header()->memory_peak.store(0);  // the proxy starts a new one
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

 private:
  static void free_pinned(void* p);
  std::mutex mutex_;
  std::map<char*, size_t> ranges_;
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

StorageRecord* record_of(const c10::StorageImpl* storage) {
  TORCH_CHECK(storage, "this tensor has no storage on the device");
  auto* record = static_cast<StorageRecord*>(storage->data_ptr().get_context());
  TORCH_CHECK(record && storage->data_ptr().get_deleter() == &delete_record,
              "this tensor's memory does not belong to the device proxy (it was made from a raw pointer); "
              "make it with torch functions on device 'cuda'");
  return record;
}

c10::Storage make_storage(Channel& channel, uint64_t id, uint64_t bytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, make_pointer(channel, id, bytes), device_allocator(), true));
}

at::Tensor make_tensor(c10::Storage storage, c10::ScalarType dtype, at::IntArrayRef sizes,
                       at::IntArrayRef strides, int64_t offset, uint8_t flags) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), kKeys,
                                                               c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  if (flags & kConjugate) tensor._set_conj(true);
  if (flags & kNegative) tensor._set_neg(true);
  return tensor;
}

void resize_storage(c10::StorageImpl* storage, uint64_t bytes) {
  StorageRecord* record = record_of(storage);
  Channel& c = *record->channel;
  {
    Locked lock(c);
    c.raise_async_error();
    c.flush_frees();
    const bool wait = launch_blocking() || c.near_capacity(bytes);
    RecordHeader* r = c.begin(Kind::resize, wait ? kReply : 0, 8);
    r->base = record->id;
    std::memcpy(r + 1, &bytes, 8);
    c.send(r);
    if (wait) c.finish(c.receive());
  }
  // The id stays, so the old record must go without freeing it.
  const uint64_t id = record->id;
  c10::DataPtr old = storage->set_data_ptr(make_pointer(c, id, bytes));
  c.promised_bytes.fetch_sub(static_cast<int64_t>(record->bytes), std::memory_order_relaxed);
  old.release_context();
  delete record;
  storage->set_nbytes(bytes);
}

}  // namespace singularity
