#pragma once

#include <pybind11/pybind11.h>

namespace singularity {

// Puts ProcessGroupNCCL into `torch._C._distributed_c10d`. Called once, when that module is complete.
void bind_process_group(pybind11::module_& c10d);

}  // namespace singularity
