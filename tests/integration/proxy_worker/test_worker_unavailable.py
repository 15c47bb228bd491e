"""A session on a machine where the native module is not built and cannot be."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import singularity_proxy
from singularity_proxy.standalone import Standalone

CODE = """
import warnings
import torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(torch.cuda.is_available(), torch.cuda.device_count())
    compiled = torch.compile(lambda x: x * 3, backend="aot_eager")
    torch.cuda.is_available(), compiled(torch.ones(2))
ours = [str(w.message) for w in caught if "is not available in this session" in str(w.message)]
assert len(ours) == 1, ours
print(*ours)
print((torch.ones(2) + 1).tolist(), torch.device("cuda"))
print(compiled(torch.ones(2)).tolist())
for use in (
    lambda: torch.zeros(2, device="cuda"),
    lambda: torch.ones(2).cuda(),
    lambda: torch.nn.Linear(2, 2).to("cuda"),
    lambda: torch.cuda.current_device(),
    lambda: torch.cuda.synchronize(),
):
    try:
        use()
    except RuntimeError as error:
        print(error)
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A worker's environment with a package that was never built and caches that are empty."""
    copy = tmp_path / "singularity_proxy"
    source = Path(singularity_proxy.__file__).parent
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("build", "__pycache__"))
    with Standalone() as session:
        env = session.env()
    return env | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), env.get("PYTHONPATH", "")]),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@pytest.mark.parametrize(
    ("changes", "do"),
    [
        ({"PATH": "/nonexistent", "CXX": ""}, "install g++"),
        ({"CXX": "/nonexistent/g++"}, "correct CXX or install g++"),
    ],
)
def test_torch_stays_usable_and_a_device_says_one_sentence(
    env: dict[str, str], changes: dict[str, str], do: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CODE)],
        env=env | changes, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    available, warned, computed, compiled, *said = done.stdout.splitlines()
    assert available == "False 0"
    assert computed == "[2.0, 2.0] cuda"
    assert compiled == "[3.0, 3.0]"
    assert len(said) == 5
    assert set(said) == {warned}
    assert warned.startswith('"cuda" is not available in this session, the CPU is: ')
    assert "the native module cannot be built" in warned
    assert do in warned
    assert "Traceback" not in done.stderr
