// The dispatch keys beside CUDA that a tensor on "cuda" can have: sparse, nested, quantized.
#pragma once

#include <torch/library.h>

#include <functional>
#include <string>

namespace singularity {

using LibraryOf = std::function<torch::Library&(const std::string& name_space, c10::DispatchKey key)>;

// Registers a kernel of ours for every operator that has one for the host's or CUDA's form of these
// keys, so that no code which would touch device memory in this process can be reached. Also stands
// in for CUDA kernels of other libraries than ATen. Returns how many.
int install_families(const LibraryOf& library_of);

// A kernel that runs the host's implementation in the worker: for those that handle metadata and call
// other operators, and are therefore the same for every device.
torch::CppFunction host_kernel(c10::DispatchKey host);
// A kernel that raises an error: "<operator>: <why>".
torch::CppFunction refusing_kernel(const std::string& why);

}  // namespace singularity
