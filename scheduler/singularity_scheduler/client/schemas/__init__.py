"""Schemas of the events (jupyter_events) that the service and the JupyterLab extension emit."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

SESSION_STATE = "urn:jupyter-singularity:event:session-state:v1"
SESSION_REQUEST = "urn:jupyter-singularity:event:session-request:v1"
NODE_STATE = "urn:jupyter-singularity:event:node-state:v1"
ADMIN_CHANGE = "urn:jupyter-singularity:event:admin-change:v1"

SCHEMAS = {
    SESSION_STATE: _HERE / "session-state.v1.yaml",
    SESSION_REQUEST: _HERE / "session-request.v1.yaml",
    NODE_STATE: _HERE / "node-state.v1.yaml",
    ADMIN_CHANGE: _HERE / "admin-change.v1.yaml",
}
"""$id -> file."""
