// The two halves of the native module. Each adds its functions to the one Python module.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace singularity {

void bind_worker(pybind11::module_& m);
void bind_device(pybind11::module_& m);

}  // namespace singularity
