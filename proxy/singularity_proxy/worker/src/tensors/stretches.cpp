#include "stretches.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "storage.h"

namespace singularity {

using at::Tensor;

namespace {

bool is_contiguous(const Tensor& tensor) { return tensor.is_contiguous(tensor.suggest_memory_format()); }

bool is_float8(c10::ScalarType type) {
  switch (type) {
    case at::kFloat8_e5m2:
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2fnuz:
    case at::kFloat8_e4m3fnuz: return true;
    default: return false;
  }
}

// The dtypes that NCCL has, complex ones as pairs.
c10::ScalarType travelling(c10::ScalarType type) {
  const c10::ScalarType real = c10::isComplexType(type) ? c10::toRealValueType(type) : type;
  switch (real) {
    case at::kChar:
    case at::kByte:
    case at::kFloat:
    case at::kDouble:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBool:
    case at::kBFloat16: return real;
    default: break;
  }
  TORCH_CHECK_TYPE(is_float8(real), "Input tensor data type is not supported for NCCL process group: ", type);
  return real;
}

}  // namespace

const Tensor& only(const std::vector<Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, "Expecting one tensor only but got multiple. You are probably using multiple devices "
              "under one thread. The support for such usage has been deprecated.");
  return tensors[0];
}

void check_dense(const Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_cuda() && tensor.layout() == at::kStrided, "Tensors must be CUDA and dense");
}

void check_dense_contiguous(const Tensor& tensor) {
  check_dense(tensor);
  TORCH_CHECK_VALUE(is_contiguous(tensor), "Tensors must be contiguous");
}

void check_same_dtype(const Tensor& input, const Tensor& output) {
  TORCH_CHECK_TYPE(input.scalar_type() == output.scalar_type(), "output tensor must have the same type as input tensor");
}

Stretch stretch_of(const Tensor& tensor, int64_t start, int64_t count) {
  TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(),
              "collectives do not take a lazily conjugated or negated tensor: use resolve_conj() or resolve_neg()");
  const c10::ScalarType type = travelling(tensor.scalar_type());
  const int64_t times = tensor.is_complex() ? 2 : 1;
  return {tensor, type, (tensor.storage_offset() + start) * times, count * times};
}

Stretch whole(const Tensor& tensor) { return stretch_of(tensor, 0, tensor.numel()); }

Stretches equal_parts(const Tensor& tensor, int parts) {
  const int64_t count = tensor.numel() / parts;
  Stretches stretches;
  for (int i = 0; i < parts; i++) stretches.push_back(stretch_of(tensor, i * count, count));
  return stretches;
}

Stretches split_parts(const Tensor& tensor, const std::vector<int64_t>& splits, int parts) {
  c10d::checkSplitSizes(splits, tensor, parts);
  if (splits.empty()) return equal_parts(tensor, parts);
  const int64_t row = tensor.size(0) ? tensor.numel() / tensor.size(0) : 0;
  Stretches stretches;
  int64_t start = 0;
  for (const int64_t rows : splits) {
    TORCH_CHECK_VALUE(rows >= 0, "Split sizes must not be negative");
    stretches.push_back(stretch_of(tensor, start, rows * row));
    start += rows * row;
  }
  return stretches;
}

void as_numbers(Stretches& stretches) {
  for (Stretch& one : stretches)
    if (one.dtype == at::kBool) one.dtype = at::kByte;
}

Fold fold_of(const c10d::ReduceOp& op, const char* what, std::vector<Tensor>& tensors) {
  using Op = c10d::ReduceOp;
  const Op::RedOpType kind = op.op_;
  bool booleans = false, integers = true;
  for (const Tensor& t : tensors) {
    TORCH_CHECK(!t.is_complex() || c10d::isComplexViewAsRealAllowed(op), what, " does not support this ReduceOp on complex tensors");
    TORCH_CHECK(!is_float8(t.scalar_type()), "Float8 dtypes are not currently supported for NCCL reductions");
    booleans |= t.scalar_type() == at::kBool;
    integers &= c10::isIntegralType(t.scalar_type(), true);
  }
  const auto bits = [&](Reduction reduction) {
    TORCH_CHECK_VALUE(integers, what, " does not support a bitwise ReduceOp on ", tensors.empty() ? at::kFloat : tensors[0].scalar_type(),
                      " tensors");
    return Fold{reduction};
  };
  switch (kind) {
    case Op::SUM: return {booleans ? Reduction::max : Reduction::sum};  // or, as NCCL has it
    case Op::AVG:
      TORCH_CHECK_TYPE(!booleans, "Cannot use ReduceOp.AVG with boolean inputs");
      return {Reduction::avg};
    case Op::PRODUCT: return {booleans ? Reduction::min : Reduction::product};
    case Op::MIN: return {Reduction::min};
    case Op::MAX: return {Reduction::max};
    case Op::BAND: return bits(Reduction::band);
    case Op::BOR: return bits(Reduction::bor);
    case Op::BXOR: return bits(Reduction::bxor);
    case Op::PREMUL_SUM: break;
    default: TORCH_CHECK_VALUE(false, what, ": unknown ReduceOp ", int{kind});
  }
  TORCH_CHECK_TYPE(!booleans, "Cannot use ReduceOp.PREMUL_SUM with boolean inputs");
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor, what, ": a ReduceOp.PREMUL_SUM without a factor");
  if (!factor->tensor_factor.defined()) return {Reduction::premul_sum, factor->double_factor};
  for (Tensor& t : tensors) {  // not read here: that would wait for the device
    TORCH_CHECK_VALUE(factor->tensor_factor.device() == t.device(), "PREMUL_SUM: the factor must be on ", t.device());
    t = at::mul(t.detach(), factor->tensor_factor.detach().reshape({}).to(t.scalar_type()));
  }
  return {Reduction::sum};
}

}  // namespace singularity
