"""The device proxy: the process that owns one physical device for one session.

`python -m singularity_proxy.device` is started by the node agent and driven over a unix socket
(`control`); the rings of the session's workers are served by native threads (`src/`), which need no
Python while they run.
"""
