"""The pure heart of the scheduler: states, policy, placement. No I/O, no clock, no randomness.

`decide(state, event, now)` says what changes and what to do; `ClusterState.apply` makes it so.
The live service and the simulator run the same code. Nothing here makes a sentence: `text`
makes what people read of the codes and arguments that leave the core.
"""
