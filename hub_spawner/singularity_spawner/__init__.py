"""JupyterHub side: Spawner mixin and class, Hub configuration helper, the embedded platform."""

from .hubconfig import configure
from .mixin import SingularitySpawnerMixin

__all__ = ["SingularitySpawnerMixin", "configure"]
