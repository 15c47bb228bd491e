// The worker's Python bindings, as one translation unit:
// torch's headers take longer to compile than these files.
#include "worker/src/ranks/bindings.cpp"
#include "worker/src/ranks/collectives_bindings.cpp"
