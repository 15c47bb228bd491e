#include "encode.h"

#include <ATen/core/op_registration/adaption.h>

#include <cmath>
#include <limits>
#include <utility>

#include "devices_of_calls.h"
#include "ship.h"
#include "worker/src/tensors/sparse.h"
#include "worker/src/tensors/storage.h"

namespace singularity {

using at::Tensor;
using c10::IValue;

namespace {

// Calls `look` with each tensor of the arguments that are (not) out=, and the argument's name.
template <class Look>
void each_tensor(const Operator& op, c10::ArrayRef<IValue> arguments, bool out, const Look& look) {
  for (size_t i = 0; i < arguments.size(); i++) {
    const auto& argument = op.handle->schema().arguments()[i];
    const IValue& v = arguments[i];
    if (argument.is_out() != out || op.is_host[i]) continue;
    if (v.isTensor()) look(v.toTensor(), argument.name());
    else if (v.isTensorList() || v.isOptionalTensorList())
      for (const IValue& item : v.toListRef())
        if (item.isTensor()) look(item.toTensor(), argument.name());
  }
}

// The numbers that a tensor of this type can hold.
std::pair<double, double> range_of(c10::ScalarType type) {
  constexpr double kAny = std::numeric_limits<double>::infinity(), kFloat = std::numeric_limits<float>::max();
  switch (type) {
    case at::kByte: return {0, 255};
    case at::kChar: return {-128, 127};
    case at::kShort: return {-32768, 32767};
    case at::kInt: return {-2147483648.0, 2147483647.0};
    case at::kLong: return {-9223372036854775808.0, 9223372036854774784.0};  // the largest double below 2^63
    case at::kHalf: return {-65504, 65504};
    case at::kFloat:
    case at::kBFloat16: return {-kFloat, kFloat};
    default: return {-kAny, kAny};
  }
}

// Torch refuses numbers that do not, where it makes one of a tensor's values of them.
bool is_in_range(const IValue& v, c10::ScalarType type) {
  const double number = v.isDouble() ? v.toDouble() : v.isInt() ? static_cast<double>(v.toInt()) : 0;
  if (!std::isfinite(number)) return !c10::isIntegralType(type, true);
  const auto [low, high] = range_of(type);
  return low <= number && number <= high;
}

// The bytes of its storage that a tensor lies in.
std::pair<int64_t, int64_t> extent_of(const c10::TensorImpl& t) {
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); d++) last += (t.size(d) - 1) * t.stride(d);
  const auto width = static_cast<int64_t>(t.itemsize());
  return {t.storage_offset() * width, (t.storage_offset() + last + 1) * width};
}

}  // namespace

// The text that a CUDA build gives when the tensors of a call are on several devices: the generated
// wrappers of kernels say it one way, TensorIterator another one, and what makes a result of its own
// size a third one.
void refuse_devices(const Operator& op, c10::ArrayRef<IValue> arguments) {
  if (op.is_composed) throw SeveralDevices();
  TORCH_CHECK(op.graph_device < 0, "Expected all tensors to be on the same device, but a compiled graph of cuda:",
              op.graph_device, " got one of another device!");
  const bool iterator = checked_by_iterator(*op.handle);
  std::optional<c10::Device> common;
  if (sizes_its_outputs(*op.handle)) {
    const c10::Device device = arguments[0].toTensor().device();
    each_tensor(op, arguments, true, [&](const Tensor& t, const std::string&) {
      TORCH_CHECK(t.device() == device, "Expected out tensor to have device ", device, ", but got ", t.device(), " instead");
    });
  }
  if (iterator)
    for (const bool out : {true, false})
      each_tensor(op, arguments, out, [&](const Tensor& t, const std::string&) {
        if (!common && t.defined() && !t.is_cpu()) common = t.device();
      });
  for (const bool out : {true, false})  // the order in which the wrappers look
    each_tensor(op, arguments, out, [&](const Tensor& t, const std::string& name) {
      if (!t.defined() || (iterator && t.is_cpu() && t.dim() == 0)) return;
      if (!common) common = t.device();
      if (*common == t.device()) return;
      TORCH_CHECK(!iterator, "Expected all tensors to be on the same device, but found at least two devices, ", *common,
                  " and ", t.device(), "!");
      c10::impl::common_device_check_failure(*common, t, wrapper_name(*op.handle).c_str(), name.c_str());
    });
  const IValue& self = arguments[0];
  TORCH_CHECK(!(op.name.find("index") != std::string::npos && self.isTensor()),
              "indices should be either on cpu or on the same device as the indexed tensor (", self.toTensor().device(), ")");
  TORCH_CHECK(false, op.name, ": expected every tensor on the device of the call or, where it may be, on the host");
}

void check_written(const Operator& op, c10::ArrayRef<IValue> arguments, size_t index) {
  const IValue& v = arguments[index];
  const auto check = [&](const Tensor& t) {
    if (C10_LIKELY(!t.defined() || t.is_cuda())) return;
    if (t.dim() || op.is_composed) refuse_devices(op, arguments);
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, cuda:",
                current_device(), " and ", t.device(), "!");
  };
  if (v.isTensor()) check(v.toTensor());
  else if (v.isTensorList())
    for (const IValue& item : v.toListRef()) check(item.toTensor());
}

void Encoder::other(const IValue& v, bool in_key) {
  if (v.isInt() || v.isDouble() || v.isBool() || v.isComplexDouble() || v.isSymInt()) return number(v, in_key);
  if (v.isIntList()) {
    const auto items = v.toListRef();
    count(Tag::integer_list, items.size());
    for (const IValue& item : items) key_.put<int64_t>(item.toInt());
    return;
  }
  if (v.isSymIntList())
    return integers(c10::fmap(v.toSymIntVector(),
                              [](const c10::SymInt& s) { return s.guard_int(__FILE__, __LINE__); }));
  if (v.isTensorList()) {
    const auto items = v.toListRef();
    count(Tag::tensor_list, items.size());
    for (const IValue& item : items) tensor(item.toTensor());
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
  if (v.isOptionalTensorList()) return optional_tensors(v.toListRef());
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

void Encoder::other_tensor(const Tensor& t) {
  if (!t.defined()) return tag(Tag::undefined_tensor);
  if (t.is_cuda()) return sparse_tensor(t);
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
  check_dimensions(host.dim());
  tag(Tag::host_tensor);
  key_.put<uint8_t>(static_cast<uint8_t>(host.scalar_type()));
  key_.put<uint8_t>(static_cast<uint8_t>(host.dim()));
  key_.put_bytes(host.sizes().data(), host.dim() * 8);
  values_.put<uint64_t>(host.nbytes());
  values_.put_bytes(host.const_data_ptr(), host.nbytes());
}

void Encoder::integers(const std::vector<int64_t>& list) {
  count(Tag::integer_list, list.size());
  key_.put_bytes(list.data(), list.size() * 8);
}

// Of the interpreter of TorchScript: it does not always say what the items are.
void Encoder::list(c10::ArrayRef<IValue> items) {
  if (std::any_of(items.begin(), items.end(), [](const IValue& item) { return item.isNone(); }))
    return optional_tensors(items);
  if (!items.empty() && items[0].isTensor()) {
    count(Tag::tensor_list, items.size());
    for (const IValue& item : items) tensor(item.toTensor());
    return;
  }
  count(Tag::scalar_list, items.size());
  for (const IValue& item : items) number(item, op_.numbers_in_key);
}

c10::ScalarType Encoder::type_of_numbers() const {
  if (!inputs_.empty()) return c10::typeMetaToScalarType(inputs_[0]->dtype());
  if (op_.dtype_argument < 0 || !arguments_[op_.dtype_argument].isInt()) return c10::ScalarType::Undefined;
  return arguments_[op_.dtype_argument].toScalarType();
}

void Encoder::number(const IValue& v, bool in_key) {
  Buffer& out = in_key ? key_ : values_;
  if (!in_key && !is_in_range(v, type_of_numbers())) may_fail_ = true;
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

void Encoder::look_for_overlap(const Tensor& written) {
  const c10::TensorImpl* const to = written.unsafeGetTensorImpl();
  if (!written.defined() || !to->has_storage()) return;
  const auto* const storage = to->unsafe_storage().unsafeGetStorageImpl();
  for (const c10::TensorImpl* from : inputs_) {
    if (from == to || from->unsafe_storage().unsafeGetStorageImpl() != storage) continue;
    const bool same = from->storage_offset() == to->storage_offset() && from->sizes() == to->sizes() &&
                      from->strides() == to->strides() && from->itemsize() == to->itemsize();
    if (same || !from->numel() || !to->numel()) continue;
    const auto [from_begin, from_end] = extent_of(*from);
    const auto [to_begin, to_end] = extent_of(*to);
    if (from_begin < to_end && to_begin < from_end) may_fail_ = true;
  }
}

// A number to fill with is refused by a type that cannot hold it; what else is read may always be.
bool Encoder::may_be_refused(const Tensor& read) const {
  if (!read.defined()) return false;
  if (op_.schema->arguments()[op_.read_argument].name() != "value") return true;
  if (read.is_cpu() && read.numel() == 1) return !is_in_range(read.item(), type_of_numbers());
  return read.scalar_type() != type_of_numbers();
}

void Encoder::optional_tensors(c10::ArrayRef<IValue> items) {
  count(Tag::optional_tensor_list, items.size());
  for (const IValue& item : items) {
    if (item.isTensor() && item.toTensor().defined()) tensor(item.toTensor());
    else tag(Tag::none);
  }
}

void refuse_dimensions(int64_t dimensions) {
  TORCH_CHECK(false, "a proxied device has tensors of at most ", kMaxDim, " dimensions, and this one has ", dimensions);
  std::abort();  // TORCH_CHECK threw
}

void Encoder::sparse_tensor(const Tensor& t) {
  const SparseHeader header = sparse_header(t, op_.name);
  if (t.get_device() != c_.index) refuse_devices(op_, arguments_);
  saw_sparse_ = true;
  tag(kSparseTag);
  key_.put(header);
  key_.put_bytes(t.sizes().data(), header.dim * 8);
  for (const Tensor& part : sparse_parts(t)) tensor(part);  // alive as long as `t` is
}

}  // namespace singularity
