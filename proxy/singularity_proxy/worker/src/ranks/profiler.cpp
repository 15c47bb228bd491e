#include "profiler.h"

#include <kineto/libkineto.h>

// Not in every build of torch: the addresses are null then.
extern "C" __attribute__((weak)) void libkineto_init(bool cpuOnly, bool logOnError);
namespace libkineto {
__attribute__((weak)) LibkinetoApi& api();
}

namespace singularity {

void start_profiler_for_host() {
  if (&libkineto_init == nullptr || libkineto::api().isProfilerRegistered()) return;
  libkineto_init(true, true);
  libkineto::api().suppressLogMessages();  // as torch does after starting it
}

}  // namespace singularity
