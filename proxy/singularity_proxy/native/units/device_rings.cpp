// The device proxy's rings, their journal and their turns, as one translation unit:
// torch's headers take longer to compile than these files.
#include "device/src/files.cpp"
#include "device/src/guard.cpp"
#include "device/src/heart.cpp"
#include "device/src/journal.cpp"
#include "device/src/ring_barrier.cpp"
#include "device/src/ring_collectives.cpp"
#include "device/src/ring_lifecycle.cpp"
#include "device/src/ring_server.cpp"
#include "device/src/ring_squash.cpp"
#include "device/src/slicer.cpp"
#include "device/src/turn.cpp"
