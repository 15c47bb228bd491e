// What ATen hands to the device because the tensor is on "cuda", and a cpu device cannot compute: half
// precision that CUDA adds up in single precision, and the choice of a vendor's method. A cpu device
// computes it in single precision. Everything else is shipped as it is.
#include <ATen/ATen.h>

#include "worker/src/calls/operators.h"
#include "worker/src/calls/ship.h"

namespace singularity {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

// Changes the arguments of a call to what a cpu device computes. Returns the dtype that the result is
// to be made of afterwards; Undefined: it is right as it comes.
using Widen = c10::ScalarType (*)(Stack& stack, size_t arguments);

constexpr auto kAsItComes = c10::ScalarType::Undefined;

// (self, dim, half_to_float): the result is single anyway.
c10::ScalarType widen_softmax(Stack& stack, size_t arguments) {
  IValue& half_to_float = torch::jit::peek(stack, 2, arguments);
  if (C10_LIKELY(!half_to_float.toBool())) return kAsItComes;
  IValue& self = torch::jit::peek(stack, 0, arguments);
  TORCH_CHECK(self.toTensor().scalar_type() == at::kHalf, "conversion is supported for Half type only");
  self = self.toTensor().to(at::kFloat);
  half_to_float = false;
  return kAsItComes;
}

// (grad_output, output, dim, input_dtype)
c10::ScalarType widen_softmax_backward(Stack& stack, size_t arguments) {
  IValue& input_dtype = torch::jit::peek(stack, 3, arguments);
  const auto wanted = static_cast<c10::ScalarType>(input_dtype.toInt());
  const auto given = torch::jit::peek(stack, 0, arguments).toTensor().scalar_type();
  if (C10_LIKELY(wanted == given || wanted != at::kHalf || given != at::kFloat)) return kAsItComes;
  input_dtype = static_cast<int64_t>(given);
  return wanted;
}

// (self, ...): MKL and PocketFFT have no half precision.
c10::ScalarType widen_fft(Stack& stack, size_t arguments) {
  IValue& self = torch::jit::peek(stack, 0, arguments);
  const auto dtype = self.toTensor().scalar_type();
  if (C10_LIKELY(dtype != at::kHalf && dtype != at::kComplexHalf)) return kAsItComes;
  self = self.toTensor().to(dtype == at::kHalf ? at::kFloat : at::kComplexFloat);
  return at::kHalf;
}

// (A, full_matrices, compute_uv, driver): the drivers of cuSOLVER are ways to the same result.
c10::ScalarType widen_svd(Stack& stack, size_t arguments) {
  IValue& driver = torch::jit::peek(stack, 3, arguments);
  if (C10_LIKELY(driver.isNone())) return kAsItComes;
  const std::string& name = driver.toStringRef();
  TORCH_CHECK(name == "gesvd" || name == "gesvdj" || name == "gesvda", "torch.linalg.svd: unknown svd driver ", name,
              " in svd_cusolver computation");
  driver = IValue();
  return kAsItComes;
}

// The result of the call in `dtype` or, if it is complex, in complex numbers of it: in the out= argument if
// there was one.
void narrow_result(Stack& stack, c10::ScalarType dtype, Tensor& out) {
  const Tensor wide = torch::jit::pop(stack).toTensor();
  const Tensor result = wide.to(wide.is_complex() ? c10::toComplexType(dtype) : dtype);
  if (out.defined()) {
    out.resize_(result.sizes()).copy_(result);
    stack.emplace_back(out);
  } else {
    stack.emplace_back(result);
  }
}

struct WidenedKernel final : c10::OperatorKernel {
  WidenedKernel(Operator* o, Widen w) : op(o), widen(w) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
    const auto dtype = widen(*stack, op->arguments);
    if (C10_LIKELY(dtype == kAsItComes)) return ship(*op, stack);
    Tensor out;
    if (op->has_out) {
      IValue& last = torch::jit::peek(*stack, op->arguments - 1, op->arguments);
      out = last.toTensor();
      last = at::empty({0}, out.options().dtype(out.is_complex() ? at::kComplexFloat : at::kFloat));
    }
    ship(*op, stack);
    narrow_result(*stack, dtype, out);
  }
  Operator* op;
  Widen widen;
};

}  // namespace

std::optional<torch::CppFunction> widened_kernel(const std::string& name, Operator* op) {
  static const std::map<std::string, Widen> kWidened = {
      {"_softmax", &widen_softmax}, {"_log_softmax", &widen_softmax},
      {"_softmax_backward_data", &widen_softmax_backward}, {"_log_softmax_backward_data", &widen_softmax_backward},
      {"_fft_r2c", &widen_fft}, {"_fft_c2r", &widen_fft}, {"_fft_c2c", &widen_fft},
      {"_linalg_svd", &widen_svd}};
  const auto found = kWidened.find(name.substr(0, name.find('.')));
  if (found == kWidened.end()) return std::nullopt;
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<WidenedKernel>(op, found->second));
}

}  // namespace singularity
