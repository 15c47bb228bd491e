"""The pure heart of the scheduler: states, policy, placement. No I/O, no clock, no randomness.

`decide(state, event, now)` says what changes and what to do; `ClusterState.apply` makes it so.
The live service and the simulator run the same code.
"""
