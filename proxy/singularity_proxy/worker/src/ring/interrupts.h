// Ctrl-C while a thread waits for the device.
//
// Python runs signal handlers in its main thread only. When that thread waits itself it looks at each
// turn of its wait. During `backward()` it does not: it sits in the autograd engine until the engine's
// own threads are done, and it is one of those that waits for the device. So such a thread, while it
// waits and the main thread is in `backward()`, catches SIGINT and raises KeyboardInterrupt itself; the
// engine hands it to the main thread, as it does with every error.
#pragma once

#include <cstdint>

namespace singularity {

void set_main_thread(uint64_t ident);  // threading.main_thread().ident
// At each turn of a wait, in any thread; throws what a signal handler raised.
void check_signals();
// When the wait is over.
void end_of_wait();

}  // namespace singularity
