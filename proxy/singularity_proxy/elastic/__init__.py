"""Elastic sessions: V virtual devices on P physical ones, and P changes while ranks run.

`placement` says which virtual devices share a physical one, `coordinator` stops all ranks at one
place (the barrier), `ranks` starts several processes of one program. Nothing here knows of leases
or nodes: the node agent and `standalone` use it alike.
"""
