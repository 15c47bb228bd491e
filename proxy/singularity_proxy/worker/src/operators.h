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

#include "../../wire/layouts.h"
#include "../../wire/records.h"

namespace singularity {

struct TensorMeta {
  MetaKind kind = MetaKind::undefined;
  uint8_t dtype = 0, flags = 0;
  uint32_t index = 0;
  int64_t offset = 0;
  uint64_t bytes = 0;
  c10::SmallVector<int64_t, 5> sizes, strides;
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
  std::string key;
  uint32_t settings = 0;   // Channel::settings_id of the call
  std::vector<ResultMeta> results;
  std::vector<TensorMeta> tensors;
  uint32_t new_storages = 0;
  uint64_t new_bytes = 0;  // of these storages
  bool all_new = true;
  bool async = true;       // later calls need no reply
  bool constant = false;   // a number that depends on the key alone
};
using Cache = ska::flat_hash_map<uint64_t, std::vector<CacheEntry>>;

struct Operator {
  uint32_t index = 0;
  std::optional<c10::OperatorHandle> handle;
  std::string name, overload;
  const c10::FunctionSchema* schema = nullptr;
  uint16_t arguments = 0;
  bool in_place = false;       // every result is an argument: nothing to describe
  bool has_out = false;        // out= arguments, which may be resized
  bool always_sync = false;    // data-dependent result, or an error that must not come late
  bool constant_result = false;
  bool no_results = false;     // returns nothing, but its out= arguments may get another shape
  int graph_device = -1;       // of a captured graph: the virtual device it runs on
  std::vector<uint8_t> is_value;   // per argument: the number goes outside of the key
  std::vector<uint8_t> is_host;    // per argument: small host tensors (index lists, lengths) go by value
  std::vector<uint8_t> is_written; // per argument: a tensor (or list of them) that the operator changes
  std::vector<int> result_alias;   // per result: the argument it is, or -1
  Cache cache;
};

// All of them, by index. Grows under `cache_mutex` once the worker runs.
std::vector<Operator*>& operators();
extern std::mutex cache_mutex;  // several channels share the caches

}  // namespace singularity
