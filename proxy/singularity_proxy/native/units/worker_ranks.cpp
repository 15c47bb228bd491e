// The worker's ring, and its collectives, as one translation unit:
// torch's headers take longer to compile than these files.
#include "worker/src/channel.cpp"
#include "worker/src/collectives.cpp"
#include "worker/src/devices_of_calls.cpp"
#include "worker/src/interrupts.cpp"
#include "worker/src/membership.cpp"
#include "worker/src/store_guard.cpp"
#include "worker/src/timing.cpp"
#include "worker/src/visible.cpp"
#include "worker/src/work.cpp"
