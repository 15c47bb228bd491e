// Operators of nested tensors (strided layout) whose kernels would read device memory in this process.
#pragma once

#include <torch/library.h>

#include <string>

namespace singularity {

// Registers a kernel of ours for the operator `name`; false: there is none.
bool install_nested_kernel(torch::Library& library, const std::string& name);

}  // namespace singularity
