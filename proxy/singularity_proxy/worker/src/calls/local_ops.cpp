// Operators that the worker does itself: storage and metadata, copies to and from the host, and the
// composites whose decomposition depends on the physical device.
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <set>

#include "worker/src/tensors/device.h"
#include "families.h"
#include "ship.h"
#include "worker/src/tensors/storage.h"
#include "wire/bulk.h"

namespace singularity {
namespace {

using at::Tensor;

const c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);
Operator* copy_operator = nullptr;

// The one that a factory was asked for; -1: the current one.
int index_of(const std::optional<c10::Device>& device) { return device && device->has_index() ? device->index() : -1; }

bool fills_fresh_memory() {  // as torch does when deterministic algorithms are asked for
  const auto& context = at::globalContext();
  return __builtin_expect(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory(), 0);
}
Tensor filled(Tensor fresh) {
  if (fills_fresh_memory()) at::native::fill_empty_deterministic_(fresh);
  return fresh;
}
Tensor empty_memory_format(at::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                           std::optional<c10::Device> device, std::optional<bool> pin,
                           std::optional<c10::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  const OnDevice on(index_of(device));
  return filled(at::detail::empty_generic(size, device_allocator(), kKeys, c10::dtype_or_default(dtype), format));
}
Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                     std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  const OnDevice on(index_of(device));
  return filled(at::detail::empty_strided_generic(size, stride, device_allocator(), kKeys, c10::dtype_or_default(dtype)));
}
const Tensor& resize(const Tensor& self, at::IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() == size && !format) return self;
  impl->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  const uint64_t need =
      at::detail::computeStorageNbytes(size, impl->strides(), self.element_size(), impl->storage_offset());
  const auto before = static_cast<int64_t>(self.storage().nbytes());
  if (need > self.storage().nbytes()) {
    resize_storage(self.storage().unsafeGetStorageImpl(), need);
    if (fills_fresh_memory()) at::native::fill_resize_deterministic_(self, before);
  }
  return self;
}
Tensor& set_storage_offset(Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                           at::IntArrayRef stride) {
  if (const StorageSlice* slice = slice_of(source)) {
    const auto item = static_cast<int64_t>(self.element_size());
    TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
    const uint64_t need = stride.data() ? at::detail::computeStorageNbytes(size, stride, item, offset)
                                        : at::detail::computeStorageNbytesContiguous(size, item, offset);
    TORCH_CHECK(need <= source.nbytes(), "Trying to resize storage that is not resizable");
    TORCH_CHECK(slice->start % item == 0, "a slice of a storage that starts at byte ", slice->start,
                " cannot hold elements of ", item, " bytes");
    return set_storage_offset(self, slice->base, offset + slice->start / item, size, stride);
  }
  at::native::checkSetStorage(self, source, offset, size, stride);
  auto* impl = self.unsafeGetTensorImpl();
  if (stride.data() && stride.size() == size.size()) {
    impl->set_sizes_and_strides(size, stride, offset);
  } else {
    impl->set_sizes_contiguous(size);
    impl->set_storage_offset(offset);
  }
  const uint64_t need = at::detail::computeStorageNbytes(size, impl->strides(), self.element_size(), offset);
  if (need > source.nbytes()) resize_storage(source.unsafeGetStorageImpl(), need);
  return self;
}
Tensor& set_storage(Tensor& self, at::Storage source) {
  const int64_t n = static_cast<int64_t>(source.nbytes() / self.element_size());
  return set_storage_offset(self, source, 0, {n}, {});
}
Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}
Tensor& set_empty(Tensor& self) {
  const Tensor empty = at::empty({0}, self.options());
  return set_tensor(self, empty);
}
// What autograd makes where a gradient is zero. Elsewhere it has no memory, and operators look for that;
// on the device it is made of ordinary zeros, which every operator understands.
Tensor efficient_zeros(at::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                       std::optional<c10::Device> device, std::optional<bool> pin) {
  return at::zeros(size, dtype, layout, device ? device : c10::Device(c10::kCUDA), pin);
}
Tensor lazy_clone(const Tensor& self) { return self.clone(); }  // device memory is not copied on write
void record_stream(Tensor&, at::Stream) {}  // one in-order queue: memory is never reused too early
bool is_set_to(const Tensor& a, const Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() &&
         a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

// ---- copies

constexpr uint64_t kPieceBytes = kMaxPayloadBytes / 4;  // of one record: both sides copy at the same time

// `bytes` of host memory into the storage of contiguous `target`, in records that are complete in
// themselves: the proxy can stop between any two of them.
void write_bytes(const Tensor& target, const char* from, uint64_t bytes) {
  Channel& c = *record_of(target)->channel;
  uint64_t at = static_cast<uint64_t>(target.storage_offset()) * target.element_size();
  Locked lock(c);
  const StorageRecord* storage = record_of(target);  // another thread may have resized it before
  c.raise_async_error();
  c.flush_frees();
  while (bytes) {
    const uint64_t n = std::min(bytes, kPieceBytes);
    RecordHeader* r = c.begin(Kind::write, 0, 16 + n);
    r->base = storage->id;
    char* body = reinterpret_cast<char*>(r + 1);
    std::memcpy(body, &at, 8);
    std::memcpy(body + 8, &n, 8);
    std::memcpy(body + 16, from, n);
    c.send(r);
    c.async_records++;
    at += n;
    from += n;
    bytes -= n;
  }
}

// The bytes of contiguous `source` into host memory. Several requests are under way at a time, so that
// the proxy fills the queue while the worker empties it.
void read_bytes(const Tensor& source, char* to, uint64_t bytes) {
  Channel& c = *record_of(source)->channel;
  uint64_t at = static_cast<uint64_t>(source.storage_offset()) * source.element_size();
  Locked lock(c);
  const StorageRecord* storage = record_of(source);  // another thread may have resized it before
  c.raise_async_error();
  c.flush_frees();
  const uint64_t window = std::max<uint64_t>(c.header()->reply_bytes / kPieceBytes, 2) - 1;
  const uint64_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  const auto copy = bytes < kBeyondCaches ? copy_through_caches : copy_past_caches;
  const uint64_t before = c.seq;  // nothing but the requests is sent meanwhile: their numbers follow it
  for (uint64_t asked = 0, got = 0; got < pieces; got++) {
    for (; asked < pieces && asked - got < window; asked++) {
      const uint64_t from = at + asked * kPieceBytes, n = std::min(bytes - asked * kPieceBytes, kPieceBytes);
      RecordHeader* r = c.begin(Kind::read, kReply, 16);
      r->base = storage->id;
      char* body = reinterpret_cast<char*>(r + 1);
      std::memcpy(body, &from, 8);
      std::memcpy(body + 8, &n, 8);
      c.send(r);
    }
    const Reply reply = c.receive_of(before + got + 1);
    copy(to + got * kPieceBytes, reply.body.at(), std::min(bytes - got * kPieceBytes, kPieceBytes));
    c.finish(reply);
  }
  c.raise_async_error();
}

void host_to_device(Tensor& self, const Tensor& source) {
  Tensor host = source.to(self.scalar_type());
  if (host.sizes() != self.sizes()) host = host.expand(self.sizes());
  host = host.resolve_conj().resolve_neg().contiguous();
  if (self.is_contiguous() && !self.is_conj() && !self.is_neg())
    return write_bytes(self, static_cast<const char*>(host.const_data_ptr()), host.nbytes());
  const Tensor staged = at::empty(self.sizes(), self.options());
  write_bytes(staged, static_cast<const char*>(host.const_data_ptr()), host.nbytes());
  self.copy_(staged);
}

void device_to_host(Tensor& self, const Tensor& source) {
  const Tensor plain = source.resolve_conj().resolve_neg().contiguous();
  if (self.is_contiguous() && self.scalar_type() == plain.scalar_type() && self.sizes() == plain.sizes() &&
      !self.is_conj() && !self.is_neg())
    return read_bytes(plain, static_cast<char*>(self.mutable_data_ptr()), plain.nbytes());
  Tensor host = at::empty(plain.sizes(), plain.options().device(at::kCPU));
  read_bytes(plain, static_cast<char*>(host.mutable_data_ptr()), plain.nbytes());
  self.copy_(host);
}

Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking) {
  if (self.is_same(source) || self.numel() == 0) return self;
  const bool to_device = self.is_cuda(), from_device = source.is_cuda();
  if (to_device && from_device) {
    if (self.get_device() == source.get_device()) {
      torch::jit::Stack stack{self, source, non_blocking};
      ship(*copy_operator, &stack);
    } else {  // between two virtual devices: through the worker
      const Tensor host = source.to(at::kCPU);
      host_to_device(self, host);
    }
  } else if (to_device) {
    TORCH_CHECK(source.is_cpu(), "cannot copy from ", source.device(), " to ", self.device());
    host_to_device(self, source);
  } else {
    device_to_host(self, source);
  }
  return self;
}
Tensor copy_from(const Tensor& self, const Tensor& target, bool non_blocking) {
  Tensor out = target;
  copy(out, self, non_blocking);
  return target;
}
Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  if (self.sizes() != target.sizes()) target.resize_(self.sizes());
  Tensor out = target;
  copy(out, self, false);
  return target;
}
at::Scalar local_scalar(const Tensor& self) {
  Tensor host = at::empty({}, at::TensorOptions().dtype(self.scalar_type()));
  // Not view({}): that would be a dtype.
  const Tensor scalar = self.dim() ? self.view(at::IntArrayRef{}) : self;
  copy(host, scalar, false);
  return host.item();
}

// ---- composites that look at the device: follow the proxy's physical device, not the word "cuda"

constexpr int64_t kMath = 0, kFlash = 1;  // sdp::SDPBackend

// Without memory, as torch.compile traces with: the device cannot be asked about it.
bool is_traced(const Tensor& t) {
  const auto keys = t.key_set() | c10::impl::tls_local_dispatch_key_set().included_;
  return keys.has_backend(c10::BackendComponent::MetaBit) || keys.has(c10::DispatchKey::Python);
}

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask_in,
                 double dropout, bool causal, std::optional<double> scale, bool gqa) {
  // Shapes and switches decide on a cpu device, so what is traced can be decided here.
  const int64_t choice =
      is_traced(query)
          ? at::_ops::_fused_sdp_choice::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), query, key, value, mask_in,
                                                    dropout, causal, scale, gqa)
          : at::_fused_sdp_choice(query, key, value, mask_in, dropout, causal, scale, gqa);
  std::optional<Tensor> mask = mask_in;
  if (mask && mask->scalar_type() == at::kBool) {
    Tensor additive = at::zeros_like(*mask, query.options());
    additive.masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity());
    mask = additive;
  }
  // As on the CPU: that kernel has no gradient for its mask (the proxy, asked above, knows no gradients).
  const bool mask_learns = mask && mask->requires_grad() && at::GradMode::is_enabled();
  if (choice == kFlash && dropout == 0.0 && !mask_learns)
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, mask, scale));
  return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, std::nullopt, scale, gqa));
}
int64_t attention_choice(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask,
                         double dropout, bool causal, std::optional<double> scale, bool gqa) {
  // torch's own composite asks here while it is traced without autograd; what it takes for another
  // answer are kernels of CUDA. The decomposition fits any device. Real tensors below a dispatch mode
  // can still ask.
  if (query.key_set().has_backend(c10::BackendComponent::MetaBit) || query.key_set().has(c10::DispatchKey::Python))
    return kMath;
  return at::_fused_sdp_choice(query, key, value, mask, dropout, causal, scale, gqa);
}
// The decomposition that the CPU uses, so that a seed gives the same numbers as on the CPU.
Tensor dropout(const Tensor& input, double p, bool train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (p == 0 || !train || input.numel() == 0) return input;
  if (p == 1) return input.mul(at::zeros({}, input.options()));
  Tensor noise = at::empty_like(input);
  noise.bernoulli_(1 - p);
  noise.div_(1 - p);
  return input.mul(noise);
}

bool no_vendor_ctc(const Tensor&, const Tensor&, at::IntArrayRef, at::IntArrayRef, int64_t) { return false; }
bool no_vendor_ctc_tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) { return false; }

// Products with a wider result type exist for CUDA only: on a cpu device the operands are widened.
Tensor mm_dtype(const Tensor& a, const Tensor& b, c10::ScalarType dtype) { return at::mm(a.to(dtype), b.to(dtype)); }
Tensor& mm_dtype_out(const Tensor& a, const Tensor& b, c10::ScalarType dtype, Tensor& out) {
  return at::mm_out(out, a.to(dtype), b.to(dtype));
}
Tensor bmm_dtype(const Tensor& a, const Tensor& b, c10::ScalarType dtype) { return at::bmm(a.to(dtype), b.to(dtype)); }
Tensor& bmm_dtype_out(const Tensor& a, const Tensor& b, c10::ScalarType dtype, Tensor& out) {
  return at::bmm_out(out, a.to(dtype), b.to(dtype));
}
Tensor addmm_dtype(const Tensor& self, const Tensor& a, const Tensor& b, c10::ScalarType dtype, const at::Scalar& beta,
                   const at::Scalar& alpha) {
  return at::addmm(self.to(dtype), a.to(dtype), b.to(dtype), beta, alpha);
}
Tensor& addmm_dtype_out(const Tensor& self, const Tensor& a, const Tensor& b, c10::ScalarType dtype,
                        const at::Scalar& beta, const at::Scalar& alpha, Tensor& out) {
  return at::addmm_out(out, self.to(dtype), a.to(dtype), b.to(dtype), beta, alpha);
}
Tensor baddbmm_dtype(const Tensor& self, const Tensor& a, const Tensor& b, c10::ScalarType dtype, const at::Scalar& beta,
                     const at::Scalar& alpha) {
  return at::baddbmm(self.to(dtype), a.to(dtype), b.to(dtype), beta, alpha);
}
Tensor& baddbmm_dtype_out(const Tensor& self, const Tensor& a, const Tensor& b, c10::ScalarType dtype,
                          const at::Scalar& beta, const at::Scalar& alpha, Tensor& out) {
  return at::baddbmm_out(out, self.to(dtype), a.to(dtype), b.to(dtype), beta, alpha);
}

torch::CppFunction kernel_of(const std::string& full, Operator* op) {
  if (proxy_is_cpu())
    if (auto widened = widened_kernel(full, op)) return std::move(*widened);
  return shipped_kernel(op);
}

// ---- registration

// Metadata and views: their composite or CPU-shared implementation works on our tensors as it is.
const std::set<std::string>& local_names() {
  static const std::set<std::string> names = {
      "_to_copy", "empty_like", "new_empty", "new_empty_strided", "is_pinned", "_pin_memory", "_has_same_storage_numel",
      "is_same_size", "_has_compatible_shallow_copy_type", "lift", "lift_fresh", "_to_cpu", "to_dense",
      "detach_", "squeeze_", "unsqueeze_", "t_", "transpose_", "as_strided_", "swapdims_", "_resize_output_",
      "empty_permuted", "resize_as_", "set_data", "_conj_physical", "resolve_conj", "_nested_tensor_from_mask_left_aligned",
      "_sparse_coo_tensor_with_dims", "sparse_dim", "dense_dim", "_pack_padded_sequence"};
  return names;
}

struct Quiet final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::vector<torch::Library*>& libraries() {  // registrations last as long as their Library object
  static auto& all = *new std::vector<torch::Library*>();
  return all;
}
torch::Library& library(const std::string& name_space, c10::DispatchKey key) {
  libraries().push_back(new torch::Library(torch::Library::IMPL, name_space, key, __FILE__, __LINE__));
  return *libraries().back();
}

bool has_kernel(const c10::OperatorHandle& h, c10::DispatchKey key) { return h.hasKernelForDispatchKey(key); }

enum class Treatment { composite, recompose, local, host, ship, refuse, skip };

// Whether the physical device has a kernel of its own for an operator that can also be composed of
// others. A cpu device runs the same build, so its kernels are ours; of CUDA's the names are known.
bool device_has_kernel(const c10::OperatorHandle& h, const std::string& base) {
  static const std::set<std::string> kCuda = {"silu_backward", "mish_backward", "_fused_rms_norm"};
  return proxy_is_cpu() ? has_kernel(h, c10::DispatchKey::CPU) : kCuda.count(base) > 0;
}

// The composite, although this build of torch has a kernel for CUDA: what the dispatcher computes for
// a backend without kernels.
struct CompositeKernel final : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    op.getComputedKernelForDispatchKey(c10::DispatchKey::MAIA).callBoxed(op, keys, stack);
  }
};
torch::CppFunction composite_kernel() {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<CompositeKernel>());
}

Treatment treatment_of(const c10::OperatorHandle& h, const std::string& base, const std::string& full) {
  const bool implicit = has_kernel(h, c10::DispatchKey::CompositeImplicitAutograd);
  const bool explicit_ = has_kernel(h, c10::DispatchKey::CompositeExplicitAutograd);
  const bool real = has_kernel(h, c10::DispatchKey::CUDA);  // in a CUDA build; it must not be reached
  // Autograd needs the decomposition, unless the device has a kernel of its own (silu_backward): the
  // decomposition would round differently.
  if (implicit) {
    if (device_has_kernel(h, base)) return Treatment::ship;
    return real ? Treatment::recompose : Treatment::composite;
  }
  const auto& schema = h.schema();
  bool view = false, only_tensors = true;
  for (const auto& r : schema.returns()) {
    if (r.alias_info() && !r.alias_info()->isWrite()) view = true;
    const auto kind = r.type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) only_tensors = false;
  }
  if (view || local_names().count(base) || base.rfind("_nested", 0) == 0) {
    if (explicit_) return real ? Treatment::recompose : Treatment::local;
    return has_kernel(h, c10::DispatchKey::CPU) ? Treatment::host : real ? Treatment::refuse : Treatment::local;
  }
  if (explicit_ && !only_tensors && full != "_fused_sdp_choice")  // metadata queries
    return real ? Treatment::recompose : Treatment::local;
  bool takes_tensors = false;
  for (const auto& a : schema.arguments()) {
    const auto kind = a.type()->kind();
    if (kind == c10::TypeKind::StorageType || kind == c10::TypeKind::StreamObjType) return real ? Treatment::refuse : Treatment::skip;
    takes_tensors = takes_tensors || a.type()->isSubtypeOf(*c10::TensorType::get());
  }
  const bool any = explicit_ || takes_tensors || has_kernel(h, c10::DispatchKey::CPU) || has_kernel(h, c10::DispatchKey::Meta) ||
                   has_kernel(h, c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
  if (schema.arguments().empty() || !any) return real ? Treatment::refuse : Treatment::skip;
  return Treatment::ship;  // also what has kernels for CUDA only: the device says whether it knows it
}

}  // namespace

std::map<std::string, double> install() {
  const uint64_t start = monotonic_ns();
  Quiet quiet;
  c10::WarningUtils::WarningHandlerGuard silent(&quiet);  // "Overriding a previously registered kernel"
  install_device();
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&attention_choice);

  torch::Library& kernels = library("aten", c10::DispatchKey::CUDA);
  std::set<std::string> own;
  const auto put = [&](const char* name, auto* function) {
    own.insert(name);
    kernels.impl(name, function);
  };
  put("empty.memory_format", &empty_memory_format);
  put("empty_strided", &empty_strided);
  put("as_strided", &at::native::as_strided_tensorimpl);
  put("view", TORCH_FN(at::native::view).func_ptr());
  put("_reshape_alias", &at::native::_reshape_alias);
  put("unfold", &at::native::unfold);
  put("view_as_real", &at::native::view_as_real);
  put("view_as_complex", &at::native::view_as_complex);
  put("resize_", &resize);
  put("set_.source_Storage_storage_offset", &set_storage_offset);
  put("set_.source_Storage", &set_storage);
  put("set_.source_Tensor", &set_tensor);
  put("set_", &set_empty);
  put("copy_", &copy);
  put("_copy_from", &copy_from);
  put("_copy_from_and_resize", &copy_from_and_resize);
  put("_local_scalar_dense", &local_scalar);
  put("record_stream", &record_stream);
  put("_efficientzerotensor", &efficient_zeros);
  put("is_set_to", &is_set_to);
  put("_lazy_clone", &lazy_clone);
  if (proxy_is_cpu()) {
    torch::Library& autograd = library("aten", c10::DispatchKey::AutogradCUDA);
    put("_use_cudnn_ctc_loss", &no_vendor_ctc);
    put("_use_cudnn_ctc_loss.Tensor", &no_vendor_ctc_tensor);
    put("_use_miopen_ctc_loss", &no_vendor_ctc);
    put("_use_miopen_ctc_loss.Tensor", &no_vendor_ctc_tensor);
    put("mm.dtype", &mm_dtype);
    put("mm.dtype_out", &mm_dtype_out);
    put("bmm.dtype", &bmm_dtype);
    put("bmm.dtype_out", &bmm_dtype_out);
    put("addmm.dtype", &addmm_dtype);
    put("addmm.dtype_out", &addmm_dtype_out);
    put("baddbmm.dtype", &baddbmm_dtype);
    put("baddbmm.dtype_out", &baddbmm_dtype_out);
    for (torch::Library* l : {&kernels, &autograd}) {
      l->impl("scaled_dot_product_attention", &attention);
      l->impl("dropout", &dropout);
      install_recurrent_cells(*l);
    }
    own.insert("_thnn_fused_lstm_cell");
    own.insert("_thnn_fused_gru_cell");
    own.insert("scaled_dot_product_attention");
    own.insert("dropout");
  }
  std::map<std::pair<std::string, c10::DispatchKey>, torch::Library*> opened;
  const LibraryOf library_of = [&](const std::string& name_space, c10::DispatchKey key) -> torch::Library& {
    torch::Library*& one = opened[{name_space, key}];
    if (!one) one = &library(name_space, key);
    return *one;
  };
  std::map<std::string, double> figures{{"shipped", 0}, {"composite", 0}, {"local", static_cast<double>(own.size())}};
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0)) continue;
    const auto handle = dispatcher.findSchema(name);
    if (!handle) continue;
    const std::string base = name.name.substr(6);
    const std::string full = name.overload_name.empty() ? base : base + "." + name.overload_name;
    if (own.count(full)) {
      if (full == "copy_") copy_operator = add_operator(*handle);
      continue;
    }
    switch (treatment_of(*handle, base, full)) {
      case Treatment::composite: figures["composite"]++; break;
      case Treatment::recompose:
        figures["composite"]++;
        kernels.impl(full.c_str(), composite_kernel());
        library_of("aten", c10::DispatchKey::AutogradCUDA).impl(full.c_str(), composite_kernel());
        break;
      case Treatment::host:
        figures["local"]++;
        kernels.impl(full.c_str(), host_kernel(c10::DispatchKey::CPU));
        break;
      case Treatment::refuse:
        kernels.impl(full.c_str(), refusing_kernel("this operator is not supported by the device proxy"));
        break;
      case Treatment::local: figures["local"]++; break;
      case Treatment::skip: break;
      case Treatment::ship:
        kernels.impl(full.c_str(), kernel_of(full, add_operator(*handle)));
        figures["shipped"]++;
    }
  }
  figures["families"] = install_families(library_of);
  figures["install_ms"] = static_cast<double>(monotonic_ns() - start) / 1e6;
  return figures;
}

}  // namespace singularity
