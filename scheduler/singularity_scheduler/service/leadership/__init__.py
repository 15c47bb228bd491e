"""Who leads among several services, and the leases that the leader renews."""
