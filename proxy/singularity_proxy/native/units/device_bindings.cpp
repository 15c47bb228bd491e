// What of the device half speaks to Python, and the Python module, as one translation unit: torch's
// headers for that take longer to compile than all others.
#include "device/src/exec/bindings.cpp"
#include "device/src/exec/graphs.cpp"
#include "native/module.cpp"
