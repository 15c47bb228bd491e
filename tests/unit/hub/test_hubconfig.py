"""`configure` adds to a Hub configuration and takes nothing away."""

from __future__ import annotations

import sys

import pytest
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from singularity_spawner import SingularitySpawnerMixin, configure
from singularity_spawner.mixin import SERVER_SCOPES
from singularity_spawner.spawner import SingularitySpawner
from traitlets.config import Config

USE = "custom:singularity:use"
ADMIN = "custom:singularity:admin"
ACCESS = "access:services!service=singularity"


def roles(c):
    found = {role["name"]: role for role in c.JupyterHub.load_roles}
    assert len(found) == len(c.JupyterHub.load_roles), "the Hub refuses a role defined twice"
    return found


def services(c):
    return {service["name"]: service for service in c.JupyterHub.services}


def test_an_empty_configuration_becomes_complete():
    c = Config()
    configure(c, state_dir="/srv/s", devices=3, service_url="http://127.0.0.1:9999")
    service = services(c)["singularity"]
    assert service["url"] == "http://127.0.0.1:9999"
    assert service["command"][:3] == [sys.executable, "-m", "singularity_scheduler.service"]
    assert any(arg.endswith("=/srv/s") for arg in service["command"])
    assert any(arg.endswith("=3") for arg in service["command"])
    assert service["oauth_no_confirm"] is True
    assert set(service["oauth_client_allowed_scopes"]) == {USE, ADMIN}
    assert c.JupyterHub.custom_scopes[ADMIN]["subscopes"] == [USE]
    assert c.JupyterHub.spawner_class is SingularitySpawner
    assert c.SingularitySpawnerMixin.service_url == "http://127.0.0.1:9999/services/singularity/"
    token = c.SingularitySpawnerMixin.service_token
    assert services(c)["singularity-spawner"]["api_token"] == token
    assert len(token) >= 32
    found = roles(c)
    assert found["user"]["scopes"] == ["self", ACCESS, USE]
    assert {"users:activity!user", "access:servers!server", ACCESS, USE} == set(
        found["server"]["scopes"]
    )
    assert found["singularity-spawner"]["services"] == ["singularity-spawner"]


def test_existing_settings_are_kept():
    c = Config()
    c.JupyterHub.base_url = "/jupyter/"
    c.JupyterHub.services = [{"name": "culler", "command": ["cull"]}]
    c.JupyterHub.custom_scopes = {"custom:x:y": {"description": "mine"}}
    c.JupyterHub.load_roles = [
        {"name": "user", "scopes": ["self", "read:users:name"], "description": "mine"},
        {"name": "culler", "scopes": ["list:users"], "services": ["culler"]},
    ]
    c.Authenticator.admin_users = {"ada"}
    c.Spawner.server_token_scopes = ["users:activity!user", "read:users:name"]
    c.Spawner.args = ["--x"]
    configure(c, admin_users=["eve"])
    assert list(services(c)) == ["culler", "singularity", "singularity-spawner"]
    assert c.JupyterHub.custom_scopes["custom:x:y"] == {"description": "mine"}
    found = roles(c)
    assert found["user"]["scopes"] == ["self", "read:users:name", ACCESS, USE]
    assert found["user"]["description"] == "mine"
    assert found["culler"]["scopes"] == ["list:users"]
    assert found["singularity-admin"]["users"] == ["ada", "eve"]
    assert c.SingularitySpawnerMixin.service_url.endswith("/jupyter/services/singularity/")
    assert set(SERVER_SCOPES) <= set(c.Spawner.server_token_scopes)
    assert "read:users:name" in c.Spawner.server_token_scopes
    assert c.Spawner.args == ["--x"]


def test_settings_made_by_append_and_update_are_merged():
    c = Config()
    c.JupyterHub.services.append({"name": "culler", "command": ["cull"]})
    c.JupyterHub.load_roles.append({"name": "mine", "scopes": [], "users": ["x"]})
    c.JupyterHub.custom_scopes.update({"custom:x:y": {"description": "mine"}})
    c.Authenticator.admin_users.add("ada")
    configure(c)
    assert list(services(c)) == ["culler", "singularity", "singularity-spawner"]
    assert "mine" in roles(c)
    assert set(c.JupyterHub.custom_scopes) == {"custom:x:y", USE, ADMIN}
    assert roles(c)["singularity-admin"]["users"] == ["ada"]


def test_calling_it_twice_is_refused_and_changes_nothing():
    c = Config()
    configure(c)
    before = list(c.JupyterHub.services)
    with pytest.raises(ValueError, match="once"):
        configure(c)
    assert c.JupyterHub.services == before


@pytest.mark.parametrize(
    "chosen", ["simple", "jupyterhub.spawner.SimpleLocalProcessSpawner", SimpleLocalProcessSpawner]
)
def test_a_chosen_spawner_gets_the_mixin_in_front(chosen):
    c = Config()
    c.JupyterHub.spawner_class = chosen
    configure(c)
    built = c.JupyterHub.spawner_class
    assert issubclass(built, SingularitySpawnerMixin)
    assert issubclass(built, SimpleLocalProcessSpawner)
    assert built.mro().index(SingularitySpawnerMixin) < built.mro().index(LocalProcessSpawner)
    spawner = built(config=c)
    assert spawner.service_url == c.SingularitySpawnerMixin.service_url
    assert spawner.server_token_scopes == list(SERVER_SCOPES)
    assert spawner.will_resume is True


@pytest.mark.parametrize("chosen", ["singularity", SingularitySpawner])
def test_our_own_spawner_stays_itself(chosen):
    c = Config()
    c.JupyterHub.spawner_class = chosen
    configure(c)
    assert c.JupyterHub.spawner_class is SingularitySpawner


@pytest.mark.parametrize("chosen", ["no.such.Spawner", "nonsense", "", 7])
def test_an_unknown_spawner_gets_a_sentence(chosen):
    c = Config()
    c.JupyterHub.spawner_class = chosen
    with pytest.raises(ValueError, match="spawner_class is"):
        configure(c)


def test_the_culler_is_a_service_of_the_hub(monkeypatch):
    monkeypatch.setattr("singularity_spawner.hubconfig.util.find_spec", lambda name: object())
    c = Config()
    configure(c, cull_idle_s=3600, cull_max_age_s=600)
    assert c.SingularitySpawnerMixin.max_age_s == 600
    culler = services(c)["singularity-culler"]
    assert culler["command"][:3] == [sys.executable, "-m", "singularity_spawner.culling"]
    assert culler["command"][3:] == ["--timeout=3600", "--max-age=600", "--cull-every=300"]
    assert culler["environment"] == {"SINGULARITY_API_URL": c.SingularitySpawnerMixin.service_url}
    role = roles(c)["singularity-culler"]
    assert {ACCESS, ADMIN, "delete:servers", "read:servers"} <= set(role["scopes"])
    assert role["services"] == ["singularity-culler"]


def test_a_culler_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr("singularity_spawner.hubconfig.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="install it, or leave both out"):
        configure(Config(), cull_idle_s=3600)


def test_a_service_that_the_hub_does_not_start():
    c = Config()
    configure(c, service_url="http://127.0.0.1:9999", service_token="of the service")
    service = services(c)["singularity"]
    assert service["api_token"] == "of the service"
    assert service["url"] == "http://127.0.0.1:9999"
    assert not {"command", "environment"} & set(service)
    assert set(service["oauth_client_allowed_scopes"]) == {USE, ADMIN}


@pytest.mark.parametrize(
    "more",
    [{"state_dir": "/srv/s"}, {"devices": 1}, {"service_args": ["--x"]}],
)
def test_settings_of_a_service_that_the_hub_does_not_start_are_refused(more):
    with pytest.raises(ValueError, match="belong to its command line: leave them out here"):
        configure(Config(), service_token="of the service", **more)
