// What the two queues of a ring carry.
//
// A request record = RecordHeader, then a *key* (padded to 8 bytes), then *values*. For an operator
// the key holds everything that its output metadata depends on (tags, dtypes, sizes, strides, ints)
// and is the lookup key of the worker's metadata cache; the values (storage ids, offsets, scalars)
// stay outside, so that a changed learning rate or slice offset is still a cache hit. Storage ids are
// given by the worker and never shrink, so a cached operator needs no reply and a missing id can be
// traced to the operator that failed to make it. An operator's key starts with a u16, the number of its
// arguments; each one's tag and content follow. Any record may ask for a reply (kReply); where nothing
// else is said below, its payload is empty.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace singularity {

constexpr size_t kMaxRecordBytes = 2u << 20;    // a longer record is refused by the worker
constexpr size_t kMaxPayloadBytes = 1u << 20;   // one WRITE or READ; larger copies are several records

enum class Kind : uint16_t {
  op = 1,        // op: index, base: first new storage id; body: key, values
  define_op,     // op: index; body: u32 name bytes, u32 overload bytes, u64 schema hash, name (empty: no more), overload
  free_storages, // base: count; body: u64 ids; kGeneratorId + id: a generator
  allocate,      // base: id; body: u64 bytes
  resize,        // base: id; body: u64 bytes (contents kept up to the smaller size)
  write,         // host to device. base: id; body: u64 byte offset, u64 bytes, then the bytes
  read,          // device to host, replies. base: id; body: u64 byte offset, u64 bytes. Reply: the bytes
  seed,          // base: generator id (0 = default); body: u64 seed
  get_rng,       // base: generator id. Replies u64 current seed, then the state bytes
  set_rng,       // base: generator id; body: u64 bytes, state bytes. Reply: u64 current seed
  sync,          // base: SyncFlag. Replies when everything before it is executed. Reply: u64 records, u64 storages
  event_record,  // base: event id; the proxy notes its clock
  event_time,    // base: first event id; body: u64 second id. Replies f64 milliseconds
  settings,      // from here on; body: Settings (56 bytes), u64 bytes that the worker may use (0: all)
  compile,       // op: index of a captured graph. Replies JSON: how it will run (device/graphs.py)
  join_group,    // base: group number; body: see GroupId. Sent again: only the timeout is another one
  leave_group,   // base: group number; no collective of it follows
  collective,    // base: group number; key_bytes and body as of an operator: see CollectiveArgument
};

constexpr uint64_t kGeneratorId = 1ull << 63;  // set in the ids of generators where both kinds may be

enum SyncFlag : uint64_t {
  kEmptyCache = 1,  // first the device's allocator gives back what it keeps for later
};

// The operator name under which `define_op` brings a graph that torch.compile captured: its overload
// is the packed graph (wire/graphs.py). Called like any operator, with tensors and sizes.
constexpr const char* kGraphName = "singularity::graph";

// ---- collectives
//
// A rank's place in a c10d process group. The worker numbers the groups of a ring from 1; a process
// that uses several virtual devices in one group has a number, and an id, for each.
// Body of join_group: GroupId, u32 rank, u32 size, u64 timeout in ms (for one collective), u32 name
// bytes, name (for error texts).
using GroupId = std::array<uint8_t, 16>;  // drawn by rank 0, the same in all ranks
constexpr size_t kJoinBytes = 36;         // before the name

enum class Collective : int64_t {
  all_reduce = 1,  // 1 input, 1 output
  reduce,          // 1 input; 1 output at the root
  broadcast,       // 1 input at the root; 1 output everywhere, at the root too
  all_gather,      // 1 input, an output per rank
  reduce_scatter,  // an input per rank, 1 output
  all_to_all,      // an input and an output per rank
  gather,          // 1 input; at the root an output per rank
  scatter,         // at the root an input per rank; 1 output
  barrier,         // no tensors
  send,            // 1 input; root: the receiver
  recv,            // 1 output; root: the sender
};
enum class Reduction : int64_t { sum = 0, avg, product, min, max, band, bor, bxor, premul_sum };

// The arguments of a collective, encoded as an operator's are. Every tensor is contiguous and has one
// dimension: the worker cuts and flattens them, so of two tensors that meet only the numbers of
// elements (which may be 0) have to agree. Outputs exist already, and one may be an input too. Complex
// numbers travel as real ones, booleans of a reduction as bytes. Never asks for a reply: errors are
// asynchronous.
enum CollectiveArgument : uint16_t {
  kSequence = 0,  // integer: 1, 2, 3, ... of this rank in this group; of send and recv an own count per
                  // (group, sender, receiver)
  kWhat,          // integer: Collective
  kReduction,     // integer: Reduction
  kFactor,        // value_real: of premul_sum, else 1
  kRoot,          // integer: rank in the group, of the root or of the other end; -1: none
  kInputs,        // tensor_list
  kOutputs,       // tensor_list
  kCollectiveArguments,
};

enum Flag : uint16_t {
  kReply = 1,      // the worker waits for a reply (also of an error); without it errors are asynchronous
  kAllNew = 2,     // op: no output shares storage with an input (known from the cache)
  kNoOutputs = 4,  // op: all results are arguments, nothing to register or describe
};

struct RecordHeader {
  uint32_t length;     // whole record, multiple of 8
  uint16_t kind;       // Kind
  uint16_t flags;
  uint64_t seq;        // 1, 2, 3, ... per ring, never reused
  uint32_t op;
  uint32_t key_bytes;  // unpadded
  uint64_t base;
};
static_assert(sizeof(RecordHeader) == 32);

enum class Status : uint32_t {
  ok = 0,
  runtime_error = 1,
  index_error = 2,
  value_error = 3,
  type_error = 4,
  not_implemented = 5,
  out_of_memory = 6,
  linalg_error = 7,
  distributed_error = 8,  // torch.distributed.DistBackendError
};

// A reply = ReplyHeader, then the payload: of an error its text; of Kind::op
//   u32 new storages, u32 results, then per result one char and its value:
//   't' TensorMeta | 'l' u32 n, n x TensorMeta | 'i' i64 | 'd' f64 | 'b' i64 | 'c' f64 f64 | 'n'
// (new storages comes first so that a worker can give back those of a reply nobody waits for), and then
// what the call warned of, up to the payload's end: u8 whether it is a deprecation, u32 bytes, text.
constexpr size_t kNoResultsBytes = 8;  // of a reply that describes no results: two zeros
struct ReplyHeader {
  uint32_t length;  // header and payload, multiple of 8
  uint32_t payload_bytes;
  uint64_t seq;     // of the request
  uint32_t status;  // Status
  uint32_t reserved;
};
static_assert(sizeof(ReplyHeader) == 24);

constexpr int kMaxDim = 255;  // of a tensor: a byte counts its dimensions

// TensorMeta: u8 kind, and unless undefined: u8 dtype, u8 dim, u8 flags, u32 index, i64 offset,
// u64 storage bytes, i64 sizes[dim], i64 strides[dim]. `index` is the n-th new storage (id = base +
// index) or the n-th input tensor (Tag::tensor, in the order of the key) whose storage it shares.
enum class MetaKind : uint8_t { undefined = 0, new_storage = 1, input_storage = 2 };

enum class Tag : uint8_t {
  none = 0,
  tensor,           // key: u8 dtype, u8 dim, u8 TensorFlag, i64 sizes[dim], strides[dim] unless contiguous; values: u64 id, i64 offset
  undefined_tensor,
  host_scalar,      // 0-dim host tensor by value. key: u8 dtype, u8 TensorFlag; values: 16 bytes
  host_tensor,      // small host tensor by value. key: u8 dtype, u8 dim, i64 sizes[dim]; values: u64 bytes, bytes
  integer,          // in the key: i64
  real,             // in the key: f64
  boolean,          // in the key: u8
  complex,          // in the key: f64, f64
  value_integer,    // outside of the key: i64
  value_real,       // f64
  value_boolean,    // i64
  value_complex,    // f64, f64
  integer_list,     // key: u32 n, i64[n]
  real_list,        // key: u32 n, f64[n]
  boolean_list,     // key: u32 n, u8[n]
  tensor_list,      // key: u32 n, n tensors
  optional_tensor_list,
  scalar_list,      // key: u32 n, n scalars (value_* tags)
  string,           // key: u32 n, bytes
  device,           // key: u8 1 = host, 0 = the proxy's device
  generator,        // values: u64 id
};

enum TensorFlag : uint8_t { kContiguous = 1, kConjugate = 2, kNegative = 4, kWrappedNumber = 8, kHostResult = 16 };

constexpr size_t padded(size_t n) { return (n + 7) & ~size_t{7}; }

// A growable byte buffer for building records.
class Buffer {
 public:
  explicit Buffer(size_t capacity = 4096) : data_(static_cast<char*>(std::malloc(capacity))), capacity_(capacity) {
    if (!data_) throw std::bad_alloc();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }
  // Room for `n` more bytes; returns where to write them (then call `advance`).
  char* room(size_t n) {
    if (__builtin_expect(size_ + n > capacity_, 0)) grow(n);
    return data_ + size_;
  }
  void advance(size_t n) { size_ += n; }
  template <class T>
  void put(T value) {
    std::memcpy(room(sizeof(T)), &value, sizeof(T));
    size_ += sizeof(T);
  }
  void put_bytes(const void* source, size_t n) {
    if (n) std::memcpy(room(n), source, n);
    size_ += n;
  }
  void clear() { size_ = 0; }
  const char* data() const { return data_; }
  char* at(size_t position) { return data_ + position; }
  size_t size() const { return size_; }

 private:
  void grow(size_t n) {
    size_t wanted = capacity_;
    while (size_ + n > wanted) wanted *= 2;
    auto* larger = static_cast<char*>(std::realloc(data_, wanted));
    if (!larger) throw std::bad_alloc();
    data_ = larger;
    capacity_ = wanted;
  }
  char* data_;
  size_t size_ = 0, capacity_;
};

// Reads what a Buffer wrote, from memory the other side cannot change any more.
class Cursor {
 public:
  explicit Cursor(const char* at) : at_(at) {}
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  const char* bytes(size_t n) {
    const char* p = at_;
    at_ += n;
    return p;
  }
  const char* at() const { return at_; }

 private:
  const char* at_;
};

}  // namespace singularity
