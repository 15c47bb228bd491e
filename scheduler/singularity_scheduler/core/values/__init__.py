"""Plain frozen values: sessions, events, actions, parameters, the table of states. Pure."""
