// Decides who may talk to the torch.distributed stores of this process; see worker/distributed/store_guard.py.
#pragma once

namespace singularity::store_guard {

// Watches the connections that are accepted at a listening TCP socket whose filter lets no data pass: takes the filter
// off where the process at the other end is of our own user, and disconnects others. A thread does it that needs no
// GIL: torch connects to its own store while it holds that. The socket is watched until it is closed. Throws
// std::system_error when there is no such socket.
void watch(int listener);

// Whether all who have connected so far were let in or not, and could have been heard since.
bool is_settled();

// In the child of a fork, which has no such thread.
void forget();

}  // namespace singularity::store_guard
