// The device proxy's rings, their journal and their turns, as one translation unit:
// torch's headers take longer to compile than these files.
#include "device/src/recovery/files.cpp"
#include "device/src/ring/guard.cpp"
#include "device/src/ring/heart.cpp"
#include "device/src/recovery/journal.cpp"
#include "device/src/ring/ring_barrier.cpp"
#include "device/src/ring/ring_collectives.cpp"
#include "device/src/ring/ring_lifecycle.cpp"
#include "device/src/ring/ring_server.cpp"
#include "device/src/ring/ring_squash.cpp"
#include "device/src/ring/slicer.cpp"
#include "device/src/ring/turn.cpp"
