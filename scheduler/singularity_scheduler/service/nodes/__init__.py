"""Between the service and its node agents: commands, reports, transfers."""
