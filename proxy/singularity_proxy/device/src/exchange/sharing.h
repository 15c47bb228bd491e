// Several entries, of one ring or of several, that hold one storage because they have one identity.
// Before one of them is written it gets memory of its own (copy on write, a whole storage at a time).
// Only rings that run one at a time share, so nothing here is locked; a ring may end at any time.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>

namespace singularity {

class State;
struct Account;
struct StorageEntry;

// An entry's place among those that hold a storage. On a device of type cpu the memory of a shared
// storage is on no ring's account: each holder's ring is charged for it as if it had memory of its own.
class Place {
 public:
  Place() = default;
  Place(Place&& other) noexcept { *this = std::move(other); }
  Place& operator=(Place&& other) noexcept;
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() { leave(); }

  // How many entries hold the storage, this one included.
  size_t holders() const { return share_ ? static_cast<size_t>(share_.use_count()) : 1; }
  bool shared() const { return share_ && share_.use_count() > 1; }
  // Makes this the place of an entry of a ring with `mine` in the share that `other`, of a ring with
  // `theirs` (nullptr: of no ring), has of `storage`.
  void join(Place& other, const c10::Storage& storage, Account* mine, Account* theirs);
  void leave();

 private:
  struct Share {
    bool counted;  // its memory is on no account, so each holder's is charged
  };
  void enter(std::shared_ptr<Share> share, Account* account, uint64_t bytes);
  std::shared_ptr<Share> share_;
  Account* charged_ = nullptr;
  uint64_t bytes_ = 0;
};

// From here on entry `id` of `ring` holds what `held` of `holder` holds; its own memory is given up.
// Both have the same identity, or the caller knows otherwise that the bytes are the same.
void share(StorageEntry& held, State& holder, uint64_t id, StorageEntry& entry, State& ring);

// Gives the entry memory of its own when others hold it too. `keep`: with its bytes. Returns what was
// copied. Throws when there is no memory; then nothing was changed.
uint64_t own(uint64_t id, StorageEntry& entry, State& ring, bool keep);

// Whether two storages of a device hold the same bytes.
bool same_bytes(const c10::Storage& a, const c10::Storage& b);

}  // namespace singularity
