"""The node agent with cpu devices whose proxies a driver can checkpoint: the test double in
DRIVER_LIBRARY."""

import os

from singularity_scheduler.agent.app import main
from singularity_scheduler.agent.devices import driver_parks


def library(device_type: str) -> str:
    return os.environ["DRIVER_LIBRARY"]


driver_parks.library_of = library
main()
