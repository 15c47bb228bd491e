#include "swap.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "capacity.h"
#include "state.h"

namespace singularity {
namespace {

constexpr uint64_t kSmall = 64 << 10;  // moving less is not worth the copies

}  // namespace

// In the place of a storage's memory: where its bytes are. Nowhere: they are not needed any more.
struct Swap::Away {
  uint64_t bytes = 0;
  char* host = nullptr;      // of a device of type cpu
  c10::DataPtr pinned;       // of any other one
  Account* account = nullptr;  // that the memory was on: the ring still has it, as far as it knows
  char* at() const { return host ? host : static_cast<char*>(pinned.get()); }
  bool discarded() const { return !at(); }
};

Swap& Swap::one() {
  static auto& instance = *new Swap();
  return instance;
}

void Swap::enter(State& state, uint32_t order) {
  when_full([](uint64_t bytes) { return one().make_room(bytes); });
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(ranks_, [&](const auto& rank) { return rank.second == &state; });
  ranks_.emplace_back(order, &state);
  std::sort(ranks_.begin(), ranks_.end());
}
void Swap::leave(State& state) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(ranks_, [&](const auto& rank) { return rank.second == &state; });
}

void Swap::drop(void* context) {
  auto* away = static_cast<Away*>(context);
  if (!away->discarded()) one().away_.fetch_sub(away->bytes);
  if (away->account) discharge(*away->account, away->bytes);
  if (away->host) c10::free_cpu(away->host);
  delete away;
}

const char* Swap::readable(const c10::Storage& storage) {
  if (is_away(storage)) return static_cast<Away*>(storage.data_ptr().get_context())->at();
  return storage.device().is_cpu() ? static_cast<const char*>(storage.data()) : nullptr;
}

bool Swap::put_away(const c10::Storage& storage) {
  auto away = std::make_unique<Away>();
  away->bytes = storage.nbytes();
  try {
    if (storage.device().is_cpu())
      away->host = static_cast<char*>(c10::alloc_cpu(away->bytes));
    else
      away->pinned = at::globalContext().getPinnedMemoryAllocator(storage.device().type())->allocate(away->bytes);
    copy_to_host(storage, 0, away->bytes, away->at());
  } catch (const std::exception&) {  // the host has no memory either
    if (away->host) c10::free_cpu(away->host);
    return false;
  }
  Account* const account = away->account = account_of(storage.data_ptr());
  const uint64_t bytes = away->bytes;
  out_.fetch_add(bytes);
  away_.fetch_add(bytes);
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, away.release(), &Swap::drop, storage.device()));
  if (account) charge(*account, bytes);
  return true;
}

void Swap::fetch(const c10::Storage& storage) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  auto* away = static_cast<Away*>(impl->data_ptr().get_context());
  Account* const account = std::exchange(away->account, nullptr);
  if (account) discharge(*account, away->bytes);
  c10::DataPtr memory;
  try {
    memory = impl->allocator()->allocate(impl->nbytes());
  } catch (...) {
    if ((away->account = account)) charge(*account, away->bytes);
    throw;
  }
  if (!account) disown(memory);  // its ring is charged for it as one of those that share it
  const c10::DataPtr old = impl->set_data_ptr(std::move(memory));
  if (away->discarded()) {
    bytes_of(storage).zero_();
    return;
  }
  copy_from_host(storage, 0, away->bytes, away->at());
  back_.fetch_add(away->bytes);
}

// ---- what is not needed any more

// Returns the memory, which is on no account; the ring still has it, as far as it knows.
c10::DataPtr Swap::empty(const c10::Storage& storage) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  auto away = std::make_unique<Away>();
  away->bytes = storage.nbytes();
  Account* const account = away->account = account_of(impl->data_ptr());
  c10::DataPtr memory = impl->set_data_ptr(c10::DataPtr(nullptr, away.release(), &Swap::drop, storage.device()));
  disown(memory);
  if (account) charge(*account, storage.nbytes());
  return memory;
}

void Swap::discard(const c10::Storage& storage) {
  if (storage.nbytes() && !is_away(storage)) empty(storage);
}

at::Tensor Swap::take(const at::Tensor& whole) {
  const c10::Storage& storage = whole.storage();
  bring_back(storage);
  c10::Allocator* const allocator = storage.unsafeGetStorageImpl()->allocator();
  c10::Storage mine(c10::Storage::use_byte_size_t(), static_cast<int64_t>(storage.nbytes()), empty(storage), allocator,
                    /*resizable=*/true);
  return at::empty({0}, whole.options()).set_(std::move(mine), 0, whole.sizes(), whole.strides());
}

// ---- the shelf

void Swap::shelve(const c10::Storage& storage) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(shelf_, [](const auto& kept) { return kept.expired(); });
  shelf_.push_back(storage.getWeakStorageImpl());
}

void Swap::unshelve(const c10::Storage& storage) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(shelf_, [&](const auto& kept) { return kept._unsafe_get_target() == storage.unsafeGetStorageImpl(); });
  }
  bring_back(storage);  // it may have to make room for it
}

// ---- making room

uint64_t Swap::move_private(State& state, uint64_t bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> candidates;  // bytes, id
  for (const auto& [id, entry] : state.storages)
    if (entry.storage.nbytes() >= kSmall && !entry.pending && !entry.place.shared() && !is_away(entry.storage) &&
        entry.storage.device() == state.device)
      candidates.emplace_back(entry.storage.nbytes(), id);
  std::sort(candidates.rbegin(), candidates.rend());
  uint64_t moved = 0;
  for (const auto& [size, id] : candidates) {
    if (moved >= bytes) break;
    state.recent.forget(id);
    const c10::Storage& storage = state.storages.at(id).storage;
    // Whoever else holds it (another rank's fold of what this one contributed) reads its memory.
    if (storage.use_count() == 1 && put_away(storage)) moved += size;
  }
  return moved;
}

uint64_t Swap::move_shelved(uint64_t bytes) {
  uint64_t moved = 0;
  for (const auto& kept : shelf_) {
    if (moved >= bytes) break;
    const c10::Storage storage(kept.lock());
    if (storage && storage.nbytes() >= kSmall && !is_away(storage) && put_away(storage))
      moved += storage.nbytes();
  }
  return moved;
}

uint64_t Swap::move_shared(State& running, uint64_t bytes) {
  std::map<c10::StorageImpl*, std::vector<std::pair<State*, uint64_t>>> holders;
  for (const auto& [order, state] : ranks_) {
    if (state == &running) continue;
    for (const auto& [id, entry] : state->storages)
      if (entry.storage.nbytes() >= kSmall && !entry.pending && entry.place.shared() && !is_away(entry.storage) &&
          entry.storage.device() == state->device)
        holders[entry.storage.unsafeGetStorageImpl()].emplace_back(state, id);
  }
  for (const auto& [id, entry] : running.storages) holders.erase(entry.storage.unsafeGetStorageImpl());
  std::vector<std::pair<uint64_t, c10::StorageImpl*>> candidates;
  for (const auto& [impl, held] : holders) candidates.emplace_back(impl->nbytes(), impl);
  std::sort(candidates.rbegin(), candidates.rend());
  uint64_t moved = 0;
  for (const auto& [size, impl] : candidates) {
    if (moved >= bytes) break;
    const auto& held = holders.at(impl);
    for (const auto& [state, id] : held) state->recent.forget(id);
    const StorageEntry& entry = held[0].first->storages.at(held[0].second);
    // More holders than these: a ring that is paused, which somebody else reads, or the exchange.
    if (entry.place.holders() == held.size() && entry.storage.use_count() == held.size() && put_away(entry.storage))
      moved += size;
  }
  return moved;
}

bool Swap::make_room(uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Account* running = charged_to();
  const auto at = std::find_if(ranks_.begin(), ranks_.end(), [&](const auto& rank) { return rank.second->account == running; });
  if (at == ranks_.end()) return false;
  uint64_t moved = 0;
  // The turn goes up in order: whoever had it last gets it last.
  for (size_t back = 1; back < ranks_.size() && moved < bytes; back++) {
    const size_t index = (static_cast<size_t>(at - ranks_.begin()) + ranks_.size() - back) % ranks_.size();
    moved += move_private(*ranks_[index].second, bytes - moved);
  }
  if (moved < bytes) moved += move_shelved(bytes - moved);
  if (moved < bytes) moved += move_shared(*at->second, bytes - moved);
  return moved > 0;
}

SwapStats Swap::stats() const { return {out_.load(), back_.load(), away_.load()}; }

}  // namespace singularity
