#include "sharing.h"

#include <ATen/ops/equal.h>

#include <cstring>

#include "device/src/memory/capacity.h"
#include "device/src/memory/state.h"
#include "device/src/memory/swap.h"

namespace singularity {

Place& Place::operator=(Place&& other) noexcept {
  if (this == &other) return *this;
  leave();
  share_ = std::move(other.share_);
  charged_ = std::exchange(other.charged_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void Place::enter(std::shared_ptr<Share> share, Account* account, uint64_t bytes) {
  share_ = std::move(share);
  charged_ = account;
  bytes_ = bytes;
  if (account) charge(*account, bytes);
}

void Place::join(Place& other, const c10::Storage& storage, Account* mine, Account* theirs) {
  leave();
  const uint64_t bytes = storage.device().is_cpu() ? storage.nbytes() : 0;
  if (!other.share_) {
    const bool counted = disown(storage.data_ptr());
    other.enter(std::make_shared<Share>(Share{counted}), counted ? theirs : nullptr, bytes);
  }
  enter(other.share_, other.share_->counted ? mine : nullptr, bytes);
}

void Place::leave() {
  share_.reset();
  if (charged_) discharge(*charged_, bytes_);
  charged_ = nullptr;
  bytes_ = 0;
}

void share(StorageEntry& held, State& holder, uint64_t id, StorageEntry& entry, State& ring) {
  if (held.storage.unsafeGetStorageImpl() == entry.storage.unsafeGetStorageImpl()) return;
  entry.place.join(held.place, held.storage, ring.account, holder.account);
  ring.recent.forget(id);
  entry.storage = held.storage;
}

uint64_t own(uint64_t id, StorageEntry& entry, State& ring, bool keep) {
  if (!entry.place.shared()) return 0;
  const c10::Storage& held = entry.storage;
  c10::Storage mine = ring.make_storage(held.nbytes());
  if (keep && held.nbytes()) {
    if (const char* from = Swap::readable(held))
      copy_from_host(mine, 0, held.nbytes(), from);
    else
      bytes_of(mine).copy_(bytes_of(held));
  }
  ring.recent.forget(id);
  entry.storage = std::move(mine);
  entry.place.leave();
  return keep ? entry.storage.nbytes() : 0;
}

bool same_bytes(const c10::Storage& a, const c10::Storage& b) {
  if (a.nbytes() != b.nbytes() || a.device() != b.device()) return false;
  if (a.nbytes() == 0 || a.is_alias_of(b)) return true;
  const char *x = Swap::readable(a), *y = Swap::readable(b);
  if (x && y) return std::memcmp(x, y, a.nbytes()) == 0;
  Swap::bring_back(a);
  Swap::bring_back(b);
  return at::equal(bytes_of(a), bytes_of(b));
}

}  // namespace singularity
