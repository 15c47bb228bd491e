#include "ship.h"

#include <ATen/core/op_registration/adaption.h>
#include <c10/util/flat_hash_map.h>

#include <memory>
#include <set>

#include "devices_of_calls.h"
#include "native/schema.h"
#include "settings.h"
#include "sparse.h"
#include "storage.h"

namespace singularity {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

namespace {

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
  IValue value;    // of a number
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
constexpr size_t kMaxCacheEntries = 1 << 16;  // over all operators; then it starts afresh

size_t cache_entries = 0;
std::mutex cache_mutex;  // several channels share the caches

// Word by word; zeros follow the last byte.
uint64_t hash_of(Buffer& key) {
  std::memset(key.room(8), 0, 8);
  uint64_t h = key.size() * 0x9E3779B97F4A7C15ull;
  for (const char *p = key.data(), *end = p + key.size(); p < end; p += 8) {
    uint64_t x;
    std::memcpy(&x, p, 8);
    h = (h ^ x) * 0xff51afd7ed558ccdull;
    h ^= h >> 32;
  }
  return h ^ (h >> 29);
}

}  // namespace

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

namespace {

std::vector<Operator*>& operators() {
  static auto& all = *new std::vector<Operator*>();
  return all;
}

using Inputs = c10::SmallVector<c10::TensorImpl*, 8>;  // the device tensors of a call, in order
using Results = c10::SmallVector<IValue, 2>;

// The text that a CUDA build gives when the tensors of a call are on several devices: the generated
// wrappers of kernels say it one way, TensorIterator another one.
[[noreturn]] void refuse_devices(const Operator& op, c10::ArrayRef<IValue> arguments) {
  TORCH_CHECK(op.graph_device < 0, "Expected all tensors to be on the same device, but a compiled graph of cuda:",
              op.graph_device, " got one of another device!");
  const auto& schema = op.handle->schema();
  const bool iterator = checked_by_iterator(*op.handle);
  std::optional<c10::Device> common;
  const auto look = [&](const Tensor& t, const std::string& name) {
    if (!t.defined() || (iterator && t.is_cpu() && t.dim() == 0)) return;
    if (!common) common = t.device();
    if (*common == t.device()) return;
    TORCH_CHECK(!iterator, "Expected all tensors to be on the same device, but found at least two devices, ", *common,
                " and ", t.device(), "!");
    c10::impl::common_device_check_failure(*common, t, wrapper_name(*op.handle).c_str(), name.c_str());
  };
  for (const bool out : {true, false})  // the order in which the wrappers look
    for (size_t i = 0; i < arguments.size(); i++) {
      const auto& argument = schema.arguments()[i];
      const IValue& v = arguments[i];
      if (argument.is_out() != out || op.is_host[i]) continue;
      if (v.isTensor()) look(v.toTensor(), argument.name());
      else if (v.isTensorList())
        for (const Tensor& t : v.toTensorVector()) look(t, argument.name());
      else if (v.isOptionalTensorList())
        for (const std::optional<Tensor>& t : v.toOptionalTensorList())
          if (t) look(*t, argument.name());
    }
  const IValue& self = arguments[0];
  TORCH_CHECK(!(op.name.find("index") != std::string::npos && self.isTensor() && self.toTensor().is_cpu()),
              "indices should be either on cpu or on the same device as the indexed tensor (cpu)");
  TORCH_CHECK(false, op.name, ": a host tensor of more than ", kMaxPayloadBytes,
              " bytes cannot go with a call to the device; move it to the device first");
}

// Encodes the arguments of one call. Borrowed pointers only: dropping a tensor reference under the
// channel's lock could need the GIL.
class Encoder {
 public:
  Encoder(Channel& channel, const Operator& op, c10::ArrayRef<IValue> arguments)
      : c_(channel), key_(channel.key), values_(channel.values), op_(op), arguments_(arguments) {
    key_.clear();
    values_.clear();
    key_.put<uint16_t>(op.arguments);
  }
  Inputs& inputs() { return inputs_; }
  bool saw_sparse() const { return saw_sparse_; }

  void argument(size_t index) {
    const IValue& v = arguments_[index];
    const bool value = op_.is_value[index];
    host_allowed_ = op_.is_host[index];
    if (v.isTensor()) return tensor(v.toTensor());
    if (v.isNone()) return tag(Tag::none);
    if (v.isInt() || v.isDouble() || v.isBool() || v.isComplexDouble() || v.isSymInt()) return number(v, !value);
    if (v.isIntList()) return integers(v.toIntVector());
    if (v.isSymIntList())
      return integers(c10::fmap(v.toSymIntVector(),
                                [](const c10::SymInt& s) { return s.guard_int(__FILE__, __LINE__); }));
    if (v.isTensorList()) {
      const auto list = v.toTensorList();
      count(Tag::tensor_list, list.size());
      for (size_t i = 0; i < list.size(); i++) tensor(list.get(i));
      return;
    }
    if (v.isDoubleList()) {
      const auto list = v.toDoubleVector();
      count(Tag::real_list, list.size());
      return key_.put_bytes(list.data(), list.size() * 8);
    }
    if (v.isBoolList()) {
      const auto list = v.toBoolList();
      count(Tag::boolean_list, list.size());
      for (bool b : list) key_.put<uint8_t>(b);
      return;
    }
    if (v.isOptionalTensorList()) {
      const auto list = v.toOptionalTensorList();
      count(Tag::optional_tensor_list, list.size());
      for (size_t i = 0; i < list.size(); i++) {
        const std::optional<Tensor> t = list.get(i);
        if (t && t->defined()) tensor(*t);
        else tag(Tag::none);
      }
      return;
    }
    if (v.isDevice()) {
      tag(Tag::device);
      return key_.put<uint8_t>(v.toDevice().is_cpu());
    }
    if (v.isGenerator()) {
      tag(Tag::generator);
      return values_.put<uint64_t>(generator_id(v.toGenerator(), c_));
    }
    if (v.isString()) {
      const std::string& s = v.toStringRef();
      count(Tag::string, s.size());
      return key_.put_bytes(s.data(), s.size());
    }
    if (v.isList()) return list(v.toListRef());
    TORCH_CHECK(false, op_.name, ": the device proxy cannot send an argument of kind ", v.tagKind());
  }

  void tensor(const Tensor& t) {
    if (!t.defined()) return tag(Tag::undefined_tensor);
    if (t.is_cuda()) {
      if (C10_UNLIKELY(t.layout() != at::kStrided || t.is_nested())) return sparse_tensor(t);
      if (C10_UNLIKELY(t.get_device() != c_.index)) refuse_devices(op_, arguments_);
      encode_device_tensor(c_, t);
      inputs_.push_back(t.unsafeGetTensorImpl());
      return;
    }
    if (!t.is_cpu()) refuse_devices(op_, arguments_);
    if (t.dim() == 0) {  // a number: travels by value, as on CUDA
      tag(Tag::host_scalar);
      key_.put<uint8_t>(static_cast<uint8_t>(t.scalar_type()));
      key_.put<uint8_t>(t.unsafeGetTensorImpl()->is_wrapped_number() ? kWrappedNumber : 0);
      char bytes[16] = {0};
      const Tensor plain = t.resolve_conj().resolve_neg();
      std::memcpy(bytes, plain.const_data_ptr(), plain.element_size());
      return values_.put_bytes(bytes, 16);
    }
    if (!host_allowed_ || t.nbytes() > kMaxPayloadBytes) refuse_devices(op_, arguments_);
    const Tensor host = t.resolve_conj().resolve_neg().contiguous();
    tag(Tag::host_tensor);
    key_.put<uint8_t>(static_cast<uint8_t>(host.scalar_type()));
    key_.put<uint8_t>(static_cast<uint8_t>(host.dim()));
    key_.put_bytes(host.sizes().data(), host.dim() * 8);
    values_.put<uint64_t>(host.nbytes());
    values_.put_bytes(host.const_data_ptr(), host.nbytes());
  }

 private:
  void tag(Tag t) { key_.put(t); }
  void count(Tag t, size_t n) {
    tag(t);
    key_.put<uint32_t>(static_cast<uint32_t>(n));
  }
  void integers(const std::vector<int64_t>& list) {
    count(Tag::integer_list, list.size());
    key_.put_bytes(list.data(), list.size() * 8);
  }
  void list(c10::ArrayRef<IValue> items) {
    if (!items.empty() && items[0].isTensor()) {
      count(Tag::tensor_list, items.size());
      for (const IValue& item : items) tensor(item.toTensor());
      return;
    }
    count(Tag::scalar_list, items.size());
    for (const IValue& item : items) number(item, false);
  }
  void number(const IValue& v, bool in_key) {
    Buffer& out = in_key ? key_ : values_;
    if (v.isDouble()) {
      tag(in_key ? Tag::real : Tag::value_real);
      out.put<double>(v.toDouble());
    } else if (v.isInt() || v.isSymInt()) {
      tag(in_key ? Tag::integer : Tag::value_integer);
      out.put<int64_t>(v.isInt() ? v.toInt() : v.toSymInt().guard_int(__FILE__, __LINE__));
    } else if (v.isBool()) {
      tag(in_key ? Tag::boolean : Tag::value_boolean);
      if (in_key) out.put<uint8_t>(v.toBool());
      else out.put<int64_t>(v.toBool());
    } else if (v.isComplexDouble()) {
      tag(in_key ? Tag::complex : Tag::value_complex);
      out.put<double>(v.toComplexDouble().real());
      out.put<double>(v.toComplexDouble().imag());
    } else {
      TORCH_CHECK(false, op_.name, ": the device proxy cannot send a number of kind ", v.tagKind());
    }
  }
  Channel& c_;
  Buffer& key_;
  Buffer& values_;
  const Operator& op_;
  c10::ArrayRef<IValue> arguments_;
  void sparse_tensor(const Tensor& t) {
    const SparseHeader header = sparse_header(t, op_.name);
    if (t.get_device() != c_.index) refuse_devices(op_, arguments_);
    saw_sparse_ = true;
    tag(kSparseTag);
    key_.put(header);
    key_.put_bytes(t.sizes().data(), header.dim * 8);
    for (const Tensor& part : sparse_parts(t)) tensor(part);  // alive as long as `t` is
  }
  bool saw_sparse_ = false;
  bool host_allowed_ = false;  // of the argument that is being encoded
  Inputs inputs_;
};

TensorMeta read_meta(Cursor& in, const Operator& op) {
  TensorMeta m;
  m.kind = in.get<MetaKind>();
  if (m.kind == MetaKind::undefined) return m;
  m.dtype = in.get<uint8_t>();
  const int dim = in.get<uint8_t>();
  m.flags = in.get<uint8_t>();
  m.index = in.get<uint32_t>();
  m.offset = in.get<int64_t>();
  m.bytes = in.get<uint64_t>();
  TORCH_CHECK(!(m.flags & kHostResult), op.name, " returned a host tensor; that is not supported on the proxied device");
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isQIntType(static_cast<c10::ScalarType>(m.dtype)), op.name,
                              ": quantized tensors are not supported on the proxied device; quantize on the host");
  for (int i = 0; i < dim; i++) m.sizes.push_back(in.get<int64_t>());
  for (int i = 0; i < dim; i++) m.strides.push_back(in.get<int64_t>());
  return m;
}

CacheEntry read_results(Cursor in, const Operator& op) {
  CacheEntry e;
  e.new_storages = in.get<uint32_t>();
  const uint32_t results = in.get<uint32_t>();
  for (uint32_t i = 0; i < results; i++) {
    ResultMeta r{in.get<char>(), 1, {}, {}};
    switch (r.kind) {
      case 't': e.tensors.push_back(read_meta(in, op)); break;
      case 'l':
        r.count = in.get<uint32_t>();
        for (uint32_t j = 0; j < r.count; j++) e.tensors.push_back(read_meta(in, op));
        break;
      case kSparseResult: {
        r.sparse = std::make_shared<SparseMeta>();
        r.sparse->header = in.get<SparseHeader>();
        for (int d = 0; d < r.sparse->header.dim; d++) r.sparse->sizes.push_back(in.get<int64_t>());
        r.count = r.sparse->header.layout == static_cast<uint8_t>(at::kSparse) ? 2 : 3;
        for (uint32_t j = 0; j < r.count; j++) e.tensors.push_back(read_meta(in, op));
        break;
      }
      case 'i': r.value = in.get<int64_t>(); break;
      case 'd': r.value = in.get<double>(); break;
      case 'b': r.value = in.get<int64_t>() != 0; break;
      case 'c': {
        const double real = in.get<double>(), imaginary = in.get<double>();
        r.value = c10::complex<double>(real, imaginary);
        break;
      }
      default: break;
    }
    if (r.kind != 't' && r.kind != 'l' && r.kind != 'n') {
      if (op.constant_result) e.constant = true;
      else if (op.graph_device < 0) e.async = false;  // a graph's sizes follow from its key
    }
    e.results.push_back(std::move(r));
  }
  std::vector<bool> counted(e.new_storages);
  for (const TensorMeta& t : e.tensors)
    if (t.kind == MetaKind::new_storage) {
      if (!counted.at(t.index)) e.new_bytes += t.bytes;
      counted[t.index] = true;
    } else if (t.kind == MetaKind::input_storage) {
      e.all_new = false;
      if (!op.has_out && op.graph_device < 0) e.async = false;
    }
  return e;
}

// Whether each result that shares storage with an input shares it with that input in every call of
// the same key: not when another input of this call lies in the same storage.
bool sources_are_certain(const CacheEntry& e, const Inputs& inputs) {
  for (const TensorMeta& m : e.tensors) {
    if (m.kind != MetaKind::input_storage) continue;
    TORCH_CHECK(m.index < inputs.size(), "the device proxy named an argument that there is not");
    const auto* storage = inputs[m.index]->unsafe_storage().unsafeGetStorageImpl();
    for (size_t i = 0; i < inputs.size(); i++)
      if (i != m.index && inputs[i]->unsafe_storage().unsafeGetStorageImpl() == storage) return false;
  }
  return true;
}

class Builder {
 public:
  // `graph`: results that are an input are new tensors nevertheless, as those of compiled code are.
  Builder(Channel& channel, uint64_t base, const Inputs& inputs, bool graph)
      : channel_(channel), base_(base), inputs_(inputs), graph_(graph) {}

  Tensor build(const TensorMeta& m) {
    if (m.kind == MetaKind::undefined) return Tensor();
    const auto dtype = static_cast<c10::ScalarType>(m.dtype);
    if (m.kind == MetaKind::input_storage) {
      TORCH_CHECK(m.index < inputs_.size(), "the device proxy named an argument that there is not");
      c10::TensorImpl* input = inputs_[m.index];
      Tensor same(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(input));
      if (!graph_ && input->sizes() == at::IntArrayRef(m.sizes) && input->strides() == at::IntArrayRef(m.strides) &&
          input->storage_offset() == m.offset && same.scalar_type() == dtype)
        return same;
      return make_tensor(c10::Storage(same.storage()), dtype, m.sizes, m.strides, m.offset, m.flags);
    }
    if (storages_.size() <= m.index) storages_.resize(m.index + 1);
    if (!storages_[m.index]) storages_[m.index] = make_storage(channel_, base_ + m.index, m.bytes);
    return make_tensor(c10::Storage(storages_[m.index]), dtype, m.sizes, m.strides, m.offset, m.flags);
  }

 private:
  Channel& channel_;
  uint64_t base_;
  const Inputs& inputs_;
  const bool graph_;
  c10::SmallVector<c10::Storage, 2> storages_;
};

// The out= argument takes the shape that the operator gave it.
void adopt_shape(const Tensor& out, const TensorMeta& m) {
  auto* impl = out.unsafeGetTensorImpl();
  if (m.kind == MetaKind::undefined) return;
  if (out.is_conj() != bool(m.flags & kConjugate)) out._set_conj(m.flags & kConjugate);  // linalg.lu_solve
  if ((impl->sizes() == at::IntArrayRef(m.sizes) && impl->strides() == at::IntArrayRef(m.strides)))
    return;
  impl->set_sizes_and_strides(m.sizes, m.strides);
  if (out.storage().nbytes() < m.bytes) storage_has_grown(out.storage().unsafeGetStorageImpl(), m.bytes);
}

// A result that the operator wrote into a host number would be lost: the number was sent by value.
void check_written(const Operator& op, c10::ArrayRef<IValue> arguments, size_t index) {
  const IValue& v = arguments[index];
  const auto check = [&](const Tensor& t) {
    if (C10_LIKELY(!t.defined() || t.is_cuda())) return;
    if (t.dim()) refuse_devices(op, arguments);
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", t.device(),
                " and cuda:", current_device(), "!");
  };
  if (v.isTensor()) check(v.toTensor());
  else if (v.isTensorList())
    for (const Tensor& t : v.toTensorVector()) check(t);
}

int device_of(const IValue& v) {
  if (v.isTensor()) {
    const Tensor& t = v.toTensor();
    return t.defined() && t.is_cuda() ? t.get_device() : -1;
  }
  if (v.isTensorList())
    for (const Tensor& t : v.toTensorVector())
      if (t.defined() && t.is_cuda()) return t.get_device();
  if (v.isOptionalTensorList())
    for (const std::optional<Tensor>& t : v.toOptionalTensorList())
      if (t && t->defined() && t->is_cuda()) return t->get_device();
  return -1;
}

Channel& channel_of(c10::ArrayRef<IValue> arguments) {
  for (const IValue& v : arguments) {
    const int index = device_of(v);
    if (index >= 0) return channel(index);
  }
  for (const IValue& v : arguments)
    if (v.isDevice() && v.toDevice().is_cuda() && v.toDevice().has_index()) return channel(v.toDevice().index());
  return channel(current_device());
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

const CacheEntry* find(Operator& op, const Buffer& key, uint32_t settings, uint64_t hash) {
  auto found = op.cache.find(hash);
  if (found == op.cache.end()) return nullptr;
  for (const CacheEntry& e : found->second)
    if (e.settings == settings && e.key.size() == key.size() && !std::memcmp(e.key.data(), key.data(), key.size())) return &e;
  return nullptr;
}

// A sparse result that is put together once the channel is free: its constructor makes device tensors.
struct Late {
  size_t position;
  std::shared_ptr<SparseMeta> meta;
  std::vector<Tensor> parts;
};

void finish(Results& results, const std::vector<Late>& late) {
  for (const Late& one : late) {
    IValue& result = results[one.position];
    if (result.isTensor()) refill_sparse(result.toTensor(), one.meta->header, one.meta->sizes, one.parts);
    else result = make_sparse(one.meta->header, one.meta->sizes, one.parts);
  }
}

void results_of(const Operator& op, const CacheEntry& e, Builder& builder, c10::ArrayRef<IValue> arguments,
                Results& results, std::vector<Late>& late) {
  size_t next = 0, number = 0;
  for (const ResultMeta& r : e.results) {
    const int alias = number < op.result_alias.size() ? op.result_alias[number] : -1;
    number++;
    if (r.sparse) {
      std::vector<Tensor> parts;
      for (uint32_t i = 0; i < r.count; i++) parts.push_back(builder.build(e.tensors[next++]));
      late.push_back({results.size(), r.sparse, std::move(parts)});
      results.push_back(alias >= 0 ? arguments[alias] : IValue());
    } else if (r.kind == 't') {
      const TensorMeta& m = e.tensors[next++];
      if (alias >= 0) {
        Tensor out = arguments[alias].toTensor();
        adopt_shape(out, m);
        results.emplace_back(std::move(out));
      } else {
        results.emplace_back(builder.build(m));
      }
    } else if (r.kind == 'l' && alias >= 0) {
      const auto outs = arguments[alias].toTensorList();
      for (uint32_t i = 0; i < r.count; i++) adopt_shape(outs.get(i), e.tensors[next++]);
      results.push_back(arguments[alias]);
    } else if (r.kind == 'l') {
      c10::List<Tensor> list;
      list.reserve(r.count);
      for (uint32_t i = 0; i < r.count; i++) list.push_back(builder.build(e.tensors[next++]));
      results.emplace_back(std::move(list));
    } else if (r.kind == 'n') {
      results.emplace_back();
    } else {
      results.push_back(r.value);
    }
  }
}

}  // namespace

void encode_device_tensor(Channel& c, const Tensor& t) {
  auto* impl = t.unsafeGetTensorImpl();
  const auto dim = static_cast<uint8_t>(impl->dim());
  // Also dimensions of size 0 and 1 have strides, and results inherit them: only what a reader would
  // compute is left out.
  bool contiguous = impl->is_contiguous_default(at::MemoryFormat::Contiguous);
  if (contiguous) {
    int64_t expected = 1;
    const int64_t *sizes = impl->sizes().data(), *strides = impl->strides().data();
    for (int i = dim - 1; i >= 0; i--) {
      contiguous = contiguous && strides[i] == expected;
      expected *= std::max<int64_t>(sizes[i], 1);
    }
  }
  char* p = c.key.room(4 + dim * 16);
  char* const start = p;
  *p++ = static_cast<char>(Tag::tensor);
  *p++ = static_cast<char>(c10::typeMetaToScalarType(impl->dtype()));
  *p++ = static_cast<char>(dim);
  *p++ = static_cast<char>((contiguous ? kContiguous : 0) | (impl->is_conj() ? kConjugate : 0) |
                           (t.is_neg() ? kNegative : 0));
  std::memcpy(p, impl->sizes().data(), dim * 8);
  p += dim * 8;
  if (!contiguous) {
    std::memcpy(p, impl->strides().data(), dim * 8);
    p += dim * 8;
  }
  c.key.advance(p - start);
  const uint64_t id = record_of(t)->id;
  const int64_t offset = impl->storage_offset();
  char* v = c.values.room(16);
  std::memcpy(v, &id, 8);
  std::memcpy(v + 8, &offset, 8);
  c.values.advance(16);
}

void ship(Operator& op, Stack* stack) {
  Results results;
  std::vector<Late> late;
  const auto arguments = torch::jit::last(*stack, op.arguments);
  for (int i = 0; i < op.arguments; i++)
    if (op.is_written[i]) check_written(op, arguments, i);
  Channel& c = op.graph_device >= 0 ? channel(op.graph_device) : channel_of(arguments);
  {
    Locked lock(c);
    c.raise_async_error();
    follow_settings(c);
    Encoder encoder(c, op, arguments);
    for (int i = 0; i < op.arguments; i++) encoder.argument(i);
    const bool in_place = op.in_place && !encoder.saw_sparse();  // sparse ones may have new indices
    const uint64_t hash = hash_of(c.key) ^ (c.settings_id * 0x9E3779B97F4A7C15ull);
    c.flush_frees();
    define(c, op);
    std::unique_lock<std::mutex> cache_lock(cache_mutex, std::defer_lock);
    if (device_count() > 1) {
      c.make_room(padded(c.key.size()) + c.values.size());  // nobody waits for a proxy under a shared lock
      cache_lock.lock();
    }
    const CacheEntry* known = op.always_sync ? nullptr : find(op, c.key, c.settings_id, hash);
    if (known && known->constant) {
      results.push_back(known->results[0].value);
    } else {
      const bool wait = !known || !known->async || launch_blocking() || c.near_capacity(known->new_bytes);
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
        fresh = std::make_unique<CacheEntry>(in_place ? CacheEntry() : read_results(reply.body, op));
        if (op.graph_device >= 0 && !sources_are_certain(*fresh, encoder.inputs())) fresh->async = false;
        c.finish(reply);
        known = &*fresh;
      } else {
        c.async_records++;
      }
      c.next_storage += known->new_storages;
      if (in_place) {
        for (int alias : op.result_alias) results.push_back(arguments[alias]);
      } else {
        Builder builder(c, base, encoder.inputs(), op.graph_device >= 0);
        results_of(op, *known, builder, arguments, results, late);
        if (op.no_results) {
          results.clear();
          late.clear();
        }
      }
      if (fresh && !op.always_sync) {
        if (device_count() > 1) cache_lock.lock();
        if (!find(op, c.key, c.settings_id, hash)) {
          if (++cache_entries > kMaxCacheEntries) {
            for (Operator* o : operators()) o->cache.clear();
            cache_entries = 1;
          }
          fresh->key.assign(c.key.data(), c.key.size());
          fresh->settings = c.settings_id;
          op.cache[hash].push_back(std::move(*fresh));
        }
      }
    }
  }
  if (!late.empty()) finish(results, late);
  // Outside of the lock: dropping arguments can run Python.
  torch::jit::drop(*stack, op.arguments);
  for (IValue& r : results) stack->push_back(std::move(r));
}

Operator* add_graph(std::string packed, uint16_t arguments, int device) {
  auto* op = new Operator();
  const std::lock_guard<std::mutex> guard(cache_mutex);
  op->index = static_cast<uint32_t>(operators().size());
  op->name = kGraphName;
  op->overload = std::move(packed);
  op->arguments = arguments;
  op->graph_device = device;
  op->is_value.assign(arguments, 0);
  op->is_written.assign(arguments, 0);
  op->is_host.assign(arguments, 1);
  operators().push_back(op);
  return op;
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
  struct Kernel final : c10::OperatorKernel {
    explicit Kernel(Operator* o) : op(o) {}
    void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) { ship(*op, stack); }
    Operator* op;
  };
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(op));
}

Operator* add_operator(const c10::OperatorHandle& handle) {
  static const std::set<std::string> kValuesDecideShape = {"aten::arange", "aten::range", "aten::linspace",
                                                           "aten::logspace"};
  // Their failure must be raised at their own line: nothing later would notice it.
  static const std::set<std::string> kMustNotFailLate = {
      "aten::_linalg_check_errors", "aten::_assert_async", "aten::_linalg_eigh", "aten::_linalg_svd", "aten::linalg_eig"};
  // In place, and yet the result may be larger.
  static const std::set<std::string> kResizesItsInput = {"aten::addbmm_"};
  auto* op = new Operator();
  const auto& schema = handle.schema();
  op->handle = handle;
  op->index = static_cast<uint32_t>(operators().size());
  op->name = schema.name();
  op->overload = schema.overload_name();
  op->schema = &schema;
  op->arguments = static_cast<uint16_t>(schema.arguments().size());
  const bool in_key = kValuesDecideShape.count(op->name);
  for (const auto& a : schema.arguments()) {
    auto type = a.type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    op->is_value.push_back(!in_key && (type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType));
    op->is_written.push_back(a.alias_info() && a.alias_info()->isWrite());
    op->is_host.push_back(may_stay_on_host(op->name, a.name()));
    if (a.is_out()) op->has_out = true;
  }
  bool all_aliases = true;
  for (const auto& r : schema.returns()) {
    int alias = -1;
    if (r.alias_info() && r.alias_info()->isWrite())
      for (size_t i = 0; i < schema.arguments().size(); i++) {
        const auto* info = schema.arguments()[i].alias_info();
        if (info && info->isWrite() && info->beforeSets() == r.alias_info()->beforeSets()) alias = static_cast<int>(i);
      }
    op->result_alias.push_back(alias);
    all_aliases = all_aliases && alias >= 0;
  }
  op->in_place = all_aliases && schema.is_mutable() && !op->has_out && !kResizesItsInput.count(op->name);
  if (schema.returns().empty() && op->has_out) {  // _foreach_*.out, unbind_copy.int_out: their out= lists
    op->no_results = true;
    for (size_t i = 0; i < schema.arguments().size(); i++)
      if (schema.arguments()[i].is_out()) op->result_alias.push_back(static_cast<int>(i));
  }
  op->always_sync = handle.hasTag(at::Tag::data_dependent_output) || handle.hasTag(at::Tag::dynamic_output_shape) ||
                    kMustNotFailLate.count(op->name);
  op->constant_result = op->name == "aten::_fused_sdp_choice";
  operators().push_back(op);
  return op;
}

}  // namespace singularity
