// The Python module `_singularity_native`: worker and device half in one library, because both read
// the same wire and a torch build needs only one binary.
#include "native/bindings.h"

namespace singularity {

// A sanitizer's build is of the device half alone.
__attribute__((weak)) void bind_worker(pybind11::module_&) {}

}  // namespace singularity

PYBIND11_MODULE(_singularity_native, m) {
  m.doc() = "Native half of the data plane; loaded by singularity_proxy.build.load().";
  singularity::bind_worker(m);
  singularity::bind_device(m);
}
