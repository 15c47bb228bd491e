"""The node agent with `bridge_double.py` as the bridges of its gangs."""

import os
from pathlib import Path

from singularity_scheduler.agent import bridges
from singularity_scheduler.agent.app import main

bridges.MODULE = "support.bridge_double"
os.environ["PYTHONPATH"] = f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}"
main()
