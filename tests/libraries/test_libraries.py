"""Real libraries, unchanged: each script trains in a session with "cuda" and natively on the CPU,
and both write the same losses, scores and weights, bit for bit."""

import importlib.metadata
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from singularity_proxy.standalone import Standalone

HERE = Path(__file__).parent
LOCK = HERE.parents[1] / "requirements/libraries.lock"
pytest.importorskip("transformers", reason=f"{LOCK.name} is not installed: ./dev test does it")

EXACT = {
    "hf_trainer": {"log", "weights", "greedy", "sampled", "beams"},
    "hf_models": {"llama", "bert", "vit", "t5", "whisper"},
    "accelerate_loop": {"losses", "norms", "predictions", "weights", "moments"},
    "lightning_fit": {"losses", "scores", "best", "predicted", "weights"},
    "skorch_fit": {"history", "auc", "scores", "best", "grid", "weights"},
}
"""Script -> what it must have written, so that an empty result cannot pass."""


def environment(folder: Path, base: dict[str, str]) -> dict[str, str]:
    """No network and no home: everything a library keeps goes below `folder`."""
    return {
        **base,
        "HOME": str(folder / "home"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "HF_HOME": str(folder / "hf"),
        "TORCH_HOME": str(folder / "torch"),
        "MPLCONFIGDIR": str(folder / "mpl"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "100",
    }


def run(script: str, device: str, folder: Path, env: dict[str, str]) -> dict[str, object]:
    folder.mkdir()
    out = folder / "out.json"
    done = subprocess.run(
        [sys.executable, str(HERE / f"{script}.py"), device, str(folder), str(out)],
        env=environment(folder, env), cwd=folder, capture_output=True, text=True, timeout=250,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, object] = json.loads(out.read_text())
    return found


def both(script: str, folder: Path) -> tuple[dict[str, object], dict[str, object]]:
    """(native on the CPU, "cuda" in a session), side by side."""
    with Standalone() as session, ThreadPoolExecutor(1) as pool:
        native = pool.submit(run, script, "cpu", folder / "cpu", dict(os.environ))
        proxied = run(script, "cuda", folder / "cuda", session.env())
        assert session.stats()[0]["memory_peak"] > 0  # it ran in the device proxy
        return native.result(), proxied


@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", EXACT)
def test_a_library_trains_as_on_the_cpu(script: str, tmp_path: Path) -> None:
    native, proxied = both(script, tmp_path)
    assert native.pop("where") == "cpu"
    assert proxied.pop("where") == "cuda"
    assert native.keys() == EXACT[script]
    assert all(native.values())
    for name, value in native.items():
        assert proxied[name] == value, name


@pytest.mark.timeout(300)
def test_mixed_precision_of_the_libraries(tmp_path: Path) -> None:
    """Autocast on "cuda" has other rules than on the CPU, so results are near, not equal."""
    native, proxied = both("mixed_precision", tmp_path)
    assert native.pop("where") == "cpu"
    assert proxied.pop("where") == "cuda"
    assert native.keys() == proxied.keys() == {"accelerate", "transformers", "lightning"}
    for name, value in native.items():
        expected, found = ([float.fromhex(x) for x in y] for y in (value, proxied[name]))
        assert found == pytest.approx(expected, rel=0.05), name
        assert found[-1] < 0.9 * found[0], name  # it learns


def test_the_lock_names_what_is_installed() -> None:
    for line in LOCK.read_text().splitlines():
        name, _, version = line.partition("==")
        assert importlib.metadata.version(name) == version, line
