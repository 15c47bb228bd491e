// Squashing: while the next records of several rings are the same call on the same bytes, one of them
// executes it and the others take the results.
//
//   from a sync point on:  what concerns one ring only    that ring executes it
//                          calls of equal identity        the first ring executes, the others follow
//                          anything else, or nothing for  the end: back to one ring after the other
//                          a while
//
// Only the order of things is here; `Ring` (a RingServer, in tests something smaller) has the rest:
//   Ready ready()                     what its next record is; nothing is changed by looking
//   Identity call()                   of a Ready::call
//   bool asks()                       it wants a reply
//   void alone()                      executes its next record
//   void own(rings)                   what the call writes belongs to these rings only
//   bool lead()                       executes the call; false: it failed
//   void follow(Ring& leader, bool)   takes what it did, or its failure
#pragma once

#include <cstdint>
#include <vector>

#include "identity.h"
#include "wire/ring.h"

namespace singularity {

enum class Ready {
  nothing,  // its queue is empty
  alone,
  call,
  end,      // it waits for others, is asked to stop, or has a record that may take long
};

struct Squashed {
  uint64_t executed = 0, skipped = 0;  // calls: one for all rings, and those of the others
};

// Returns when the rings' ways part. `patience_ns`: how long an empty queue is waited for.
template <class Ring>
Squashed run_in_lockstep(const std::vector<Ring*>& rings, uint64_t patience_ns) {
  Squashed done;
  uint64_t empty_since = 0;
  for (;;) {
    bool empty = false;
    for (Ring* ring : rings) {
      Ready now;
      while ((now = ring->ready()) == Ready::alone) ring->alone();
      if (now == Ready::end) return done;
      empty |= now == Ready::nothing;
    }
    if (empty) {
      const uint64_t now = monotonic_ns();
      if (!empty_since) empty_since = now;
      if (now - empty_since > patience_ns) return done;
      sched_yield();
      continue;
    }
    empty_since = 0;
    const Identity call = rings.front()->call();
    if (!call.known()) return done;
    Ring* leader = rings.front();
    for (Ring* ring : rings) {
      if (ring->call() != call) return done;
      if (ring->asks() && !leader->asks()) leader = ring;  // its reply is everybody's
    }
    leader->own(rings);
    const bool well = leader->lead();
    done.executed++;
    for (Ring* ring : rings)
      if (ring != leader) {
        ring->follow(*leader, well);
        done.skipped++;
      }
    if (!well) return done;
  }
}

}  // namespace singularity
