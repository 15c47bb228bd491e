#include "ship.h"

#include <memory>

#include "encode.h"
#include "guests.h"
#include "native/schema.h"
#include "results.h"
#include "worker/src/ring/settings.h"

namespace singularity {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

namespace {

constexpr size_t kMaxCacheEntries = 1 << 16;  // over all operators; then it starts afresh

size_t cache_entries = 0;

// Word by word; zeros follow the last byte.
uint64_t hash_of(Buffer& key, uint32_t settings) {
  std::memset(key.room(8), 0, 8);
  uint64_t h = key.size() * 0x9E3779B97F4A7C15ull;
  for (const char *p = key.data(), *end = p + key.size(); p < end; p += 8) {
    uint64_t x;
    std::memcpy(&x, p, 8);
    h = (h ^ x) * 0xff51afd7ed558ccdull;
    h ^= h >> 32;
  }
  return h ^ (h >> 29) ^ (settings * 0x9E3779B97F4A7C15ull);
}

int device_of(const IValue& v) {
  if (v.isTensor()) {
    const Tensor& t = v.toTensor();
    return t.defined() && t.is_cuda() ? t.get_device() : -1;
  }
  if (v.isTensorList() || v.isOptionalTensorList())
    for (const IValue& item : v.toListRef())
      if (item.isTensor() && item.toTensor().defined() && item.toTensor().is_cuda()) return item.toTensor().get_device();
  return -1;
}

void define(Channel& c, Operator& op) {
  if (c.defined.size() <= op.index) c.defined.resize(op.index + 1);
  if (c.defined[op.index]) return;
  RecordHeader* record = c.begin(Kind::define_op, 0, 16 + op.name.size() + op.overload.size());
  record->op = op.index;
  char* p = reinterpret_cast<char*>(record + 1);
  const uint32_t name = static_cast<uint32_t>(op.name.size()), overload = static_cast<uint32_t>(op.overload.size());
  const uint64_t schema = op.schema ? schema_hash(*op.schema) : 0;
  std::memcpy(p, &name, 4);
  std::memcpy(p + 4, &overload, 4);
  std::memcpy(p + 8, &schema, 8);
  std::memcpy(p + 16, op.name.data(), name);
  std::memcpy(p + 16 + name, op.overload.data(), overload);
  c.requests.advance(record->length);
  c.defined[op.index] = true;
}

CacheEntry* find(Operator& op, Buffer& key, uint32_t settings) {
  if (op.last && op.last->is_of(key, settings)) return op.last;
  const auto found = op.cache.find(hash_of(key, settings));
  if (found == op.cache.end()) return nullptr;
  for (const auto& e : found->second)
    if (e->is_of(key, settings)) return op.last = e.get();
  return nullptr;
}

void remember(Operator& op, Channel& c, std::unique_ptr<CacheEntry> fresh) {
  if (CacheEntry* known = find(op, c.key, c.settings_id)) {
    known->warned = fresh->warned;
    return;
  }
  if (++cache_entries > kMaxCacheEntries) {
    for (Operator* o : operators())
      if (o) o->forget();
    cache_entries = 1;
  }
  fresh->key.assign(c.key.data(), c.key.data() + c.key.size());
  fresh->settings = c.settings_id;
  op.cache[hash_of(c.key, c.settings_id)].push_back(std::move(fresh));
}

}  // namespace

Channel& channel_of(c10::ArrayRef<IValue> arguments) {
  for (const IValue& v : arguments) {
    const int index = device_of(v);
    if (index >= 0) return channel(index);
  }
  for (const IValue& v : arguments)
    if (v.isDevice() && v.toDevice().is_cuda() && v.toDevice().has_index()) return channel(v.toDevice().index());
  return channel(current_device());
}

void ship(Operator& op, Stack* stack) {
  Results results;
  std::vector<Late> late;
  std::vector<c10::Warning> warnings;
  const auto arguments = torch::jit::last(*stack, op.arguments);
  for (const uint16_t i : op.written) check_written(op, arguments, i);
  const bool several = device_count() > 1;
  Channel& c = op.graph_device >= 0 ? channel(op.graph_device) : channel_of(arguments);
  {
    Locked lock(c);
    c.raise_async_error();
    follow_settings(c);
    Encoder encoder(c, op, arguments);
    for (int i = 0; i < op.arguments; i++) encoder.argument(i);
    encoder.look_for_overlaps();
    encoder.look_at_read_argument();
    const bool in_place = op.in_place && !encoder.saw_sparse();  // sparse ones may have new indices
    if (several) c.flush_frees();
    else c.flush_many_frees();
    define(c, op);
    std::unique_lock<std::mutex> cache_lock(cache_mutex, std::defer_lock);
    if (several) {
      c.make_room(padded(c.key.size()) + c.values.size());  // nobody waits for a proxy under a shared lock
      cache_lock.lock();
    }
    const CacheEntry* known = op.always_sync ? nullptr : find(op, c.key, c.settings_id);
    if (known && known->constant) {
      results.push_back(known->results[0].value);
    } else {
      const bool wait = !known || !known->async || known->warned || encoder.may_fail() || launch_blocking() ||
                        c.near_capacity(known->new_bytes);
      if (wait && !several) c.flush_frees();
      const size_t key_bytes = padded(c.key.size());
      const uint16_t flags = (wait ? kReply : 0) | (in_place ? kNoOutputs : 0) | (known && known->all_new ? kAllNew : 0);
      RecordHeader* record = c.begin(Kind::op, flags, key_bytes + c.values.size());
      record->op = op.index;
      record->key_bytes = static_cast<uint32_t>(c.key.size());
      record->base = c.next_storage;
      char* body = reinterpret_cast<char*>(record + 1);
      std::memcpy(body, c.key.data(), c.key.size());
      std::memcpy(body + key_bytes, c.values.data(), c.values.size());
      const uint64_t base = c.next_storage;
      c.send(record);
      std::unique_ptr<CacheEntry> fresh;  // not in place: making room for one costs more than the pointer
      if (wait) {
        if (cache_lock.owns_lock()) cache_lock.unlock();
        const Reply reply = c.receive(base);
        Cursor in = reply.body;
        const char* const end = in.at() + reply.bytes;
        if (in_place) in.bytes(kNoResultsBytes);
        fresh = std::make_unique<CacheEntry>(in_place ? CacheEntry() : read_results(in, op));
        warnings = read_warnings(in, end);
        fresh->warned = !warnings.empty();
        if (op.graph_device >= 0 && !sources_are_certain(*fresh, encoder.inputs())) fresh->async = false;
        c.finish(reply);
        known = &*fresh;
      } else {
        c.async_records++;
      }
      c.next_storage += known->new_storages;
      if (in_place) {
        for (int alias : op.result_alias) results.push_back(arguments[alias]);
      } else if (known->only) {
        results.emplace_back(at::detail::make_tensor<ShapedTensor>(make_storage(c, base, known->new_bytes), *known->only));
      } else {
        Builder builder(c, base, encoder.inputs(), op.graph_device >= 0);
        results_of(op, *known, builder, arguments, results, late);
        if (op.no_results) {
          results.clear();
          late.clear();
        }
      }
      if (fresh && !op.always_sync) {
        cache_lock.lock();  // also against add_graph
        remember(op, c, std::move(fresh));
      }
    }
  }
  if (!late.empty()) finish(results, late);
  // Outside of the lock: dropping arguments can run Python.
  torch::jit::drop(*stack, op.arguments);
  for (IValue& r : results) stack->push_back(std::move(r));
  for (const c10::Warning& warning : warnings) c10::warn(warning);  // raised by the caller's binding
}

void forget_graph(Channel& c, uint32_t index) {
  if (index < c.defined.size() && c.defined[index]) {  // a definition without a name ends one
    RecordHeader* record = c.begin(Kind::define_op, 0, 16);
    record->op = index;
    std::memset(record + 1, 0, 16);
    c.requests.advance(record->length);
    c.defined[index] = false;
  }
  const std::lock_guard<std::mutex> guard(cache_mutex);
  Operator*& op = operators()[index];
  for (const auto& [hash, entries] : op->cache) cache_entries -= entries.size();
  delete op;
  op = nullptr;
}

std::string compile_graph(Operator& op) {
  Channel& c = channel(op.graph_device);
  Locked lock(c);
  c.raise_async_error();
  follow_settings(c);
  c.flush_frees();
  define(c, op);
  RecordHeader* record = c.begin(Kind::compile, kReply, 0);
  record->op = op.index;
  c.send(record);
  const Reply reply = c.receive();
  std::string answer(reply.body.at(), reply.bytes);
  c.finish(reply);
  return answer;
}

torch::CppFunction shipped_kernel(Operator* op) {
  struct Kernel : c10::OperatorKernel {
    explicit Kernel(Operator* o) : op(o) {}
    void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) { ship(*op, stack); }
    Operator* op;
  };
  struct KernelWithGuests final : Kernel {
    using Kernel::Kernel;
    void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
      Guests guests(*op, *stack);
      ship(*op, stack);
      guests.go_home();
    }
  };
  struct ComposedKernel final : Kernel {
    using Kernel::Kernel;
    void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
      try {
        ship(*op, stack);
      } catch (const SeveralDevices&) {  // what comes of that is the composition's affair, as on CUDA
        handle.getComputedKernelForDispatchKey(c10::DispatchKey::MAIA).callBoxed(handle, keys, stack);
      }
    }
  };
  if (op->takes_guests) return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<KernelWithGuests>(op));
  if (op->is_composed) return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ComposedKernel>(op));
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(op));
}

}  // namespace singularity
