// What the worker knows of each operator: how its arguments travel, and what the proxy told of the
// results of each key.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "wire/layouts.h"
#include "wire/records.h"
#include "worker/src/tensors/storage.h"

namespace singularity {

struct TensorMeta {
  MetaKind kind = MetaKind::undefined;
  uint8_t dtype = 0, flags = 0;
  uint32_t index = 0;
  int64_t offset = 0;
  uint64_t bytes = 0;
  c10::SmallVector<int64_t, 5> sizes, strides;
  c10::intrusive_ptr<ShapedTensor> shape;  // of one with a new storage
};
struct SparseMeta {
  SparseHeader header;
  std::vector<int64_t> sizes;
};
struct ResultMeta {
  char kind;       // as in the reply
  uint32_t count;  // tensors it takes from `tensors`
  c10::IValue value;    // of a number
  std::shared_ptr<SparseMeta> sparse;
};
// What the proxy told of one (operator, key): enough to build the results without asking again.
struct CacheEntry {
  uint32_t settings = 0;   // Channel::settings_id of the call
  uint32_t new_storages = 0;
  uint64_t new_bytes = 0;  // of these storages
  bool all_new = true;
  bool async = true;       // later calls need no reply
  bool constant = false;   // a number that depends on the key alone
  bool warned = false;     // the last call that was waited for: the next one may warn as well
  c10::intrusive_ptr<ShapedTensor> only;  // the whole result is one new plain tensor; else null
  c10::SmallVector<char, 96> key;         // here, so that a look-up touches few cache lines
  std::vector<ResultMeta> results;
  std::vector<TensorMeta> tensors;

  bool is_of(const Buffer& wanted, uint32_t wanted_settings) const {
    return key.size() == wanted.size() && settings == wanted_settings && !std::memcmp(key.data(), wanted.data(), key.size());
  }
};
using Cache = ska::flat_hash_map<uint64_t, std::vector<std::unique_ptr<CacheEntry>>>;

struct Operator {
  uint32_t index = 0;
  uint16_t arguments = 0;
  bool in_place = false;       // every result is an argument: nothing to describe
  bool has_out = false;        // out= arguments, which may be resized
  bool always_sync = false;    // data-dependent result, or an error that must not come late
  bool constant_result = false;
  bool takes_guests = false;   // large host tensors, or generators of other devices (guests.h)
  bool is_composed = false;    // on CUDA it is made of other operators, which look at the devices themselves
  bool no_results = false;     // returns nothing, but its out= arguments may get another shape
  bool numbers_in_key = false; // a number that was not there before decides the result's shape, or is refused
  int16_t dtype_argument = -1;  // names the type of what a factory makes
  int16_t read_argument = -1;   // CUDA reads this tensor's values on the host, and may refuse them
  int graph_device = -1;       // of a captured graph: the virtual device it runs on
  CacheEntry* last = nullptr;  // of `cache`, that was used last: often it is the next one too
  c10::SmallVector<uint8_t, 16> is_value;   // per argument: the number goes outside of the key
  c10::SmallVector<uint8_t, 16> is_host;    // per argument: small host tensors (index lists, lengths) go by value
  c10::SmallVector<uint16_t, 4> written;    // arguments: tensors (or lists of them) that the operator changes
  c10::SmallVector<int, 4> result_alias;    // per result: the argument it is, or -1
  Cache cache;
  std::optional<c10::OperatorHandle> handle;
  std::string name, overload;
  const c10::FunctionSchema* schema = nullptr;

  void forget() {  // what the proxy told
    cache.clear();
    last = nullptr;
  }
};

// All of them, by index; null: a graph that is gone. Changes under `cache_mutex` once the worker runs.
std::vector<Operator*>& operators();
extern std::mutex cache_mutex;  // several channels share the caches

}  // namespace singularity
