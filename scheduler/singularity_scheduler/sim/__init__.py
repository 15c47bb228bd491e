"""The simulator: replays workload traces through the pure core that the live service runs.

May import `singularity_scheduler.core` and the typed errors; nothing of the service, the agents or
the clients.
"""
