// torch's profiler (Kineto) in the worker.
#pragma once

namespace singularity {

// Starts Kineto for the host alone, if nobody started it before. torch would start it for CUDA where
// it was built for it, which opens the driver. Called before the first profile of a process.
void start_profiler_for_host();

}  // namespace singularity
