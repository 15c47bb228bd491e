"""Commands about runs and groups of runs."""
