// The worker's ring, and its collectives, as one translation unit:
// torch's headers take longer to compile than these files.
#include "worker/src/ring/channel.cpp"
#include "worker/src/ranks/collectives.cpp"
#include "worker/src/calls/devices_of_calls.cpp"
#include "worker/src/ring/interrupts.cpp"
#include "worker/src/ranks/membership.cpp"
#include "worker/src/ranks/store_guard.cpp"
#include "worker/src/ring/timing.cpp"
#include "worker/src/ring/visible.cpp"
#include "worker/src/ranks/work.cpp"
