#include "results.h"

#include "worker/src/tensors/sparse.h"

namespace singularity {

using at::Tensor;
using c10::IValue;

namespace {

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
  if (m.kind == MetaKind::new_storage)
    m.shape = c10::make_intrusive<ShapedTensor>(static_cast<c10::ScalarType>(m.dtype), m.sizes, m.strides, m.offset);
  return m;
}

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

}  // namespace

CacheEntry read_results(Cursor& in, const Operator& op) {
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
  const bool one = e.results.size() == 1 && e.results[0].kind == 't' && !op.no_results;
  if (one && (op.result_alias.empty() || op.result_alias[0] < 0) && e.new_storages == 1 && e.tensors[0].shape &&
      !(e.tensors[0].flags & (kConjugate | kNegative)))
    e.only = e.tensors[0].shape;
  return e;
}

std::vector<c10::Warning> read_warnings(Cursor& in, const char* end) {
  std::vector<c10::Warning> warnings;
  while (in.at() < end) {
    const bool deprecation = in.get<uint8_t>();
    const auto bytes = in.get<uint32_t>();
    c10::Warning::warning_variant_t type = c10::UserWarning();
    if (deprecation) type = c10::DeprecationWarning();
    const c10::SourceLocation unknown{nullptr, nullptr, 0};  // the text says it
    warnings.emplace_back(type, unknown, std::string(in.bytes(bytes), bytes), false);
  }
  return warnings;
}

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

}  // namespace singularity
