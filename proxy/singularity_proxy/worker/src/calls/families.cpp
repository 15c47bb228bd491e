#include "families.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <set>

#include "worker/src/ring/channel.h"
#include "worker/src/tensors/device.h"
#include "worker/src/tensors/nested.h"
#include "ship.h"

namespace singularity {
namespace {

struct Family {
  c10::DispatchKey ours, host;
  const char* refusal;             // for what is neither shipped nor the same on every device
  std::set<std::string> shipped;   // base names: the host's code reads the memory of indices and values
  std::set<std::string> refused;   // the same, and there is no way to send it
};

// Which implementations are the same for every device: those that native_functions.yaml names once
// for the host's and CUDA's key.
const std::vector<Family>& families() {
  using Key = c10::DispatchKey;
  static const std::vector<Family> all = {
      {Key::SparseCUDA, Key::SparseCPU, "sparse tensors have no such operation on the proxied device; use .to_dense() first",
       {"add.out", "mul.out", "bmm", "bmm.out", "_sparse_sparse_matmul", "sspaddmm.out", "_sparse_sum_backward",
        "_sparse_softmax", "_sparse_softmax_backward_data", "_sparse_log_softmax", "_sparse_log_softmax_backward_data",
        "addmm", "addmm.out", "addmm_", "_coalesce", "hspmm", "hspmm.out", "index_select", "sparse_mask",
        "_sparse_mask_projection", "_to_dense", "_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc",
        "_to_sparse_bsr", "_to_sparse_bsc"},
       {}},
      {Key::SparseCsrCUDA, Key::SparseCsrCPU,
       "compressed sparse tensors have no such operation on the proxied device; use .to_dense() first",
       {"add.out", "addmv.out", "_sparse_csr_sum.dim_dtype", "_sparse_csr_prod.dim_dtype", "sparse_sampled_addmm",
        "sparse_sampled_addmm.out", "addmm", "addmm.out", "triangular_solve.X", "baddbmm.out",
        "bmm.out", "_spsolve", "sparse_mask", "_to_dense", "_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr",
        "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"},
       // Neither has CUDA.
       {"_sparse_mm_reduce_impl", "_sparse_mm_reduce_impl_backward"}},
      {Key::NestedTensorCUDA, Key::NestedTensorCPU,
       "this operation on nested tensors is not supported on the proxied device; use the jagged layout, or .unbind() first",
       {},
       {"_transform_bias_rescale_qkv", "sum.dim_IntList", "_nested_sum_backward"}},
      {Key::QuantizedCUDA, Key::QuantizedCPU,
       "quantized tensors are not supported on the proxied device; quantize on the host", {}, {"*"}},
  };
  return all;
}

struct HostKernel final : c10::OperatorKernel {
  explicit HostKernel(c10::DispatchKey k) : keys(k) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    int index = -1;  // results are made on the device of the call
    for (const c10::IValue& v : arguments) {
      if (v.isTensor() && v.toTensor().defined() && v.toTensor().is_cuda()) index = v.toTensor().get_device();
      else if (v.isDevice() && v.toDevice().is_cuda() && v.toDevice().has_index()) index = v.toDevice().index();
      if (index >= 0) break;
    }
    const OnDevice on(index);
    op.redispatchBoxed(keys, stack);
  }
  c10::DispatchKeySet keys;
};

struct RefusingKernel final : c10::OperatorKernel {
  explicit RefusingKernel(std::string text) : why(std::move(text)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(), ": ", why);
  }
  std::string why;
};

// Communication works on our tensors through copies; its kernels are registered for CUDA and generic.
bool is_communication(const std::string& name_space) {
  return name_space == "c10d" || name_space == "_c10d_functional" || name_space == "c10d_functional" ||
         name_space == "_c10d_functional_autograd";
}

}  // namespace

torch::CppFunction host_kernel(c10::DispatchKey host) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostKernel>(host));
}
torch::CppFunction refusing_kernel(const std::string& why) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RefusingKernel>(why));
}

int install_families(const LibraryOf& library_of) {
  auto& dispatcher = c10::Dispatcher::singleton();
  int count = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto handle = dispatcher.findSchema(name);
    const size_t colons = name.name.find("::");
    if (!handle || colons == std::string::npos) continue;
    const std::string name_space = name.name.substr(0, colons), base = name.name.substr(colons + 2);
    const std::string full = name.overload_name.empty() ? base : base + "." + name.overload_name;
    const bool aten = name_space == "aten";
    if (!aten && !is_communication(name_space) && handle->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) {
      library_of(name_space, c10::DispatchKey::CUDA)
          .impl(full.c_str(), refusing_kernel("this operator is not supported by the device proxy"));
      count++;
    }
    Operator* shipped = nullptr;
    for (const Family& family : families()) {
      const bool host = handle->hasKernelForDispatchKey(family.host);
      if (!host && !handle->hasKernelForDispatchKey(family.ours)) continue;
      torch::Library& library = library_of(name_space, family.ours);
      count++;
      if (aten && family.ours == c10::DispatchKey::NestedTensorCUDA && install_nested_kernel(library, full)) continue;
      if (aten && family.shipped.count(full)) {
        if (!shipped) shipped = add_operator(*handle);
        library.impl(full.c_str(), shipped_kernel(shipped));
      } else if (aten && host && !family.refused.count(full) && !family.refused.count("*")) {
        library.impl(full.c_str(), host_kernel(family.host));
      } else {
        library.impl(full.c_str(), refusing_kernel(family.refusal));
      }
    }
  }
  return count;
}

}  // namespace singularity
