#include "state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/AcceleratorHooksInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <mutex>

#include "device/src/exec/errors.h"
#include "swap.h"
#include "native/schema.h"
#include "wire/bulk.h"
#include "wire/records.h"

namespace singularity {
namespace {

// Beyond these the oldest are forgotten: ids only grow, and so old ones are seldom asked for.
constexpr size_t kMaxEvents = 1 << 20;
constexpr size_t kMaxFailed = 4096;
constexpr size_t kStageSlots = 4;
constexpr uint64_t kRecordStageBytes = 1 << 20;  // what one record carries at most
constexpr size_t kMaxOriginBytes = 4096;
// Beyond these a worker is refused more: each of them costs the host memory that no capacity counts.
constexpr size_t kMaxStorages = 1 << 22;
constexpr size_t kMaxGenerators = 1 << 14;
constexpr size_t kMaxOperators = 1 << 16;
constexpr size_t kMaxNameBytes = 1024;

std::mutex default_generator_mutex;

at::Generator& global_default(c10::Device device) {
  return const_cast<at::Generator&>(at::globalContext().defaultGenerator(device));
}

at::Tensor as_bytes(const c10::Storage& storage, uint64_t offset, uint64_t bytes) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(storage.device());
  return at::empty({0}, options).set_(storage, static_cast<int64_t>(offset), {static_cast<int64_t>(bytes)}, {1});
}
at::Tensor host_bytes(const char* at, uint64_t bytes) {
  return at::from_blob(const_cast<char*>(at), {static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte));
}

// How many values an enumeration has that travels as a number; 0 for any other argument.
int64_t values_of(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType: return static_cast<int64_t>(c10::ScalarType::Undefined);
    case c10::TypeKind::LayoutType: return static_cast<int64_t>(c10::Layout::NumOptions);
    case c10::TypeKind::MemoryFormatType: return static_cast<int64_t>(c10::MemoryFormat::NumOptions);
    default: return 0;
  }
}

void check_range(const c10::Storage& storage, uint64_t offset, uint64_t bytes) {
  TORCH_CHECK(offset <= storage.nbytes() && bytes <= storage.nbytes() - offset, "a copy of ", bytes,
              " bytes at ", offset, " does not fit into device memory of ", storage.nbytes(),
              " bytes (an earlier resize may have failed)");
}

}  // namespace

at::Tensor bytes_of(const c10::Storage& storage) { return as_bytes(storage, 0, storage.nbytes()); }
void copy_from_host(const c10::Storage& storage, uint64_t offset, uint64_t bytes, const char* from) {
  if (bytes == 0) return;
  if (storage.device().is_cpu())
    (storage.nbytes() < kBeyondCaches ? copy_through_caches : copy_past_caches)(
        static_cast<char*>(storage.mutable_data()) + offset, from, bytes);
  else
    as_bytes(storage, offset, bytes).copy_(host_bytes(from, bytes));
}
void copy_to_host(const c10::Storage& storage, uint64_t offset, uint64_t bytes, char* to) {
  if (bytes == 0) return;
  if (const char* from = Swap::readable(storage))
    std::memcpy(to, from + offset, bytes);
  else
    host_bytes(to, bytes).copy_(as_bytes(storage, offset, bytes));
}

// Torch believes in a saved state of its CPU generator; it would read behind the end of its table.
void check_cpu_generator(const char* state, uint64_t bytes) {
  struct {  // the start of what CPUGeneratorImpl saves
    uint64_t seed;
    int32_t left, seeded;
    uint64_t next;
  } start;
  TORCH_CHECK(bytes >= sizeof(start), "RNG state is wrong size");
  std::memcpy(&start, state, sizeof(start));
  constexpr uint64_t kTable = 624;
  TORCH_CHECK(start.left >= 1 && static_cast<uint64_t>(start.left) <= kTable && start.next <= kTable &&
                  (start.left == 1 || start.next + static_cast<uint64_t>(start.left) <= kTable + 1),
              "Invalid mt19937 state");
}

StorageEntry& State::entry(uint64_t id) {
  const auto found = storages.find(id);
  if (__builtin_expect(found != storages.end(), 1)) {
    use(found->second);
    return found->second;
  }
  // The newest failed operation whose results may have had this id: ids only grow.
  auto after = failed.upper_bound(id);
  if (after == failed.begin()) TORCH_CHECK(false, "the device proxy knows no storage ", id);
  throw MissingStorage(std::prev(after)->second);
}

void State::first_use(StorageEntry& entry) {
  if (entry.pending) throw NotYet{.ticket = entry.pending};
  if (stop_at_fresh) throw NotYet{.fresh = true};
  use_fresh();
}

void State::use_fresh() {
  if (fresh.empty()) return;
  sync_points++;
  for (const uint64_t id : fresh)
    if (const auto found = storages.find(id); found != storages.end()) found->second.fresh = false;
  fresh.clear();
}

c10::Storage State::make_storage(uint64_t bytes) const {
  c10::Allocator* allocator = c10::GetAllocator(device.type());
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(bytes), allocator->allocate(bytes),
                      allocator, /*resizable=*/true);
}

void State::check_room(size_t more) const {
  TORCH_CHECK(storages.size() + more <= kMaxStorages, "a process may hold at most ", kMaxStorages,
              " tensors' storages on a device; delete some");
}

void State::resize(uint64_t id, uint64_t bytes) {
  StorageEntry& resized = entry(id);
  c10::Storage& old = resized.storage;
  c10::Storage larger = make_storage(bytes);
  const uint64_t kept = std::min<uint64_t>(bytes, old.nbytes());
  if (kept) {
    if (device.is_cpu())
      std::memcpy(larger.mutable_data(), old.data(), kept);
    else
      as_bytes(larger, 0, kept).copy_(as_bytes(old, 0, kept));
  }
  old = std::move(larger);
  resized.place.leave();
}

StorageEntry& State::writable(uint64_t id) {
  StorageEntry& found = entry(id);
  own(id, found, *this, true);
  return found;
}

void State::write(uint64_t id, uint64_t offset, uint64_t bytes, const char* from) {
  check_range(storage(id), offset, bytes);
  const c10::Storage& s = writable(id).storage;
  if (s.device().is_cpu()) return copy_from_host(s, offset, bytes, from);
  // The record may leave the ring when the bytes are in a buffer; later records wait for the copy by
  // the order of the device's stream.
  copies().send(s, offset, bytes, [&](char* to, uint64_t at, uint64_t n) { std::memcpy(to, from + at, n); });
}
char* State::host_memory(uint64_t id, uint64_t offset, uint64_t bytes) {
  const auto found = storages.find(id);
  if (found == storages.end() || found->second.pending || found->second.fresh) return nullptr;
  const c10::Storage& s = found->second.storage;
  if (Swap::is_away(s) || !s.device().is_cpu() || offset > s.nbytes() || bytes > s.nbytes() - offset) return nullptr;
  own(id, found->second, *this, true);
  return static_cast<char*>(s.mutable_data()) + offset;
}
void State::read(uint64_t id, uint64_t offset, uint64_t bytes, char* to) {
  const c10::Storage& s = storage(id);
  check_range(s, offset, bytes);
  if (s.device().is_cpu()) return copy_to_host(s, offset, bytes, to);
  copies().fetch(s, offset, bytes, [&](const char* from, uint64_t at, uint64_t n) { std::memcpy(to + at, from, n); });
}
Stage& State::copies() {
  if (!stage) stage = std::make_unique<Stage>(device, kStageSlots, kRecordStageBytes);
  return *stage;
}
uint64_t State::bytes() const {
  uint64_t sum = 0;
  for (const auto& [id, entry] : storages) sum += entry.storage.nbytes();
  return sum;
}

void State::define(uint32_t index, std::string name, std::string overload, uint64_t schema_of_worker) {
  TORCH_CHECK(index < kMaxOperators, "operator number ", index, " is too large");
  TORCH_CHECK(name == kGraphName || name.size() + overload.size() <= kMaxNameBytes, "the name of operator ", index,
              " is too long");
  if (name.empty()) {  // a graph that nothing calls any more; its number will be given again
    if (index < ops.size()) ops[index] = OperatorEntry();
    return;
  }
  OperatorEntry entry;
  if (name == kGraphName) entry.graph = std::make_shared<Graph>(overload, device);
  else entry.handle = c10::Dispatcher::singleton().findSchema({name, overload});
  if (entry.handle) entry.rules = rules_of(name, overload, *entry.handle);
  entry.name = std::move(name);
  entry.overload = std::move(overload);
  entry.schema = schema_of_worker;
  if (entry.handle && schema_of_worker && schema_of_worker != schema_hash(entry.handle->schema())) {
    entry.handle.reset();
    entry.missing = entry.name + (entry.overload.empty() ? "" : "." + entry.overload) + " is another operator in the device proxy's PyTorch (" +
                    TORCH_VERSION + ") than in this process's (" + worker_torch +
                    "), so it was not called: install the same version of PyTorch on both sides";
  } else if (!entry.handle && !entry.graph) {
    entry.missing = entry.name + (entry.overload.empty() ? "" : "." + entry.overload) +
                    " does not exist in the device proxy's PyTorch; its package may not be installed there";
  } else if (entry.handle) {
    const auto& schema = entry.handle->schema();
    int aliases = 0;
    for (const auto& result : schema.returns()) {
      int alias = -1;
      if (result.alias_info() && result.alias_info()->isWrite())
        for (size_t i = 0; i < schema.arguments().size(); i++) {
          const auto* info = schema.arguments()[i].alias_info();
          if (info && info->isWrite() && info->beforeSets() == result.alias_info()->beforeSets())
            alias = static_cast<int>(i);
        }
      if (alias >= 0) aliases++;
      entry.result_alias.push_back(alias);
    }
    for (size_t i = 0; i < schema.arguments().size(); i++)
      if (const int64_t count = values_of(schema.arguments()[i]); count) entry.enums.emplace_back(i, count);
    entry.arguments = static_cast<uint32_t>(schema.arguments().size());
    entry.returns_nothing = schema.returns().empty();
    entry.has_enums = !entry.enums.empty();
    if (schema.returns().empty())  // out= lists, which may get another shape: the worker asks for it
      for (size_t i = 0; i < schema.arguments().size(); i++)
        if (schema.arguments()[i].is_out()) entry.result_alias.push_back(static_cast<int>(i));
    entry.keep_arguments = aliases > 1 || (schema.returns().empty() && !entry.result_alias.empty());
    entry.uses_default_rng = entry.handle->hasTag(at::Tag::nondeterministic_seeded);
  }
  if (ops.size() <= index) ops.resize(index + 1);
  ops[index] = std::move(entry);
}

OperatorEntry& State::op(uint32_t index) {
  if (__builtin_expect(index < ops.size() && (ops[index].handle || ops[index].graph), 1)) return ops[index];
  TORCH_CHECK(index < ops.size() && !ops[index].name.empty(), "operator ", index, " was never defined");
  TORCH_CHECK_NOT_IMPLEMENTED(false, ops[index].missing);
  return ops[index];
}

void OperatorEntry::check_enums(const std::vector<c10::IValue>& given) const {
  for (const auto& [index, count] : enums) {
    const c10::IValue& value = given[index];
    TORCH_CHECK_TYPE(!value.isInt() || (value.toInt() >= 0 && value.toInt() < count), name, ": argument ", index,
                     " has no such value: ", value);
  }
}

at::Generator& State::generator(uint64_t id) {
  const auto found = generators.find(id);
  if (found != generators.end()) return found->second;
  TORCH_CHECK(generators.size() < kMaxGenerators, "a process may have at most ", kMaxGenerators,
              " random number generators on a device; use torch.Generator.manual_seed to use one again");
  at::Generator made = device.is_cpu()
                           ? at::detail::createCPUGenerator()
                           : at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index());
  return generators.emplace(id, std::move(made)).first->second;
}

void State::set_generator(uint64_t id, const char* state, uint64_t bytes) {
  if (device.is_cpu()) check_cpu_generator(state, bytes);
  at::Tensor saved = at::detail::empty_cpu({static_cast<int64_t>(bytes)}, at::kByte);
  std::memcpy(saved.mutable_data_ptr(), state, bytes);
  at::Generator& target = generator(id);
  std::lock_guard<std::mutex> lock(target.mutex());
  target.set_state(saved);
}

void State::mark_failed(uint64_t first, std::string origin) {
  if (failed.size() >= kMaxFailed) failed.erase(failed.begin());
  if (origin.size() > kMaxOriginBytes) origin.resize(kMaxOriginBytes);
  failed.insert_or_assign(first, std::move(origin));
}

void State::record_event(uint64_t id, uint64_t ns) {
  if (events.size() >= kMaxEvents) events.erase(events.begin());
  events[id] = ns;
}
double State::event_milliseconds(uint64_t first, uint64_t second) const {
  const auto a = events.find(first), b = events.find(second);
  TORCH_CHECK_VALUE(a != events.end() && b != events.end(),
                    "Both events must be recorded before calculating elapsed time.");
  return (static_cast<double>(b->second) - static_cast<double>(a->second)) * 1e-6;
}

UseDefaultGenerator::UseDefaultGenerator(State& state)
    : lock_(default_generator_mutex), global_(global_default(state.device)) {
  before_ = global_;
  global_ = state.generator(0);
}
UseDefaultGenerator::~UseDefaultGenerator() { global_ = std::move(before_); }

}  // namespace singularity
