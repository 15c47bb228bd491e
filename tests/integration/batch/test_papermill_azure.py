"""papermill's ``abs://`` addresses with our engines, by papermill's own handler, in Azurite."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas
from support.azure_door import HOST, door
from support.azurite import ACCOUNT, KEY
from support.batch_runs import Runs, text_of, write_notebook

CELL = "import torch\nprint('got', torch.ones(2, device='cuda').sum().item() * lr)"


class Blobs:
    """A container of notebooks, as `environment` reaches it."""

    def __init__(self, environment: dict[str, str], client: Any) -> None:
        self.environment = environment
        self._client = client
        self.signature = generate_account_sas(
            ACCOUNT,
            KEY,
            ResourceTypes(service=True, container=True, object=True),
            AccountSasPermissions(read=True, write=True, list=True, create=True, add=True),
            datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1),
        )

    def address(self, name: str) -> str:
        return f"abs://{HOST}/notebooks/{name}?{self.signature}"

    def put(self, name: str, path: Path) -> None:
        self._client.upload_blob(name, path.read_bytes())

    def read(self, name: str) -> dict[str, Any]:
        text = self._client.download_blob(name).readall().decode()
        found: dict[str, Any] = nbformat.reads(text, as_version=4)
        return found


@pytest.fixture
def blobs(short_dir: Path) -> Iterator[Blobs]:
    from azure.storage.blob import ContainerClient

    with door(short_dir) as (server, environment):
        certificate = environment["REQUESTS_CA_BUNDLE"]
        url = server.url.replace("http:", "https:")
        with ContainerClient(url, "notebooks", credential=KEY, connection_verify=False) as client:
            client.create_container()
            assert Path(certificate).exists()
            yield Blobs(environment, client)


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
@pytest.mark.parametrize("remote", ["0", "1"])
def test_notebooks_in_azure_blob(runs: Runs, short_dir: Path, blobs: Blobs, remote: str) -> None:
    blobs.put("in.ipynb", write_notebook(short_dir / "n.ipynb", CELL, parameters="lr = 1.0"))
    places = [blobs.address("in.ipynb"), blobs.address("folder/out.ipynb")]
    words = ["--engine", "singularity", "-p", "lr", "0.5", "--no-progress-bar", *places]
    done = subprocess.run(
        [sys.executable, "-m", "papermill", *words],
        env={**runs.environment, **blobs.environment, "SINGULARITY_REMOTE": remote},
        **runs.owner,
        cwd=short_dir,
        umask=0,
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    out = blobs.read("folder/out.ipynb")
    assert text_of(out) == "got 1.0\n"
    papermills = out["metadata"]["papermill"]
    assert papermills["output_path"] == f"abs://{HOST}/notebooks/folder/out.ipynb"
    assert papermills["input_path"] == f"abs://{HOST}/notebooks/in.ipynb"
    session = runs.session(out["metadata"]["singularity"]["session"])
    assert session["name"] == "in.ipynb"
    secret = blobs.signature.partition("sig=")[2]
    assert secret not in json.dumps([out, session])
    assert sorted(path.name for path in short_dir.glob("*.ipynb")) == ["n.ipynb"]
    assert not list(short_dir.glob(".papermill-*"))
