"""A machine's membership in a fleet: how it joins, who it is, and how it keeps connected."""
