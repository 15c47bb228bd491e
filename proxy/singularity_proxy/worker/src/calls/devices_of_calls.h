// On which devices the tensors of a call may be, and how CUDA says that they are not.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace singularity {

// The name of the operator, or of the one that it does in place: "normal" of "aten::normal_".
std::string functional_name(const c10::OperatorHandle& handle);

// True for an operator whose tensors TensorIterator compares, false for one whose generated wrapper
// does: the two texts differ, and only the first takes 0-dim host tensors as numbers.
bool checked_by_iterator(const c10::OperatorHandle& handle);

// True for an operator that TensorIterator does not compare the out= argument of: it makes the result of its
// own size, and says of which device that must be.
bool sizes_its_outputs(const c10::OperatorHandle& handle);

// The name of the generated wrapper, as CUDA's error text has it: "wrapper_CUDA_addmm".
std::string wrapper_name(const c10::OperatorHandle& handle);

// Whether host tensors are an operator's argument on CUDA as well: index lists, lengths, lists of
// numbers. `op` with namespace and without overload.
bool may_stay_on_host(const std::string& op, const std::string& argument);

}  // namespace singularity
