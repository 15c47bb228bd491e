// Kernels of PyTorch that believe what only PyTorch's own functions get right. User code can call them
// too, and with other arguments they write over memory that is not theirs.
#pragma once

namespace singularity {

// From here on such kernels refuse such arguments in this process, whoever calls them: a record, a
// captured graph or compiled code. Called once, when torch has all of its kernels.
void check_arguments_of_kernels();

}  // namespace singularity
