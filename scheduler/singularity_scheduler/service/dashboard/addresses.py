"""Which page is at which address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from singularity_scheduler.service.api.services import Services

from . import PLACE, acts, live, usage_views, views
from .page import Asset, Callback, Dashboard, Missing

STATIC = Path(__file__).with_name("static")


def routes(services: Services, prefix: str) -> list[tuple[Any, ...]]:
    """The addresses of the pages; `prefix`: of the service, ending in a slash."""
    base = prefix + PLACE
    about = {"dashboard": Dashboard(services, base, prefix)}
    name = r"nodes/(?P<name>[^/]+)"
    pages: dict[str, Any] = {
        "": views.Home,
        "map": views.ShowMap,
        name: views.ShowNode,
        rf"{name}/(?P<verb>[a-z]+)": acts.ChangeNode,
        "sessions": views.ShowSessions,
        r"sessions/(?P<session>[^/]+)/reopen": acts.Reopen,
        r"sessions/(?P<session>[^/]+)/(?P<verb>[a-z]+)": acts.ChangeSession,
        "queue": views.ShowQueue,
        "day": views.ShowDay,
        "usage": usage_views.ShowUsage,
        r"usage\.csv": usage_views.DownloadUsage,
        "quotas": views.ShowQuotas,
        "log": views.ShowLog,
        "metrics": views.ShowMetrics,
        "live": live.Live,
        ".*": Missing,
    }
    return [
        (f"{prefix}oauth_callback", Callback, about),
        (f"{base}static/(.+)", Asset, {**about, "path": str(STATIC)}),
        *((base + path, handler, about) for path, handler in pages.items()),
    ]
