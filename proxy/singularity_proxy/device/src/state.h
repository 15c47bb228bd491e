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

#include "graphs.h"
#include "stage.h"
#include "turn.h"

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
  std::string missing;            // why there is neither a handle nor a graph
  // Arguments that torch takes for numbers of an enumeration without looking: index and how many there are.
  std::vector<std::pair<size_t, int64_t>> enums;

  void check_enums(const std::vector<c10::IValue>& given) const;
};

class State {
 public:
  explicit State(c10::Device device) : device(device) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Throws MissingStorage for one that an earlier operation failed to make.
  c10::Storage& storage(uint64_t id);
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

  // Later uses of storages from `first` on, as far as they do not exist, are blamed on `origin`.
  void mark_failed(uint64_t first, std::string origin);

  void record_event(uint64_t id, uint64_t ns);
  double event_milliseconds(uint64_t first, uint64_t second) const;

  c10::Device device;
  ska::flat_hash_map<uint64_t, c10::Storage> storages;
  std::vector<OperatorEntry> ops;
  std::map<uint64_t, at::Generator> generators;
  std::map<uint64_t, uint64_t> events;  // id -> nanoseconds of the ring's clock
  std::map<uint64_t, std::string> failed;
  std::unique_ptr<Stage> stage; // of a device with memory of its own, from its first copy on
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

// Bytes of `storage` between host and device, without bounds checks, done when it returns.
void copy_from_host(const c10::Storage& storage, uint64_t offset, uint64_t bytes, const char* from);
void copy_to_host(const c10::Storage& storage, uint64_t offset, uint64_t bytes, char* to);

}  // namespace singularity
