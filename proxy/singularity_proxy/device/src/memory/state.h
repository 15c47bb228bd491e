// What a ring's worker has on the device: storages, operators, generators, events.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Storage.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/src/exec/graphs.h"
#include "device/src/ranks/identity.h"
#include "device/src/recovery/recent.h"
#include "device/src/exec/rules.h"
#include "device/src/exchange/sharing.h"
#include "device/src/recovery/stage.h"
#include "swap.h"
#include "device/src/ring/turn.h"
#include "wire/fold_order.h"
#include "wire/records.h"

namespace singularity {

struct alignas(64) OperatorEntry {
  // What each call looks at comes first: one cache line.
  std::optional<c10::OperatorHandle> handle;
  std::shared_ptr<Graph> graph;   // instead of a handle: captured by torch.compile
  uint32_t arguments = 0;         // of the schema
  bool uses_default_rng = false;  // draws from the default generator unless told otherwise
  bool keep_arguments = false;    // several results are arguments: see Executor::run
  bool returns_nothing = false;   // by its schema
  bool has_enums = false;
  std::vector<int> result_alias;  // per result: the argument it is, or -1
  std::string name, overload;
  uint64_t schema = 0;            // schema_hash of the worker's; 0: unknown
  Rules rules;                    // for lineage
  std::string missing;            // why there is neither a handle nor a graph
  // Arguments that torch takes for numbers of an enumeration without looking: index and how many there are.
  std::vector<std::pair<size_t, int64_t>> enums;

  void check_enums(const std::vector<c10::IValue>& given) const;
};

constexpr uint32_t kNoOperator = UINT32_MAX;

// What a storage of the worker is here.
struct StorageEntry {
  StorageEntry() = default;
  StorageEntry(c10::Storage of) : storage(std::move(of)) {}
  c10::Storage storage;
  uint32_t writer = kNoOperator;  // the operator that wrote it last, as far as lineage knows
  Identity identity;        // of its bytes; none while the ring keeps no lineage
  Place place;              // among the entries that hold this storage
  uint64_t run_bytes = 0;   // written by copies from the host that follow one another from byte 0 on
  Identity run;             // of these bytes
  uint64_t look = 0;        // of the lineage: which one found it last ...
  uint32_t look_index = 0;  // ... and as which of the record's tensors
  uint64_t pending = 0;  // number of the collective's record that will fill it; 0: none
  bool fresh = false;    // a collective filled it, and nothing has used it since
};

// A record that cannot be executed yet: it touches the output of the collective `ticket`, whose result is
// not there, or (`group`) others must first take what there is in that group, or (`fresh`) it is the first
// to use results, and the ring wants to know (State::stop_at_fresh).
struct NotYet {
  uint64_t ticket = 0;
  uint32_t group = 0;
  bool fresh = false;
};

// A ring's place in a process group.
struct GroupState {
  GroupId id{};
  uint32_t rank = 0, size = 0;
  uint64_t timeout_ms = 0;
  FoldOrder order = FoldOrder::bitwise;
  std::string name;
  uint64_t contributed = 0, consumed = 0;         // all collectives up to these numbers
  std::map<uint32_t, uint64_t> sent, received;    // by the other rank: all messages up to these numbers
};

class State {
 public:
  explicit State(c10::Device device) : device(device) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // For use: throws MissingStorage for one that an earlier operation failed to make, NotYet for one that is
  // pending. A fresh one is used now.
  StorageEntry& entry(uint64_t id);
  c10::Storage& storage(uint64_t id) { return entry(id).storage; }
  // The same for an entry that is known: its bytes are there, and on the device.
  void use(StorageEntry& entry) {
    if (__builtin_expect(entry.pending || entry.fresh, 0)) first_use(entry);
    Swap::bring_back(entry.storage);
  }
  void first_use(StorageEntry& entry);
  StorageEntry& writable(uint64_t id);  // held by nobody else
  c10::Storage make_storage(uint64_t bytes) const;
  void check_room(size_t more) const;  // for so many storages more; throws
  void resize(uint64_t id, uint64_t bytes);
  // Host memory to and from a byte range of a storage; throws when the range is not inside.
  void write(uint64_t id, uint64_t offset, uint64_t bytes, const char* from);
  // Where `write` would copy to; nullptr when that is no host memory, or it would throw.
  char* host_memory(uint64_t id, uint64_t offset, uint64_t bytes);
  void read(uint64_t id, uint64_t offset, uint64_t bytes, char* to);
  uint64_t bytes() const;  // of all storages
  Stage& copies();         // the ring's own buffers

  void define(uint32_t index, std::string name, std::string overload, uint64_t schema);
  OperatorEntry& op(uint32_t index);

  at::Generator& generator(uint64_t id);  // made at its first use; 0 is the default one
  // Throws unless the bytes are a state of such a generator.
  void set_generator(uint64_t id, const char* state, uint64_t bytes);

  void use_fresh();  // what is fresh counts as used from here on

  // Later uses of storages from `first` on, as far as they do not exist, are blamed on `origin`.
  void mark_failed(uint64_t first, std::string origin);

  void record_event(uint64_t id, uint64_t ns);
  double event_milliseconds(uint64_t first, uint64_t second) const;

  c10::Device device;
  ska::flat_hash_map<uint64_t, StorageEntry> storages;
  RecentTensors recent;
  std::vector<OperatorEntry> ops;
  std::map<uint64_t, at::Generator> generators;
  std::map<uint64_t, uint64_t> events;  // id -> nanoseconds of the ring's clock
  std::map<uint64_t, std::string> failed;
  std::map<uint32_t, GroupState> groups;  // by the number that the worker gave
  uint64_t sync_points = 0;               // how often a fresh storage was used
  std::vector<uint64_t> fresh;            // storages that became fresh since `use_fresh`
  bool stop_at_fresh = false;
  std::unique_ptr<Stage> stage; // of a device with memory of its own, from its first copy on
  Account* account = nullptr;   // of the ring; outlives it
  const Settings* settings = settings_at_start();
  uint64_t memory_limit = 0;    // bytes that the worker allows itself; 0: all
  std::string worker_torch = "of another version";  // for error texts
  uint64_t seq = 0;             // last executed record
  uint64_t pending_seq = 0;     // a reply that is not in the queue yet ...
  std::string pending_reply;    // ... whole, as it will be there
};

// While one lives, torch's default generator of the device is the ring's: operators without a
// generator argument draw from it. Rings of one process take turns.
class UseDefaultGenerator {
 public:
  UseDefaultGenerator(State& state);
  UseDefaultGenerator(const UseDefaultGenerator&) = delete;
  UseDefaultGenerator& operator=(const UseDefaultGenerator&) = delete;
  ~UseDefaultGenerator();

 private:
  std::unique_lock<std::mutex> lock_;
  at::Generator& global_;
  at::Generator before_;
};

at::Tensor bytes_of(const c10::Storage& storage);
// Bytes of `storage` between host and device, without bounds checks, done when it returns.
void copy_from_host(const c10::Storage& storage, uint64_t offset, uint64_t bytes, const char* from);
void copy_to_host(const c10::Storage& storage, uint64_t offset, uint64_t bytes, char* to);

}  // namespace singularity
