"""One call that adds Singularity to any ``jupyterhub_config.py``.

    # jupyterhub_config.py
    from singularity_spawner import configure

    c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"    # or none: the embedded Spawner
    c.Authenticator.admin_users = {"ada"}
    ...
    configure(c, state_dir="/srv/singularity", devices=2)     # last, so that it can merge

What it adds, next to what is there already and never instead of it:

* the service ``singularity`` (scheduler, REST API, event stream, and the dashboard, which the Hub's
  pages link to) on a loopback port, started by the Hub unless it has a token of yours, and the
  service account ``singularity-spawner`` with which the Spawner talks to it;
* the custom scopes ``custom:singularity:use`` and ``custom:singularity:admin``;
* for the roles ``user`` and ``server``: access to the service and the use scope; for the Hub's
  admins: the admin scope;
* the Spawner class: `SingularitySpawner` when none was chosen, else a class that puts
  `SingularitySpawnerMixin` in front of the chosen one;
* with `cull_idle_s` or `cull_max_age_s`: the service ``singularity-culler``, which stops idle or
  old servers and suspends their notebooks.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module, util
from importlib.metadata import entry_points
from typing import Any

from traitlets.config import Config, LazyConfigValue

from .mixin import ADMIN_SCOPE, SERVER_SCOPES, SERVICE_NAME, USE_SCOPE, SingularitySpawnerMixin

SPAWNER_ACCOUNT = "singularity-spawner"
CULLER = "singularity-culler"
ACCESS_SCOPE = f"access:services!service={SERVICE_NAME}"
DEFAULT_SERVICE_URL = "http://127.0.0.1:8765"

NEVER_S = 100 * 365 * 86400
"""A time limit that no server reaches: the culler has no word for none."""

_CULLER_SCOPES = (
    *("list:users", "read:users:activity", "read:servers", "delete:servers"),
    *(ACCESS_SCOPE, ADMIN_SCOPE),
)

_BUILT_IN_ROLES: Mapping[str, Sequence[str]] = {
    "user": ("self",),
    "server": ("users:activity!user", "access:servers!server"),
}
"""What the Hub gives these roles when the configuration does not name them."""


def configure(
    c: Config,
    *,
    state_dir: str | None = None,
    devices: int | None = None,
    service_url: str = DEFAULT_SERVICE_URL,
    service_args: Sequence[str] = (),
    service_environment: Mapping[str, str] | None = None,
    server_api_url: str = "",
    service_token: str | None = None,
    spawner_token: str | None = None,
    admin_users: Collection[str] = (),
    cull_idle_s: int = 0,
    cull_max_age_s: int = 0,
    cull_every_s: int = 0,
) -> None:
    """Add service, scopes, roles and Spawner class to the Hub configuration `c`.

    Call it once, after your own settings.

    `state_dir`: folder for the service's ledger and checkpoints (None: the service's default).
    `devices`: number of embedded ``cpu`` devices (None: what the machine has).
    `service_url`: where the service listens, scheme, loopback address and port, no path.
    `service_args`: more command-line arguments of the service, such as
    ``["--LocalFleet.cpu_capacity=8GiB"]``; `service_environment`: more environment for it.
    `service_token`: the Hub does not start the service, which somebody else keeps running with this
    token: systemd, or ``jupyter singularity up`` (None: the Hub starts it). Then `state_dir`,
    `devices`, `service_args` and `service_environment` are said where it is started.
    `server_api_url`: the service's URL as single-user servers reach it, when that differs.
    `spawner_token`: token of the Spawner's service account (None: a new one at each Hub start).
    `admin_users`: users with ``custom:singularity:admin`` besides the Hub's admins.
    `cull_idle_s`: stop servers that were inactive for so many seconds and have no notebook in the
    middle of a cell; `cull_max_age_s`: stop those that are older, whatever they do; 0: do not.
    `cull_every_s`: seconds between two looks (0: half of the smaller one). Notebooks of what is
    stopped are suspended. Needs the package jupyterhub-idle-culler.

    Raises `ValueError` with a sentence when the configuration has another service of our name, the
    culler is wanted and not installed, or settings of a service come with `service_token`.
    """
    if service_token and any((state_dir, devices, service_args, service_environment)):
        raise ValueError(
            "with service_token somebody else starts the scheduler service, so state_dir, devices, "
            "service_args and service_environment belong to its command line: leave them out here"
        )
    services = _materialize(c.JupyterHub, "services", [])
    if any(service.get("name") in (SERVICE_NAME, SPAWNER_ACCOUNT, CULLER) for service in services):
        raise ValueError(
            f"c.JupyterHub.services already has a service named {SERVICE_NAME!r}: call "
            "singularity_spawner.configure once, or remove that service"
        )
    token = spawner_token or secrets.token_hex(32)
    base = service_url.rstrip("/")
    hub_prefix = str(_setting(c.JupyterHub, "base_url", "/"))
    path = f"{hub_prefix.rstrip('/')}/services/{SERVICE_NAME}/"

    started: dict[str, Any] = (
        {"api_token": service_token}
        if service_token
        else {
            "command": service_command(state_dir, devices, service_args),
            "environment": dict(service_environment or {}),
        }
    )
    services.append(
        {
            "name": SERVICE_NAME,
            "url": base,
            **started,
            "oauth_client_allowed_scopes": [USE_SCOPE, ADMIN_SCOPE],
            "oauth_no_confirm": True,
            "display": True,  # in the Hub's navigation: the way to the dashboard
        }
    )
    services.append({"name": SPAWNER_ACCOUNT, "api_token": token, "display": False})

    scopes = _materialize(c.JupyterHub, "custom_scopes", {})
    scopes.setdefault(
        USE_SCOPE, {"description": "Run own sessions under Singularity, see and control them"}
    )
    scopes.setdefault(
        ADMIN_SCOPE,
        {
            "description": "See and control everybody's Singularity sessions",
            "subscopes": [USE_SCOPE],
        },
    )

    roles = _materialize(c.JupyterHub, "load_roles", [])
    _grant(roles, "user", [ACCESS_SCOPE, USE_SCOPE])
    _grant(roles, "server", [ACCESS_SCOPE, USE_SCOPE])
    _grant(
        roles,
        f"{SERVICE_NAME}-service",
        ["list:users", "read:users:activity", "read:servers"],
        services=[SERVICE_NAME],
    )
    _grant(roles, SPAWNER_ACCOUNT, [ACCESS_SCOPE, ADMIN_SCOPE], services=[SPAWNER_ACCOUNT])
    if cull_idle_s or cull_max_age_s:
        services.append(culler_service(base + path, cull_idle_s, cull_max_age_s, cull_every_s))
        _grant(roles, CULLER, _CULLER_SCOPES, services=[CULLER])
    admins = {*admin_users, *_set_of(c.Authenticator, "admin_users")}
    _grant(roles, f"{SERVICE_NAME}-admin", [ACCESS_SCOPE, ADMIN_SCOPE], users=sorted(admins))

    c.JupyterHub.spawner_class = spawner_class(_setting(c.JupyterHub, "spawner_class", None))
    settings = c.SingularitySpawnerMixin
    settings.service_url = base + path
    settings.service_token = token
    if cull_max_age_s:
        settings.max_age_s = cull_max_age_s
    if server_api_url:
        settings.server_api_url = server_api_url
    for section in ("Spawner", "SingularitySpawnerMixin"):
        requested = _setting(c[section], "server_token_scopes", None)
        if isinstance(requested, list):
            requested.extend(scope for scope in SERVER_SCOPES if scope not in requested)


def service_command(
    state_dir: str | None, devices: int | None, extra: Sequence[str] = ()
) -> list[str]:
    """The command line of the service, run by this interpreter."""
    command = [sys.executable, "-m", "singularity_scheduler.service"]
    if state_dir is not None:
        command.append(f"--SchedulerApp.state_dir={state_dir}")
    if devices is not None:
        command.append(f"--LocalFleet.cpu_devices={devices}")
    return [*command, *extra]


def service_variables(service_url: str, token: str, hub_api_url: str) -> dict[str, str]:
    """What a service that the Hub does not start needs in its environment: where it listens, the
    `service_token` of `configure`, and the Hub's REST API."""
    return {
        "JUPYTERHUB_SERVICE_URL": service_url,
        "JUPYTERHUB_API_TOKEN": token,
        "JUPYTERHUB_API_URL": hub_api_url,
    }


def culler_service(url: str, idle_s: int, max_age_s: int, every_s: int = 0) -> dict[str, Any]:
    """The entry of ``c.JupyterHub.services`` that culls; `url`: of the scheduler service."""
    if util.find_spec("jupyterhub_idle_culler") is None:
        raise ValueError(
            "cull_idle_s and cull_max_age_s need the package jupyterhub-idle-culler (2.0 or newer) "
            "where the Hub runs: install it, or leave both out"
        )
    every_s = every_s or max(1, min(s for s in (idle_s, max_age_s) if s) // 2)
    return {
        "name": CULLER,
        "command": [
            *(sys.executable, "-m", "singularity_spawner.culling"),
            f"--timeout={idle_s or NEVER_S}",
            f"--max-age={max_age_s}",
            f"--cull-every={every_s}",
        ],
        "environment": {"SINGULARITY_API_URL": url},
        "display": False,
    }


def spawner_class(chosen: object) -> type | str:
    """The class for ``c.JupyterHub.spawner_class``: `chosen` with the mixin in front of it.

    `chosen` is what the configuration has: None, an entry-point name ("simple"), a dotted path
    or a class. Raises `ValueError` with a sentence for a name that leads nowhere.
    """
    if chosen is None:
        from .spawner import SingularitySpawner

        return SingularitySpawner
    base = _import_spawner(chosen) if isinstance(chosen, str) else chosen
    if not isinstance(base, type):
        raise ValueError(f"c.JupyterHub.spawner_class is {chosen!r}, which is no Spawner class")
    if issubclass(base, SingularitySpawnerMixin):
        return base
    metaclass: Any = type(base)
    mixed: type = metaclass(
        f"Singularity{base.__name__}",
        (SingularitySpawnerMixin, base),
        {
            "__doc__": f"{base.__name__} whose servers run under Singularity.",
            "__module__": __name__,
        },
    )
    return mixed


def _import_spawner(name: str) -> type:
    for entry in entry_points(group="jupyterhub.spawners"):
        if entry.name == name:
            loaded: type = entry.load()
            return loaded
    module, _, attribute = name.rpartition(".")
    try:
        found: type = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"c.JupyterHub.spawner_class is {name!r}, which is neither a registered Spawner nor "
            f"an importable class ({error})"
        ) from None
    return found


def _grant(
    roles: list[dict[str, Any]],
    name: str,
    scopes: Sequence[str],
    *,
    users: Sequence[str] = (),
    services: Sequence[str] = (),
) -> None:
    """Add scopes and members to the role `name` in `roles`, made when it is not there yet."""
    role = next((role for role in roles if role.get("name") == name), None)
    if role is None:
        role = {"name": name, "scopes": list(_BUILT_IN_ROLES.get(name, ()))}
        roles.append(role)
    for key, wanted in (("scopes", scopes), ("users", users), ("services", services)):
        if wanted:
            have = list(role.get(key) or ())
            role[key] = have + [item for item in wanted if item not in have]


def _setting(section: Config, name: str, fallback: Any) -> Any:
    """A value somebody set, `fallback` otherwise (looking must not create it)."""
    return section.get(name, fallback)


def _materialize(section: Config, name: str, empty: Any) -> Any:
    """The list or dict behind ``c.Section.name`` for changing in place.

    A configuration that only said ``.append(...)`` or ``.update(...)`` holds a lazy value.
    """
    value = _setting(section, name, None)
    if isinstance(value, LazyConfigValue):
        value = value.get_value(empty)
    section[name] = empty if value is None else type(empty)(value)
    return section[name]


def _set_of(section: Config, name: str) -> set[str]:
    value = _setting(section, name, None)
    if isinstance(value, LazyConfigValue):
        value = value.get_value(set())
    return set(value or ())
