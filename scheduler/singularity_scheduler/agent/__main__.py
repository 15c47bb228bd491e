"""`python -m singularity_scheduler.agent`; see `app`."""

from .app import main

main()
