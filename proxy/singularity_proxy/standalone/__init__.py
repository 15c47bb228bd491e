"""One session on this machine without a platform: ring files, a doorbell and device proxies.

    python -m singularity_proxy.standalone train.py --lr 0.1
    python -m singularity_proxy.standalone --devices 4 --physical 2 --nproc 4 train_ddp.py

runs an unchanged script under the device proxy with nothing installed but torch. Benchmarks, the
proxy's own tests and a first look on a GPU machine use it; in the product the node agent does this
work, with leases, users and many sessions.
"""

from .session import Standalone

__all__ = ["Standalone"]
