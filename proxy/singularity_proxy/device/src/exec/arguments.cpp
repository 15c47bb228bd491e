// From the key and the values of an operator's record to the arguments of a boxed call.
#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/TensorOptions.h>

#include "executor.h"
#include "wire/layouts.h"

namespace singularity {

using at::Tensor;
using c10::IValue;

namespace {

c10::ScalarType dtype_of(uint8_t number) {
  TORCH_CHECK(number < static_cast<uint8_t>(c10::ScalarType::Undefined), "unknown dtype ", int{number});
  return static_cast<c10::ScalarType>(number);
}

constexpr int64_t kMostElements = int64_t{1} << 58;  // times any item size: still no overflow

// One element more than the last one that sizes and strides reach; 0 for an empty tensor. Throws for
// numbers that no tensor has.
int64_t reach(at::IntArrayRef sizes, at::IntArrayRef strides) {
  int64_t last = 0;
  bool wrong = false, empty = false;
  for (size_t i = 0; i < sizes.size(); i++) {
    int64_t span = 0;
    wrong |= sizes[i] < 0 || sizes[i] > kMostElements || strides[i] < 0 || strides[i] > kMostElements;
    if (sizes[i] == 0) empty = true;
    else wrong |= __builtin_mul_overflow(sizes[i] - 1, strides[i], &span) || __builtin_add_overflow(last, span, &last);
  }
  TORCH_CHECK(!wrong && last < kMostElements, "a tensor of sizes ", sizes, " and strides ", strides, " cannot be");
  return empty ? 0 : last + 1;
}

// The number of elements; throws for sizes that no tensor has.
int64_t count_of(at::IntArrayRef sizes) {
  int64_t count = 1;
  bool wrong = false, empty = false;
  for (const int64_t n : sizes) {
    wrong |= n < 0 || n > kMostElements;
    if (n == 0) empty = true;
    else wrong |= __builtin_mul_overflow(count, n, &count);  // as if no size were 0: torch makes strides of them
  }
  TORCH_CHECK(!wrong && count <= kMostElements, "a tensor of sizes ", sizes, " cannot be");
  return empty ? 0 : count;
}

template <class T>
std::vector<T> numbers(Reader& key) {
  const auto n = key.get<uint32_t>();
  const char* from = key.bytes(n * sizeof(T));
  std::vector<T> list(n);
  if (n) std::memcpy(list.data(), from, n * sizeof(T));
  return list;
}

}  // namespace

Tensor Executor::device_tensor(Reader& key, Reader& values) {
  const auto dtype = dtype_of(key.get<uint8_t>());
  const int dim = key.get<uint8_t>();
  const auto flags = key.get<uint8_t>();
  int64_t size_words[kMaxDim], stride_words[kMaxDim];
  std::memcpy(size_words, key.bytes(dim * 8), dim * 8);
  const at::IntArrayRef sizes(size_words, dim), strides(stride_words, dim);
  if (!(flags & kContiguous)) std::memcpy(stride_words, key.bytes(dim * 8), dim * 8);
  const auto id = values.get<uint64_t>();
  const auto offset = values.get<int64_t>();
  constexpr uint8_t kLazy = kConjugate | kNegative;

  RecentTensors::Entry& recent = state_.recent.of(id);
  if (recent.id == id && !(flags & kLazy)) {
    auto* impl = recent.tensor.unsafeGetTensorImpl();
    // An operator may have changed the tensor, and even its memory, since it was used last: how far it
    // reaches is looked at anew.
    if (impl->dtype() == c10::scalarTypeToTypeMeta(dtype) && impl->sizes() == sizes && impl->storage_offset() == offset &&
        (flags & kContiguous ? recent.contiguous && impl->is_contiguous_default(at::MemoryFormat::Contiguous)
                             : impl->strides() == strides) &&
        !impl->is_conj() &&
        (impl->numel() == 0 || static_cast<uint64_t>(offset + (flags & kContiguous ? impl->numel() : reach(sizes, strides))) *
                                       impl->itemsize() <= impl->unsafe_storage().nbytes())) {
      inputs_.push_back(impl->unsafe_storage().unsafeGetStorageImpl());
      return recent.tensor;
    }
  }

  const int64_t elements = flags & kContiguous ? count_of(sizes) : reach(sizes, strides);
  c10::Storage& storage = state_.storage(id);
  // Never outside of the storage: a resize may have failed since the worker believed in it.
  const auto fit = static_cast<int64_t>(storage.nbytes() / c10::elementSize(dtype));
  TORCH_CHECK(offset >= 0 && offset <= kMostElements && (elements == 0 || (offset <= fit && elements <= fit - offset)),
              "a tensor that reaches to element ", offset, " + ", elements, " does not fit its device memory of ",
              storage.nbytes(), " bytes (an earlier resize may have failed)");
  const auto keys = storage.device().is_cpu() ? c10::DispatchKey::CPU : c10::computeDispatchKey(dtype, at::kStrided, storage.device());
  Tensor t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(keys),
                                                      c10::scalarTypeToTypeMeta(dtype));
  auto* impl = t.unsafeGetTensorImpl();
  if (flags & kContiguous) {
    impl->set_sizes_contiguous(sizes);
    if (offset) impl->set_storage_offset(offset);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  inputs_.push_back(storage.unsafeGetStorageImpl());
  if (storage.device() != state_.device || (flags & kLazy)) {
    plain_ = false;
    if (flags & kConjugate) t._set_conj(true);
    if (flags & kNegative) t._set_neg(true);
    return t;
  }
  recent.id = id;
  recent.contiguous = flags & kContiguous;
  recent.tensor = t;
  return t;
}

Tensor Executor::host_tensor(uint8_t tag, Reader& key, Reader& values) {
  const auto dtype = dtype_of(key.get<uint8_t>());
  if (static_cast<Tag>(tag) == Tag::host_scalar) {
    const auto flags = key.get<uint8_t>();
    Tensor t = at::detail::empty_cpu({}, dtype);
    std::memcpy(t.mutable_data_ptr(), values.bytes(16), t.element_size());
    if (flags & kWrappedNumber) t.unsafeGetTensorImpl()->set_wrapped_number(true);
    return t;
  }
  const int dim = key.get<uint8_t>();
  int64_t sizes[kMaxDim];
  std::memcpy(sizes, key.bytes(dim * 8), dim * 8);
  const auto wanted = static_cast<uint64_t>(count_of(at::IntArrayRef(sizes, dim))) * c10::elementSize(dtype);
  const auto bytes = values.get<uint64_t>();
  TORCH_CHECK(bytes == wanted, "a host tensor of ", wanted, " bytes came with ", bytes);
  const char* from = values.bytes(bytes);
  Tensor t = at::detail::empty_cpu(at::IntArrayRef(sizes, dim), dtype);
  if (bytes) std::memcpy(t.mutable_data_ptr(), from, bytes);
  return t;
}

IValue Executor::scalar(uint8_t tag, Reader& key, Reader& values) const {
  switch (static_cast<Tag>(tag)) {
    case Tag::integer: return key.get<int64_t>();
    case Tag::real: return key.get<double>();
    case Tag::boolean: return key.get<uint8_t>() != 0;
    case Tag::complex: {
      const auto real = key.get<double>(), imaginary = key.get<double>();
      return c10::complex<double>(real, imaginary);
    }
    case Tag::value_integer: return values.get<int64_t>();
    case Tag::value_real: return values.get<double>();
    case Tag::value_boolean: return values.get<int64_t>() != 0;
    case Tag::value_complex: {
      const auto real = values.get<double>(), imaginary = values.get<double>();
      return c10::complex<double>(real, imaginary);
    }
    default: TORCH_CHECK(false, "unknown argument tag ", int{tag});
  }
}

// `inside` a list: lists of lists are refused, or a record could nest them until the stack ends.
IValue Executor::argument(Reader& key, Reader& values, bool inside) {
  const auto tag = key.get<uint8_t>();
  TORCH_CHECK(!inside || (static_cast<Tag>(tag) != Tag::tensor_list && static_cast<Tag>(tag) != Tag::optional_tensor_list),
              "a list of lists");
  if (static_cast<Tag>(tag) == kSparseTag) return sparse_tensor(key, values);
  switch (static_cast<Tag>(tag)) {
    case Tag::none: return {};
    case Tag::undefined_tensor: return Tensor();
    case Tag::tensor: return device_tensor(key, values);
    case Tag::host_scalar:
    case Tag::host_tensor: return host_tensor(tag, key, values);
    case Tag::integer_list: return numbers<int64_t>(key);
    case Tag::real_list: return numbers<double>(key);
    case Tag::boolean_list: {
      c10::List<bool> list;
      for (const uint8_t b : numbers<uint8_t>(key)) list.push_back(b != 0);
      return list;
    }
    case Tag::tensor_list: {
      const auto n = key.get<uint32_t>();
      c10::List<Tensor> list;
      list.reserve(std::min<size_t>(n, key.left()));
      for (uint32_t i = 0; i < n; i++) list.push_back(argument(key, values, true).toTensor());
      return list;
    }
    case Tag::optional_tensor_list: {
      const auto n = key.get<uint32_t>();
      c10::List<std::optional<Tensor>> list;
      list.reserve(std::min<size_t>(n, key.left()));
      for (uint32_t i = 0; i < n; i++) {
        IValue one = argument(key, values, true);
        if (one.isNone()) list.push_back(std::nullopt);
        else list.push_back(std::move(one).toTensor());
      }
      return list;
    }
    case Tag::scalar_list: {
      const auto n = key.get<uint32_t>();
      c10::impl::GenericList list(c10::NumberType::get());
      list.reserve(std::min<size_t>(n, key.left()));
      for (uint32_t i = 0; i < n; i++) {
        const auto one = key.get<uint8_t>();
        list.push_back(scalar(one, key, values));
      }
      return list;
    }
    case Tag::string: {
      const auto n = key.get<uint32_t>();
      return std::string(key.bytes(n), n);
    }
    case Tag::device: return key.get<uint8_t>() ? c10::Device(c10::kCPU) : state_.device;
    case Tag::generator: return state_.generator(values.get<uint64_t>());
    default: return scalar(tag, key, values);
  }
}

}  // namespace singularity
