"""The Hub configuration of the embedded platform, as a function of its `Settings`.

The configuration file below the state folder has three lines: it calls `configure_platform`. So a
newer version of the package brings its own configuration, and no secret is in the file.
"""

from __future__ import annotations

from pathlib import Path

from traitlets.config import Config

from singularity_spawner.homes import sqlite_url
from singularity_spawner.hubconfig import configure

from .settings import MARK, Settings, StateFolder

CONFIG_TEXT = """\
# Written anew at each start of the platform; changes here are lost.
from singularity_spawner.platform.config import configure_platform

configure_platform(get_config(), {folder!r})  # noqa: F821
"""

ADMIN_USER = "admin"
PLATFORM_ACCOUNT = "singularity-platform"
_PLATFORM_SCOPES = [
    "admin:users",
    "admin:servers",
    "access:servers",
    "tokens",
    "list:users",
    "read:hub",
    "access:services!service=singularity",
    "custom:singularity:admin",
    "proxy",
]


def configure_platform(c: Config, folder: str) -> None:
    """Fill `c` from the settings in the state folder `folder`; run by JupyterHub at its start."""
    state = StateFolder(Path(folder))
    settings = Settings.load(state)
    if settings is None:
        raise FileNotFoundError(f"{state.settings} is missing or unreadable")

    hub = c.JupyterHub
    hub.bind_url = settings.url
    hub.hub_bind_url = settings.hub_url
    hub.db_url = sqlite_url(state.hub_db)
    hub.cookie_secret = bytes.fromhex(_hex(state.secret("cookie_secret", 64)))
    hub.pid_file = str(state.path / "jupyterhub.pid")
    # Servers outlive a restart of the Hub; whoever ends the platform ends them (see `shutdown`).
    hub.cleanup_servers = False
    hub.allow_named_servers = True
    hub.services = [
        {
            "name": PLATFORM_ACCOUNT,
            "api_token": state.secret("platform_token", 48),
            "display": False,
        }
    ]
    hub.load_roles = [
        {"name": PLATFORM_ACCOUNT, "scopes": _PLATFORM_SCOPES, "services": [PLATFORM_ACCOUNT]}
    ]

    proxy = c.ConfigurableHTTPProxy
    # The platform keeps the proxy running, so that pages keep their servers while the Hub is away.
    proxy.should_start = False
    proxy.api_url = settings.proxy_api_url
    proxy.auth_token = state.secret("proxy_token", 48)

    # Any name may log in with the shared password: this is one person's machine or a trial.
    hub.authenticator_class = "shared-password"
    c.SharedPasswordAuthenticator.user_password = state.secret("password", 16)
    c.SharedPasswordAuthenticator.admin_password = state.secret("admin_password", 40)
    c.Authenticator.admin_users = {ADMIN_USER}
    c.Authenticator.allow_all = True

    spawner = c.Spawner
    spawner.default_url = "/lab"
    spawner.http_timeout = 60
    spawner.environment = {
        MARK: settings.instance,
        "JUPYTER_PREFER_ENV_PATH": "1",
        "JUPYTER_CONFIG_PATH": str(state.server_config),
    }
    c.SingularitySpawner.homes_dir = str(state.homes)
    for name, value in settings.spawn_defaults.items():
        c.SingularitySpawnerMixin[name] = value

    configure(
        c,
        service_url=settings.service_url,
        service_token=state.secret("service_token", 48),
        spawner_token=state.secret("spawner_token", 48),
    )


def _hex(text: str) -> str:
    return text.encode().hex()[:64]
