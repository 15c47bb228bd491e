"""Who gets which devices, when, and from whom: the policy of one cluster. Pure.

`engine.decide(state, event, now)` changes `state` (an `Allocation`) and says what is to be done;
`Allocation.due` says when it wants to be asked again although nothing happened. Every structure
here is kept up to date by what changes, so that an event costs the same on ten nodes and on a
thousand; see `pool` for how.
"""
