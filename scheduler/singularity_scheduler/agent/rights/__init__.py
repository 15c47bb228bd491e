"""Who may do what on this node, and until when: uids, owners, leases, the leader."""
