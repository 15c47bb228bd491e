"""The node agent with cpu devices whose proxies a driver can checkpoint: the test double in
DRIVER_LIBRARY."""

import os

from singularity_scheduler.agent import driver_parks
from singularity_scheduler.agent.app import main


def library(device_type: str) -> str:
    return os.environ["DRIVER_LIBRARY"]


driver_parks.library_of = library
main()
